/* Signs of life. One thread of every process beats, on a board that all processes of its host see,
 * and looks at the others' beats. A compute phase may take as long as it likes: it does not stop
 * them. Whoever was away itself (a stopped job, a sleeping machine) accuses nobody. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define TURNS 40        /* in the limit, at least */
#define TURN_MS 125     /* at most: turns also carry news of failures */
#define LOST_SHARE 80   /* per cent of the limit: reported before it is over */
#define STARVED 3       /* limits, for a process of this host that is neither gone nor stopped */
#define AWAY_SHARE 4    /* turns later than such a part of the limit: I was away */
#define WARN_LIMITS 10  /* between two reports of slow ranks */
#define USUAL_LIMIT_MS 5000
#define MS 1000000

typedef struct spmd_seen {
    uint64_t beats;
    int64_t since;  /* when they last changed */
    int descriptor; /* of the process; -1: none */
    bool opened, late;
} spmd_seen;

typedef struct spmd_progress {
    uint64_t superstep;
    bool waits;
    int64_t since;
} spmd_progress;

typedef struct spmd_watch {
    int64_t limit, last, turn; /* nanoseconds; turns so far */
    bool mute;                 /* no limit: carry messages, accuse nobody */
    spmd_seen *seen;           /* by process */
    spmd_progress *progress;   /* by hosted rank */
    spmd_fars fars;
} spmd_watch;

int64_t spmd_now(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

int64_t spmd_board_bytes(int64_t processes)
{
    return SPMD_PAGE + (int64_t)sizeof(spmd_signs) + processes * (int64_t)sizeof(spmd_sign);
}

spmd_signs *spmd_job_signs(const spmd_job *job)
{
    return (spmd_signs *)((char *)job->board->header + SPMD_PAGE);
}

static spmd_sign *own_sign(const spmd_job *job)
{
    return &spmd_job_signs(job)->of[job->processes.number];
}

int spmd_job_board(spmd_job *job, spmd_arena *board)
{
    if (job->processes.count < 1 || board->bytes < spmd_board_bytes(job->processes.count))
        return SPMD_RANGE;
    spmd_watch *watch = calloc(1, sizeof *watch);
    if (!watch)
        return SPMD_NO_MEMORY;
    job->watch = watch;
    job->board = board;
    watch->seen = calloc((size_t)job->processes.count, sizeof *watch->seen);
    watch->progress = calloc((size_t)job->count, sizeof *watch->progress);
    if (!watch->seen || !watch->progress || !spmd_fars_open(job, &watch->fars))
        return SPMD_NO_MEMORY;
    atomic_store_explicit(&own_sign(job)->pid, getpid(), memory_order_release);
    return SPMD_OK;
}

void spmd_watch_free(spmd_job *job)
{
    spmd_watch *watch = job->watch;
    if (!watch)
        return;
    for (int64_t p = 0; watch->seen && p < job->processes.count; p++)
        if (watch->seen[p].opened && watch->seen[p].descriptor >= 0)
            close(watch->seen[p].descriptor);
    spmd_fars_free(&watch->fars);
    free(watch->seen);
    free(watch->progress);
    free(watch);
    job->watch = NULL;
}

/* After an absence, or at the start, everybody's time begins again. */
static void times_begin(spmd_job *job, int64_t now)
{
    for (int64_t p = 0; p < job->processes.count; p++)
        job->watch->seen[p].since = now;
    for (int64_t k = 0; k < job->count; k++)
        job->watch->progress[k].since = now;
    spmd_fars_begin(&job->watch->fars, now);
}

/* ---- failures, to and from the other arenas of this host ------------------------------------- */

static void failures_carry(spmd_job *job)
{
    spmd_failure failure;
    spmd_header *board = job->board->header;

    if (atomic_load_explicit(&board->abort, memory_order_acquire) == SPMD_SAID)
        spmd_arena_abort(job->arena, &board->failure);
    else if (spmd_job_failure(job, &failure))
        spmd_arena_abort(job->board, &failure);
}

/* true: this process is the one of its host that reports it. */
bool spmd_watch_lost(spmd_job *job, spmd_notice *notice, int64_t cause)
{
    const spmd_failure failure = {
        .code = 75, .rank = -1, .operation = -1, .site = -1, .text = "lost"};

    notice->kind = SPMD_NOTICE_LOST;
    notice->cause = cause;
    if (!spmd_arena_abort(job->board, &failure))
        return false;
    spmd_arena_abort(job->arena, &failure);
    return true;
}

/* ---- processes of this host ------------------------------------------------------------------ */

/* A descriptor stays with the process even when its number is given to another one. */
static bool is_gone(spmd_seen *seen, int64_t pid)
{
    if (!seen->opened) {
        seen->descriptor = (int)syscall(SYS_pidfd_open, (pid_t)pid, 0);
        seen->opened = seen->descriptor >= 0 || errno != ESRCH;
        if (!seen->opened)
            return true;
    }
    if (seen->descriptor < 0)
        return kill((pid_t)pid, 0) && errno == ESRCH;
    struct pollfd ended = {.fd = seen->descriptor, .events = POLLIN};
    return poll(&ended, 1, 0) > 0;
}

/* The third word of /proc/PID/stat; the second is in parentheses and may hold any character. */
bool spmd_process_is_stopped(int64_t pid)
{
    char path[64], text[512];

    snprintf(path, sizeof path, "/proc/%lld/stat", (long long)pid);
    int file = open(path, O_RDONLY | O_CLOEXEC);
    if (file < 0)
        return false;
    ssize_t length = read(file, text, sizeof text - 1);
    close(file);
    text[length > 0 ? length : 0] = 0;
    const char *end = strrchr(text, ')');
    return end && (end[2] == 'T' || end[2] == 't');
}

static void notice_fill(const spmd_job *job, spmd_notice *notice, int64_t process, int64_t pid,
                        int64_t silent)
{
    const spmd_sign *sign = &spmd_job_signs(job)->of[process];
    notice->process = process;
    notice->pid = pid;
    notice->rank = job->processes.first[process];
    notice->ranks = job->processes.first[process + 1] - notice->rank;
    notice->operation = atomic_load(&sign->operation);
    notice->superstep = atomic_load(&sign->superstep);
    notice->site = atomic_load(&sign->site);
    notice->position = atomic_load(&sign->position);
    notice->milliseconds = silent / MS;
}

static bool process_watch(spmd_job *job, int64_t process, int64_t now, spmd_notice *notice)
{
    spmd_watch *watch = job->watch;
    spmd_seen *seen = &watch->seen[process];
    spmd_sign *sign = &spmd_job_signs(job)->of[process];
    int64_t pid = atomic_load_explicit(&sign->pid, memory_order_acquire);
    uint64_t beats = atomic_load_explicit(&sign->beats, memory_order_relaxed);

    if (atomic_load(&sign->leaves) || pid == 0)
        return false;
    if (beats != seen->beats) {
        seen->beats = beats;
        seen->since = now;
        seen->late = false;
    }
    int64_t silent = now - seen->since;
    bool gone = is_gone(seen, pid) && !atomic_load(&sign->leaves);
    if (!gone && silent < watch->limit / 2)
        return false;
    notice_fill(job, notice, process, pid, silent);
    if (gone)
        return spmd_watch_lost(job, notice, SPMD_GONE);
    bool stopped = spmd_process_is_stopped(pid);
    if (stopped && silent > watch->limit / 100 * LOST_SHARE)
        return spmd_watch_lost(job, notice, SPMD_STOPPED);
    if (silent > STARVED * watch->limit)
        return spmd_watch_lost(job, notice, SPMD_SILENT);
    if (seen->late)
        return false;
    seen->late = true; /* one warning is enough, and one process gives it */
    if (atomic_exchange(&sign->warned, beats + 1) == beats + 1)
        return false;
    notice->kind = SPMD_NOTICE_LATE;
    notice->cause = stopped ? SPMD_STOPPED : SPMD_SILENT;
    return true;
}

/* ---- ranks of this process ------------------------------------------------------------------- */

/* How long the ranks here have been where they are; returns the one that has computed longest. */
__attribute__((no_sanitize("thread"))) static int64_t ranks_look(spmd_job *job, int64_t now,
                                                                 int64_t *computing)
{
    int64_t waiting = 0, slowest = -1;
    bool runs = spmd_job_runs(job);

    *computing = 0;
    for (int64_t k = 0; k < job->count; k++) {
        const spmd_record *record = job->hosted[k].record;
        const volatile spmd_rank *rank = &record->rank;
        spmd_progress *progress = &job->watch->progress[k];
        bool waits = rank->stage != 0;
        uint64_t superstep = rank->superstep;
        bool starves = atomic_load_explicit(&job->hosted[k].starves, memory_order_relaxed) != 0;
        if (waits != progress->waits || superstep != progress->superstep || !runs || starves ||
            atomic_load_explicit(&record->done, memory_order_relaxed)) {
            *progress = (spmd_progress){superstep, waits, now};
            continue;
        }
        int64_t time = now - progress->since;
        if (waits && time > waiting)
            waiting = time;
        if (!waits && time > *computing) {
            *computing = time;
            slowest = k;
        }
    }
    atomic_store_explicit(&own_sign(job)->waiting, waiting / MS, memory_order_relaxed);
    return slowest;
}

int64_t spmd_signs_waiting(const spmd_job *job)
{
    int64_t longest = 0;
    for (int64_t p = 0; p < job->processes.count; p++) {
        if (!spmd_process_here(job, p))
            continue;
        int64_t waiting =
            atomic_load_explicit(&spmd_job_signs(job)->of[p].waiting, memory_order_relaxed);
        longest = waiting > longest ? waiting : longest;
    }
    return longest;
}

/* A rank that computes is never an error; but whoever waits for it wants to know. */
static bool ranks_watch(spmd_job *job, int64_t now, spmd_notice *notice)
{
    spmd_signs *signs = spmd_job_signs(job);
    int64_t half = job->watch->limit / 2, computing;
    int64_t slowest = ranks_look(job, now, &computing);
    int64_t waiting = spmd_signs_waiting(job), elsewhere = atomic_load(&signs->waiting);
    spmd_rank_state state;

    waiting = waiting > elsewhere ? waiting : elsewhere;
    if (slowest < 0 || computing < half || waiting * MS < half)
        return false;
    int64_t warned = atomic_load(&signs->warned);
    bool again = warned && now / MS - warned < WARN_LIMITS * job->watch->limit / MS;
    if (again || !atomic_compare_exchange_strong(&signs->warned, &warned, now / MS))
        return false;
    notice_fill(job, notice, job->processes.number, getpid(), computing);
    spmd_job_watch(job, job->first + slowest, &state);
    notice->kind = SPMD_NOTICE_SLOW;
    notice->rank = job->first + slowest;
    notice->operation = state.operation;
    notice->superstep = state.superstep;
    notice->site = state.site;
    notice->position = state.position;
    return true;
}

/* ---- turns ----------------------------------------------------------------------------------- */

static void sign_show(spmd_job *job)
{
    spmd_sign *sign = own_sign(job);
    spmd_rank_state state;

    spmd_job_watch(job, job->first, &state);
    atomic_store_explicit(&sign->operation, state.operation, memory_order_relaxed);
    atomic_store_explicit(&sign->position, state.position, memory_order_relaxed);
    atomic_store_explicit(&sign->superstep, state.superstep, memory_order_relaxed);
    atomic_store_explicit(&sign->site, spmd_job_runs(job) ? state.site : SPMD_NOT_RUNNING,
                          memory_order_relaxed);
    atomic_fetch_add(&sign->beats, 1);
}

static bool watch_turn(spmd_job *job, spmd_notice *notice)
{
    spmd_watch *watch = job->watch;
    int64_t now = spmd_now();

    if (watch->last == 0 || now - watch->last > watch->limit / AWAY_SHARE)
        times_begin(job, now);
    watch->last = now;
    watch->turn++;
    sign_show(job);
    failures_carry(job);
    if (spmd_fars_watch(job, &watch->fars, watch->turn, watch->mute ? 0 : watch->limit, notice))
        return true;
    if (spmd_job_aborted(job) || watch->mute)
        return false;
    for (int64_t p = 0; p < job->processes.count; p++)
        if (p != job->processes.number && spmd_process_here(job, p) &&
            process_watch(job, p, now, notice))
            return true;
    return ranks_watch(job, now, notice);
}

int spmd_job_heed(spmd_job *job, int64_t limit_ms, spmd_notice *notice)
{
    spmd_watch *watch = job->watch;

    *notice = (spmd_notice){.kind = SPMD_NOTICE_END, .site = -1};
    if (!watch || !watch->progress)
        return SPMD_NOTICE_END;
    watch->mute = limit_ms <= 0;
    watch->limit = (watch->mute ? USUAL_LIMIT_MS : limit_ms) * MS;
    bool news = false;
    pthread_mutex_lock(&job->lock);
    while (!job->heed_over && !news) {
        pthread_mutex_unlock(&job->lock);
        news = watch_turn(job, notice);
        pthread_mutex_lock(&job->lock);
        int64_t turn = watch->limit / TURNS;
        int64_t until = spmd_now() + (turn < TURN_MS * MS ? turn : TURN_MS * MS);
        struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        if (!news && !job->heed_over)
            pthread_cond_timedwait(&job->heed, &job->lock, &at);
    }
    pthread_mutex_unlock(&job->lock);
    if (!news)
        spmd_fars_leave(job, &watch->fars, watch->limit);
    return (int)(news ? notice->kind : SPMD_NOTICE_END);
}

void spmd_job_heed_last(spmd_job *job)
{
    if (job->watch && job->watch->fars.count > 0)
        spmd_fars_tell(job, &job->watch->fars);
}

void spmd_job_heed_end(spmd_job *job)
{
    if (job->board)
        atomic_store(&own_sign(job)->leaves, true);
    pthread_mutex_lock(&job->lock);
    job->heed_over = true;
    pthread_cond_broadcast(&job->heed);
    pthread_mutex_unlock(&job->lock);
}
