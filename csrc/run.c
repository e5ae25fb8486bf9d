/* Threads that advance ranks. Each calls the step of its own ranks in turn, again and again; no
 * rank ever blocks its thread. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <sched.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#define STACK_BYTES (8 * 1024 * 1024) /* compute phases are the user's code */
#define STACK_USED (512 * 1024)       /* of it, at most, by who calls the engine */
#define SPINS 1000 /* between two looks at whether the job was aborted */
#define NOTICE_NS 20000000 /* within which the host language sees another process' failure */
#define LEAVE_NS 200000000
#define OWED_NS 100000000 /* within which ranks come to the frames of the one that has failed */
#define LONGEST_MS 1000000000
#define FINISHED_WORKER UINT64_MAX

/* Every rank of the job is hosted here and a whole sweep of every worker that began with this
 * number of advances was fruitless: nothing can ever change. Say so instead of waiting for ever. */
static void stillness_check(spmd_job *job, uint64_t advances)
{
    if (job->count != job->world.ranks || spmd_set_held(job) || spmd_job_starved(job) ||
        spmd_frames_wait(job))
        return;
    for (int64_t k = 0; k < job->threads; k++) {
        uint64_t still = atomic_load(&job->worker[k].still);
        if (still != advances + 1 && still != FINISHED_WORKER)
            return;
    }
    if (atomic_load(&job->advances) != advances)
        return;
    for (int64_t k = 0; k < job->count; k++) {
        const spmd_record *record = job->hosted[k].record;
        const spmd_rank *rank = &record->rank;
        if (atomic_load_explicit(&record->done, memory_order_acquire))
            continue;
        spmd_rank_fail(rank, 70, "rank %lld waits in exchange %u (%s) and no rank can advance",
                       (long long)rank->index, rank->exchange.site,
                       spmd_exchange_name(&rank->exchange));
        return;
    }
}

/* After a failure: whether a rank has to go on for a moment, to frames that were made before it. */
static bool goes_on(spmd_worker *worker, const spmd_hosted *me)
{
    if (!spmd_owes_frames(me))
        return false;
    if (!worker->owes_until)
        worker->owes_until = spmd_now() + OWED_NS;
    return spmd_now() < worker->owes_until;
}

/* One step of each rank that is not done. Returns how many became done; -1 when aborted. */
static int64_t worker_sweep(spmd_worker *worker, bool *moved)
{
    spmd_job *job = worker->job;
    uint64_t advances = worker->advances;
    int64_t finished = 0;
    bool aborted = false, owes = false;

    for (int64_t k = worker->first; k < worker->first + worker->count; k++) {
        spmd_record *record = job->hosted[k].record;
        if (atomic_load_explicit(&record->done, memory_order_relaxed))
            continue;
        if (spmd_job_aborted(job)) {
            aborted = true;
            if (!goes_on(worker, &job->hosted[k]))
                continue;
            owes = true;
        }
        spmd_keeps_for(&record->rank);
        if (job->image->step(&record->rank) == SPMD_DONE) {
            spmd_readers_done(&job->hosted[k]);
            spmd_timeline_end(&job->hosted[k]);
            atomic_fetch_add_explicit(&record->runs, 1, memory_order_relaxed);
            atomic_store_explicit(&record->done, 1, memory_order_release);
            finished++;
        }
    }
    *moved = finished > 0 || worker->advances != advances;
    return aborted && !owes ? -1 : finished;
}

static void worker_begin(spmd_worker *worker)
{
    const spmd_job *job = worker->job;

    spmd_core_begin(worker);
    worker->most_spins = worker->count == 1 && !job->parted && !job->crowded ? SPINS : 0;
    worker->spins = worker->most_spins;
    worker->owes_until = 0;
    worker->left = worker->count;
}

/* Whether the host language has something to do for a run that goes on, or looks up now. */
static bool host_is_due(spmd_job *job, int64_t end)
{
    return spmd_text_waits(&job->text) || spmd_set_waits(job) || spmd_frames_wait(job) ||
           spmd_now() >= end;
}

/* Until its ranks are done, or the job is aborted; before that in a thread of the host language
 * (end: not 0), where this is due. true: the run is over. */
static bool worker_run(spmd_worker *worker, int64_t end)
{
    spmd_job *job = worker->job;
    bool moved = true;

    while (worker->left > 0) {
        uint64_t advances = atomic_load(&job->advances);
        int64_t finished = worker_sweep(worker, &moved);
        if (finished < 0)
            break;
        worker->left -= finished;
        if (end && worker->left > 0 && host_is_due(job, end)) {
            spmd_wait_over(worker);
            return false;
        }
        if (moved) {
            atomic_fetch_add(&job->advances, 1);
            spmd_wait_over(worker);
            continue;
        }
        atomic_store(&worker->still, advances + 1);
        stillness_check(job, advances);
        spmd_wait(worker);
    }
    spmd_wait_over(worker);
    if (worker->left == 0)
        atomic_store(&worker->still, FINISHED_WORKER);
    return true;
}

/* Looks, without the lock of the job, while its latest run is this one, for SPMD_NEXT_NS at most.
 * Being woken takes longer. Where threads share cores, whoever looks is in the way. */
static void spin_at_run(const spmd_job *job, int64_t run)
{
    if (spmd_job_crowded(job))
        return;
    int64_t end = spmd_now() + SPMD_NEXT_NS;
    do {
        for (int k = 0; k < SPINS / 10; k++)
            if (atomic_load_explicit(&job->run, memory_order_acquire) != run)
                return;
        sched_yield(); /* who is to start a run may have been put on this core */
    } while (spmd_now() < end);
}

/* Before the host language sleeps: looks whether the run is over, or frames wait. Where it takes
 * many frames, it does not keep a core busy for this that a rank could have. */
static void spin_for_news(const spmd_job *job)
{
    int64_t threads = atomic_load_explicit(&job->arena->header->threads, memory_order_relaxed);
    if (spmd_job_crowded(job) || (job->frames_come && threads + job->strangers >= job->cores))
        return;
    int64_t end = spmd_now() + SPMD_NEXT_NS;
    do {
        for (int k = 0; k < SPINS / 10; k++)
            if (atomic_load_explicit(&job->active, memory_order_acquire) == 0 ||
                spmd_frames_wait(job))
                return;
        sched_yield(); /* who is to write a word may have been put on this core */
    } while (spmd_now() < end);
}

/* Waits for a run after this one that it has to make, which is `run` then. false: there is none. */
static bool worker_wait(spmd_worker *worker, int64_t *run)
{
    spmd_job *job = worker->job;

    pthread_mutex_lock(&job->lock);
    while (!job->closing && (job->run == *run || job->run == job->run_here)) {
        if (worker == job->worker && job->follows) {
            spmd_order_take(job);
            continue;
        }
        worker->sleeps = true;
        pthread_cond_wait(&job->go, &job->lock);
        worker->sleeps = false;
    }
    bool closing = job->closing; /* no run is under way */
    *run = job->run;
    pthread_mutex_unlock(&job->lock);
    return !closing;
}

static void *worker_main(void *argument)
{
    spmd_worker *worker = argument;
    spmd_job *job = worker->job;
    int64_t run = 0;

    prctl(PR_SET_TIMERSLACK, 1000UL); /* the usual 50 us would double a short sleep */
    while (worker_wait(worker, &run)) {
        worker_begin(worker);
        worker_run(worker, 0);
        /* Asked before the run is over: then the host language may follow at once. */
        bool is_order = job->follows;
        if (atomic_fetch_sub(&job->active, 1) == 1) {
            pthread_mutex_lock(&job->lock);
            pthread_cond_broadcast(&job->news);
            pthread_mutex_unlock(&job->lock);
            if (is_order)
                spmd_order_done(job);
        }
        if (!job->follows)
            spin_at_run(job, run);
    }
    return NULL;
}

/* Signals are the host language's business: its own thread must be the one they interrupt. */
static int worker_create(spmd_worker *worker)
{
    pthread_attr_t attributes;
    sigset_t all, before;

    sigfillset(&all);
    sigdelset(&all, SIGSEGV);
    sigdelset(&all, SIGBUS);
    sigdelset(&all, SIGFPE);
    sigdelset(&all, SIGILL);
    pthread_attr_init(&attributes);
    pthread_attr_setstacksize(&attributes, STACK_BYTES);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&worker->thread, &attributes, worker_main, worker);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attributes);
    errno = failed;
    return failed == 0 ? SPMD_OK : SPMD_SYSTEM;
}

int spmd_workers_start(spmd_job *job)
{
    size_t bytes = (size_t)job->threads * sizeof *job->worker;
    int64_t terms = 2 * (job->highest - job->lowest + 1);
    job->worker = aligned_alloc(SPMD_LINE, bytes);
    if (!job->worker)
        return SPMD_NO_MEMORY;
    memset(job->worker, 0, bytes);
    atomic_fetch_add(&job->arena->header->threads, job->threads);
    for (int64_t k = 0; k < job->threads; k++) {
        spmd_worker *worker = &job->worker[k];
        worker->job = job;
        worker->first = k * job->count / job->threads;
        worker->core = -1;
        worker->count = (k + 1) * job->count / job->threads - worker->first;
        worker->term = malloc((size_t)terms * sizeof *worker->term);
        if (!worker->term)
            return SPMD_NO_MEMORY;
        worker->bell = &job->hosted[worker->first].record->bell;
        for (int64_t rank = worker->first; rank < worker->first + worker->count; rank++) {
            job->hosted[rank].worker = worker;
            atomic_store(&job->hosted[rank].record->bell_at, job->first + worker->first);
        }
        int status = worker_create(worker);
        if (status != SPMD_OK)
            return status;
        job->started++;
    }
    return SPMD_OK;
}

bool spmd_job_runs(const spmd_job *job)
{
    return job->active > 0;
}

/* After a failure the workers leave as soon as they look up: give them that moment. */
static void workers_leave(spmd_job *job)
{
    int64_t end = spmd_now() + LEAVE_NS;
    struct timespec at = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
    while (job->active > 0 && spmd_job_aborted(job) && spmd_now() < end)
        pthread_cond_timedwait(&job->news, &job->lock, &at);
}

int spmd_workers_stop(spmd_job *job)
{
    pthread_mutex_lock(&job->lock);
    workers_leave(job);
    bool busy = job->active > 0;
    if (!busy) {
        job->closing = true;
        pthread_cond_broadcast(&job->go);
    }
    pthread_mutex_unlock(&job->lock);
    if (busy)
        return SPMD_BUSY;
    for (int64_t k = 0; k < job->started; k++)
        pthread_join(job->worker[k].thread, NULL);
    for (int64_t k = 0; job->worker && k < job->threads; k++)
        free(job->worker[k].term);
    free(job->worker);
    job->worker = NULL;
    job->started = 0;
    return SPMD_OK;
}

/* ---- a run in the thread that waits for it -------------------------------------------------- */

/* Whether compute phases have about as much stack in this thread as in that of a worker. */
static bool stack_is_roomy(void)
{
    static _Thread_local int known; /* 1: it is, -1: it is not */
    pthread_attr_t attributes;
    void *base = NULL;
    size_t bytes = 0;

    if (!known && pthread_getattr_np(pthread_self(), &attributes) == 0) {
        pthread_attr_getstack(&attributes, &base, &bytes);
        pthread_attr_destroy(&attributes);
        known = (char *)&bytes - (char *)base > STACK_BYTES - STACK_USED ? 1 : -1;
    }
    return known > 0;
}

/* The caller holds the lock, and no run is under way. */
static bool may_run_here(const spmd_job *job)
{
    return job->threads == 1 && job->count == job->world.ranks && !job->follows &&
           stack_is_roomy();
}

/* Makes the run that was started here, or goes on with it. false: workers make it. */
static bool here_run(spmd_job *job, int64_t end)
{
    spmd_worker *worker = job->worker;
    pthread_t own = worker->thread;

    pthread_mutex_lock(&job->lock);
    bool mine = job->here;
    job->here = false;
    pthread_mutex_unlock(&job->lock);
    if (!mine)
        return false;
    worker->thread = pthread_self(); /* which is moved between cores */
    bool over = worker_run(worker, end);
    worker->thread = own;
    spmd_keeps_for(NULL);
    pthread_mutex_lock(&job->lock);
    job->here = !over;
    if (over) {
        atomic_fetch_sub(&job->active, 1);
        pthread_cond_broadcast(&job->news);
    }
    pthread_mutex_unlock(&job->lock);
    return true;
}

/* An aborted run that nobody goes on with is over. */
void spmd_here_leave(spmd_job *job)
{
    if (job->here) {
        job->here = false;
        atomic_fetch_sub(&job->active, 1);
    }
}

/* Words at exchange sites keep growing over runs, so only what is private to a rank is reset: a
 * process may start its next run while others still finish this one. */
static void rank_reset(const spmd_job *job, spmd_hosted *hosted)
{
    spmd_record *record = hosted->record;
    spmd_rank *rank = &record->rank;

    spmd_timeline_begin(hosted);
    spmd_turns_reset(hosted);
    spmd_saves_reset(hosted);
    spmd_readers_reset(hosted);
    spmd_keeps_nothing(rank);
    if (job->image->counters)
        memset(rank->counter, 0, job->image->counters * sizeof *rank->counter);
    spmd_buffers_reset(rank);
    rank->pc = rank->stage = rank->operation = 0;
    rank->superstep = 0;
    atomic_store_explicit(&record->done, 0, memory_order_release);
}

int spmd_job_start(spmd_job *job, const uint8_t *given)
{
    return spmd_run_start(job, given, false);
}

int spmd_run_start(spmd_job *job, const uint8_t *given, bool here)
{
    if (!job->started || job->started != job->threads)
        return SPMD_RANGE;
    pthread_mutex_lock(&job->lock);
    bool busy = job->active > 0 || spmd_job_aborted(job);
    if (!busy) {
        if (given)
            memcpy(job->given, given, (size_t)job->image->inputs + job->image->outputs);
        else
            memset(job->given + job->image->inputs, 1, job->image->outputs);
        for (int64_t k = 0; k < job->count; k++)
            rank_reset(job, &job->hosted[k]);
        for (int64_t k = 0; k < job->threads; k++)
            atomic_store(&job->worker[k].still, 0);
        job->crowded = spmd_job_crowded(job);
        here = here && may_run_here(job);
        for (int64_t k = 0; k < job->threads; k++)
            if (job->worker[k].sleeps && !here)
                spmd_core_choose(&job->worker[k]);
        job->active = job->threads;
        job->text.due = 0;
        atomic_store(&job->frames_wait, 0);
        job->frames_come = false;
        job->here = here;
        if (here) {
            job->run_here = job->run + 1;
            worker_begin(job->worker);
        }
        job->run++;
        if (!here)
            pthread_cond_broadcast(&job->go);
    }
    pthread_mutex_unlock(&job->lock);
    return busy ? SPMD_BUSY : SPMD_OK;
}

/* A failure is told at once, though a thread may still be inside a long compute phase. */
static int job_state(spmd_job *job)
{
    if (spmd_job_aborted(job))
        return SPMD_ABORTED;
    if (job->active > 0)
        return SPMD_RUNNING;
    return job->run > 0 ? SPMD_FINISHED : SPMD_IDLE;
}

int spmd_job_wait(spmd_job *job, int64_t timeout_ms)
{
    if (!job->arena)
        return SPMD_IDLE;
    int64_t end = spmd_now() + (timeout_ms < LONGEST_MS ? timeout_ms : LONGEST_MS) * 1000000;
    if (!here_run(job, end))
        spin_for_news(job);
    pthread_mutex_lock(&job->lock);
    int state = job_state(job);
    while (state == SPMD_RUNNING && !spmd_text_waits(&job->text) && !spmd_set_waits(job) &&
           !spmd_frames_wait(job)) {
        int64_t now = spmd_now();
        if (now >= end)
            break;
        int64_t until = end - now < NOTICE_NS ? end : now + NOTICE_NS;
        struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
        pthread_cond_timedwait(&job->news, &job->lock, &at);
        state = job_state(job);
    }
    pthread_mutex_unlock(&job->lock);
    return state;
}
