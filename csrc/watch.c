/* Signs of life. One thread of every process beats, and looks at the others: inside an arena at
 * their counts of beats; between arenas the first process of each sends beats to the first of all,
 * the centre, and hears from it. A compute phase may take as long as it likes: it does not stop the
 * beats. Whoever was away itself (a stopped job, a sleeping machine) accuses nobody. */
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

#define TURNS 40        /* in the limit */
#define LOST_SHARE 80   /* per cent of the limit: reported before it is over */
#define STARVED 3       /* limits, for a process of this host that is neither gone nor stopped */
#define BEAT_TURNS 4    /* between two beats for another arena */
#define WATCH_TAG 0
#define MS 1000000

/* What travels between the first processes of arenas. */
typedef struct spmd_beat {
    int64_t arena;
    int64_t waiting;      /* as in spmd_header */
    spmd_rank_state state; /* of the sender's first rank */
    int64_t failed, leaves;
    spmd_failure failure;
} spmd_beat;

typedef struct spmd_seen {
    uint64_t beats;
    int64_t since; /* when they last changed */
    int descriptor; /* of the process; -1: none */
    bool opened, late;
} spmd_seen;

typedef struct spmd_progress {
    uint64_t superstep;
    bool waits;
    int64_t since;
} spmd_progress;

/* An arena that this process exchanges beats with. */
typedef struct spmd_far {
    int64_t arena, process; /* its number, and its first process */
    int64_t heard;          /* when */
    spmd_beat last, coming; /* from it; `coming` is MPI's while I listen */
    spmd_beat sent;         /* to it; MPI's while it is busy */
    spmd_handle request, hearing;
    bool listens;
    bool busy, late, told, left; /* told: of the failure; left: has my last beat */
    bool alone;             /* nobody shares its arena, and would notice sooner */
} spmd_far;

typedef struct spmd_watch {
    int64_t limit, last, turn; /* nanoseconds; turns so far */
    spmd_seen *seen;           /* by process */
    spmd_progress *progress;   /* by hosted rank */
    spmd_far *far;
    int64_t fars;
} spmd_watch;

static int64_t now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000000000 + now.tv_nsec;
}

static spmd_record *process_record(const spmd_job *job, int64_t process)
{
    return spmd_job_record(job, job->processes.first[process]);
}

static int64_t first_process(const spmd_job *job, int64_t arena)
{
    int64_t process = 0;
    while (job->processes.arena[process] != arena)
        process++;
    return process;
}

static spmd_far *far_of(spmd_watch *watch, int64_t arena)
{
    for (int64_t k = 0; k < watch->fars; k++)
        if (watch->far[k].arena == arena)
            return &watch->far[k];
    return NULL;
}

/* The first process of an arena speaks with the centre; the centre with all of them. */
static int fars_open(spmd_job *job, spmd_watch *watch)
{
    const spmd_processes *all = &job->processes;
    int64_t mine = all->arena[all->number], centre = all->arena[0];

    if (!job->parted || all->number != first_process(job, mine))
        return SPMD_OK;
    watch->far = calloc((size_t)all->count, sizeof *watch->far);
    if (!watch->far)
        return SPMD_NO_MEMORY;
    bool *known = calloc((size_t)all->count, sizeof *known);
    if (!known)
        return SPMD_NO_MEMORY;
    for (int64_t p = 0; p < all->count; p++) {
        int64_t arena = all->arena[p];
        bool partner = arena != mine && (mine == centre || arena == centre);
        if (partner && !known[arena])
            watch->far[watch->fars++] = (spmd_far){.arena = arena, .process = p, .alone = true};
        else if (far_of(watch, arena))
            far_of(watch, arena)->alone = false;
        known[arena] = true;
    }
    free(known);
    return SPMD_OK;
}

static int watch_open(spmd_job *job)
{
    if (job->watch)
        return SPMD_OK;
    spmd_watch *watch = calloc(1, sizeof *watch);
    job->watch = watch;
    if (!watch)
        return SPMD_NO_MEMORY;
    watch->seen = calloc((size_t)job->processes.count, sizeof *watch->seen);
    watch->progress = calloc((size_t)job->count, sizeof *watch->progress);
    if (!watch->seen || !watch->progress)
        return SPMD_NO_MEMORY;
    return fars_open(job, watch);
}

void spmd_watch_free(spmd_job *job)
{
    spmd_watch *watch = job->watch;
    if (!watch)
        return;
    for (int64_t p = 0; watch->seen && p < job->processes.count; p++)
        if (watch->seen[p].opened && watch->seen[p].descriptor >= 0)
            close(watch->seen[p].descriptor);
    free(watch->seen);
    free(watch->progress);
    bool busy = false; /* MPI still reads what was sent last, or waits to write */
    for (int64_t k = 0; k < watch->fars; k++)
        busy |= watch->far[k].busy || watch->far[k].listens;
    if (!busy)
        free(watch->far);
    free(watch);
    job->watch = NULL;
}

/* After an absence, or at the start, everybody's time begins again. */
static void times_begin(spmd_job *job, spmd_watch *watch, int64_t now)
{
    for (int64_t p = 0; p < job->processes.count; p++)
        watch->seen[p].since = now;
    for (int64_t k = 0; k < job->count; k++)
        watch->progress[k].since = now;
    for (int64_t k = 0; k < watch->fars; k++)
        watch->far[k].heard = now;
}

/* ---- processes of this arena ---------------------------------------------------------------- */

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
static bool is_stopped(int64_t pid)
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

static void notice_fill(const spmd_job *job, spmd_notice *notice, int64_t process,
                        const spmd_rank_state *state)
{
    notice->process = process;
    notice->pid = spmd_process_near(job, process) ? state->process : 0;
    notice->rank = job->processes.first[process];
    notice->ranks = job->processes.first[process + 1] - notice->rank;
    notice->operation = state->operation;
    notice->superstep = state->superstep;
    notice->site = state->site;
}

/* true: this process is the one that reports it. */
static bool lost(spmd_job *job, spmd_notice *notice, int64_t cause)
{
    spmd_failure failure = {.code = 75, .rank = -1, .site = -1, .text = "lost"};
    uint32_t fine = SPMD_FINE;
    spmd_header *header = job->arena->header;

    notice->kind = SPMD_NOTICE_LOST;
    notice->cause = cause;
    if (!atomic_compare_exchange_strong(&header->abort, &fine, SPMD_CLAIMED))
        return false;
    header->failure = failure;
    atomic_store_explicit(&header->abort, SPMD_SAID, memory_order_release);
    return true;
}

static bool process_watch(spmd_job *job, int64_t process, int64_t now, spmd_notice *notice)
{
    spmd_watch *watch = job->watch;
    spmd_seen *seen = &watch->seen[process];
    spmd_record *record = process_record(job, process);
    int64_t pid = atomic_load_explicit(&record->process, memory_order_acquire);
    uint64_t beats = atomic_load_explicit(&record->beats, memory_order_relaxed);
    spmd_rank_state state;

    if (atomic_load(&record->leaves) || pid == 0)
        return false;
    if (beats != seen->beats) {
        seen->beats = beats;
        seen->since = now;
        seen->late = false;
    }
    int64_t silent = now - seen->since;
    bool gone = is_gone(seen, pid) && !atomic_load(&record->leaves);
    if (!gone && silent < watch->limit / 2)
        return false;
    spmd_job_watch(job, job->processes.first[process], &state);
    notice_fill(job, notice, process, &state);
    notice->milliseconds = silent / MS;
    if (gone)
        return lost(job, notice, SPMD_GONE);
    bool stopped = is_stopped(pid);
    if (stopped && silent > watch->limit / 100 * LOST_SHARE)
        return lost(job, notice, SPMD_STOPPED);
    if (silent > STARVED * watch->limit)
        return lost(job, notice, SPMD_SILENT);
    if (seen->late)
        return false;
    seen->late = true; /* one warning is enough, and one process gives it */
    if (atomic_exchange(&record->warned, beats + 1) == beats + 1)
        return false;
    notice->kind = SPMD_NOTICE_LATE;
    notice->cause = stopped ? SPMD_STOPPED : SPMD_SILENT;
    return true;
}

/* ---- ranks of this process ------------------------------------------------------------------ */

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
        if (waits != progress->waits || superstep != progress->superstep || !runs ||
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
    atomic_store_explicit(&process_record(job, job->processes.number)->waiting, waiting / MS,
                          memory_order_relaxed);
    return slowest;
}

static int64_t arena_waiting(const spmd_job *job)
{
    int64_t longest = 0;
    for (int64_t p = 0; p < job->processes.count; p++) {
        if (!spmd_process_near(job, p))
            continue;
        int64_t waiting =
            atomic_load_explicit(&process_record(job, p)->waiting, memory_order_relaxed);
        longest = waiting > longest ? waiting : longest;
    }
    return longest;
}

/* A rank that computes is never an error; but whoever waits for it wants to know. */
static bool ranks_watch(spmd_job *job, int64_t now, spmd_notice *notice)
{
    spmd_header *header = job->arena->header;
    int64_t half = job->watch->limit / 2, computing;
    int64_t slowest = ranks_look(job, now, &computing);
    int64_t waiting = arena_waiting(job), elsewhere = atomic_load(&header->waiting);
    spmd_rank_state state;

    waiting = waiting > elsewhere ? waiting : elsewhere;
    if (slowest < 0 || computing < half || waiting * MS < half)
        return false;
    int64_t warned = atomic_load(&header->warned);
    bool again = warned && now / MS - warned < 20 * half / MS;
    if (again || !atomic_compare_exchange_strong(&header->warned, &warned, now / MS))
        return false;
    spmd_job_watch(job, job->first + slowest, &state);
    notice_fill(job, notice, job->processes.number, &state);
    notice->kind = SPMD_NOTICE_SLOW;
    notice->rank = job->first + slowest;
    notice->milliseconds = computing / MS;
    return true;
}

/* ---- other arenas --------------------------------------------------------------------------- */

/* Takes what has come, and listens for the next one. What one arena fails at, the centre tells the
 * others. */
static bool far_hear(spmd_job *job, spmd_far *far, int64_t now)
{
    spmd_mpi_error error;
    bool complete = false;

    if (far->last.leaves)
        return false;
    if (far->listens && !spmd_mpi_test(job, &far->hearing, &complete, &error))
        return false;
    if (complete) {
        far->heard = now;
        far->late = false;
        far->last = far->coming;
        if (far->last.failed) {
            far->told = true;
            spmd_arena_abort(job->arena, &far->last.failure);
        }
    }
    if ((complete && !far->last.leaves) || !far->listens)
        far->listens = spmd_mpi_receive(job, &far->coming, sizeof far->coming, (int)far->process,
                                        WATCH_TAG, &far->hearing, &error);
    else if (complete)
        far->listens = false;
    return complete;
}

static void fars_hear(spmd_job *job, int64_t now)
{
    for (int64_t k = 0; k < job->watch->fars; k++)
        while (far_hear(job, &job->watch->far[k], now))
            continue;
}

/* The longest wait of all arenas but one, as far as is known here. */
static int64_t waiting_beside(const spmd_job *job, const spmd_far *beside)
{
    int64_t longest = arena_waiting(job);
    for (int64_t k = 0; k < job->watch->fars; k++) {
        const spmd_far *far = &job->watch->far[k];
        if (far != beside && far->last.waiting > longest)
            longest = far->last.waiting;
    }
    return longest;
}

static bool far_idle(spmd_job *job, spmd_far *far)
{
    spmd_mpi_error error;
    bool complete = true;

    if (far->busy && !spmd_mpi_test(job, &far->request, &complete, &error))
        return false;
    far->busy = !complete;
    return complete;
}

/* false: the beat before it is still on its way. */
static bool far_tell(spmd_job *job, spmd_far *far, bool leaves)
{
    spmd_mpi_error error;

    if (!far_idle(job, far))
        return false;
    far->sent = (spmd_beat){.arena = job->processes.arena[job->processes.number],
                            .waiting = waiting_beside(job, far),
                            .leaves = leaves};
    spmd_job_watch(job, job->first, &far->sent.state);
    if (spmd_job_aborted(job) && !far->told) {
        far->sent.failed = spmd_job_failure(job, &far->sent.failure);
        far->told = true;
    }
    far->busy = spmd_mpi_send(job, false, &far->sent, sizeof far->sent, (int)far->process,
                              WATCH_TAG, &far->request, &error);
    return far->busy;
}

static bool far_watch(spmd_job *job, spmd_far *far, int64_t now, spmd_notice *notice)
{
    int64_t limit = job->watch->limit, silent = now - far->heard;
    /* If it is the centre that is lost, the next arena says so; later ones only if that is lost. */
    int64_t order = job->processes.arena[job->processes.number];
    int64_t patience = limit / 100 * LOST_SHARE + (order > 1 ? limit * order : 0) +
                       (far->alone ? 0 : limit / 10);

    if (far->last.leaves || silent < limit / 2)
        return false;
    notice_fill(job, notice, far->process, &far->last.state);
    notice->milliseconds = silent / MS;
    if (silent > patience)
        return lost(job, notice, SPMD_SILENT);
    if (far->late || order > 1 || !far->alone)
        return false;
    far->late = true;
    notice->kind = SPMD_NOTICE_LATE;
    notice->cause = SPMD_SILENT;
    return true;
}

static bool fars_watch(spmd_job *job, int64_t now, spmd_notice *notice)
{
    spmd_watch *watch = job->watch;
    int64_t waiting = 0;
    bool aborted = spmd_job_aborted(job);

    fars_hear(job, now);
    for (int64_t k = 0; k < watch->fars; k++) {
        spmd_far *far = &watch->far[k];
        if (far->last.waiting > waiting)
            waiting = far->last.waiting;
        if (watch->turn % BEAT_TURNS == 0 || (aborted && !far->told))
            far_tell(job, far, false);
    }
    atomic_store(&job->arena->header->waiting, waiting);
    for (int64_t k = 0; !aborted && k < watch->fars; k++)
        if (far_watch(job, &watch->far[k], now, notice))
            return true;
    return false;
}

/* No beat may be on its way when the job's communicator is given up: the last one says that it is
 * the last, and everybody waits for the other's. */
static void fars_leave(spmd_job *job)
{
    const struct timespec moment = {.tv_nsec = MS / 5};
    spmd_watch *watch = job->watch;
    int64_t end = now_ns() + watch->limit, left = watch->fars;

    while (left > 0 && !spmd_job_aborted(job) && now_ns() < end) {
        fars_hear(job, now_ns());
        left = 0;
        for (int64_t k = 0; k < watch->fars; k++) {
            spmd_far *far = &watch->far[k];
            far->left = far->left || far_tell(job, far, true);
            left += !far->left || !far_idle(job, far) || !far->last.leaves;
        }
        if (left > 0)
            nanosleep(&moment, NULL);
    }
}

/* ---- turns ---------------------------------------------------------------------------------- */

static bool watch_turn(spmd_job *job, spmd_notice *notice)
{
    spmd_watch *watch = job->watch;
    int64_t now = now_ns(), away = watch->limit / 4;

    if (watch->last == 0 || now - watch->last > away)
        times_begin(job, watch, now);
    watch->last = now;
    watch->turn++;
    atomic_fetch_add(&process_record(job, job->processes.number)->beats, 1);
    if (watch->fars && fars_watch(job, now, notice))
        return true;
    if (spmd_job_aborted(job))
        return false;
    for (int64_t p = 0; p < job->processes.count; p++)
        if (p != job->processes.number && spmd_process_near(job, p) &&
            process_watch(job, p, now, notice))
            return true;
    return ranks_watch(job, now, notice);
}

int spmd_job_heed(spmd_job *job, int64_t limit_ms, spmd_notice *notice)
{
    *notice = (spmd_notice){.kind = SPMD_NOTICE_END, .site = -1};
    if (job->processes.count < 2 || limit_ms <= 0 || watch_open(job) != SPMD_OK)
        return SPMD_NOTICE_END;
    job->watch->limit = limit_ms * MS;
    bool news = false;
    pthread_mutex_lock(&job->lock);
    while (!job->heed_over && !news) {
        pthread_mutex_unlock(&job->lock);
        news = watch_turn(job, notice);
        pthread_mutex_lock(&job->lock);
        int64_t until = now_ns() + job->watch->limit / TURNS;
        struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        if (!news && !job->heed_over)
            pthread_cond_timedwait(&job->heed, &job->lock, &at);
    }
    pthread_mutex_unlock(&job->lock);
    if (!news)
        fars_leave(job);
    return (int)(news ? notice->kind : SPMD_NOTICE_END);
}

void spmd_job_heed_end(spmd_job *job)
{
    if (job->arena && job->processes.count > 1)
        atomic_store(&process_record(job, job->processes.number)->leaves, true);
    pthread_mutex_lock(&job->lock);
    job->heed_over = true;
    pthread_cond_broadcast(&job->heed);
    pthread_mutex_unlock(&job->lock);
}
