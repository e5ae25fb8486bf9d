/* Signs of life between hosts. The first process of every host sends beats to the first process of
 * all, the centre, and hears from it; a beat also carries a failure that all must know of, and how
 * long somebody has waited. A host that is late although its own processes say nothing is lost. */
#define _GNU_SOURCE
#include "parts.h"

#include <stdlib.h>
#include <time.h>

#define LOST_SHARE 80  /* per cent of the limit: reported before it is over */
#define MATES_SHARE 10 /* more, where other processes of that host would say more */
#define BEAT_TURNS 2   /* between two beats */
#define WATCH_TAG 0
#define MS 1000000
#define TELL_NS (250 * MS) /* two turns of the others */
#define LOCK_NS (20 * MS) /* for MPI: a thread may be caught in it, with the lock */

typedef struct spmd_beat {
    int64_t waiting; /* as in spmd_signs */
    int64_t operation, superstep, site, position; /* of the sender's first rank */
    int64_t failed, leaves;
    int64_t reach[SPMD_FEEDS_SEEN], ends[SPMD_FEEDS_SEEN]; /* of feeds, as in spmd_header */
    spmd_failure failure;
} spmd_beat;

struct spmd_far {
    int64_t process;        /* the first one of that host */
    int64_t heard;          /* when */
    spmd_beat last, coming; /* from it; `coming` is MPI's while I listen */
    spmd_beat sent;         /* to it; MPI's while it is busy */
    spmd_handle request, hearing;
    bool listens, busy, late;
    bool told; /* it knows of the failure */
    bool left; /* it has my last beat */
    bool alone; /* nobody shares its host, and would notice sooner */
};

static int64_t first_process(const spmd_job *job, int64_t host)
{
    int64_t process = 0;
    while (job->processes.host[process] != host)
        process++;
    return process;
}

/* The first process of a host speaks with the centre; the centre with all of them. */
bool spmd_fars_open(spmd_job *job, spmd_fars *fars)
{
    const spmd_processes *all = &job->processes;
    int64_t mine = all->host[all->number];

    if (all->number != first_process(job, mine))
        return true;
    fars->far = calloc((size_t)all->count, sizeof *fars->far);
    int64_t *seen = calloc((size_t)all->count, sizeof *seen); /* 1 + where a host's far is */
    for (int64_t p = 0; fars->far && seen && p < all->count; p++) {
        int64_t host = all->host[p];
        if (host == mine || (mine != 0 && host != 0))
            continue;
        if (seen[host])
            fars->far[seen[host] - 1].alone = false;
        else {
            fars->far[fars->count] = (spmd_far){
                .process = p, .last.site = SPMD_NOT_RUNNING, .alone = true};
            seen[host] = ++fars->count;
        }
    }
    bool fine = fars->far && seen;
    free(seen);
    return fine;
}

/* What MPI may still write to, or read from, stays. */
void spmd_fars_free(spmd_fars *fars)
{
    bool busy = false;
    for (int64_t k = 0; k < fars->count; k++)
        busy |= fars->far[k].busy || fars->far[k].listens;
    if (!busy)
        free(fars->far);
}

void spmd_fars_begin(spmd_fars *fars, int64_t now)
{
    for (int64_t k = 0; k < fars->count; k++)
        fars->far[k].heard = now;
}

/* A peer that was stopped inside MPI can hold up a thread of ours in there. */
static bool mpi_enter(spmd_job *job)
{
    int64_t until = spmd_now() + LOCK_NS;
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    return pthread_mutex_clocklock(&job->mpi_lock, CLOCK_MONOTONIC, &at) == 0;
}

/* Takes what has come, and listens for the next one. */
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
        far->listens = false;
        spmd_feeds_seen(job, far->last.reach, far->last.ends);
        if (far->last.failed) {
            far->told = true;
            spmd_arena_abort(job->arena, &far->last.failure);
        }
    }
    if (!far->listens && !far->last.leaves)
        far->listens = spmd_mpi_receive(job, &far->coming, sizeof far->coming, (int)far->process,
                                        WATCH_TAG, &far->hearing, &error);
    return complete;
}

/* The longest wait on all hosts but one, as far as is known here. */
static int64_t waiting_beside(const spmd_job *job, const spmd_fars *fars, const spmd_far *beside)
{
    int64_t longest = spmd_signs_waiting(job);
    for (int64_t k = 0; k < fars->count; k++)
        if (&fars->far[k] != beside && fars->far[k].last.waiting > longest)
            longest = fars->far[k].last.waiting;
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
static bool far_tell(spmd_job *job, const spmd_fars *fars, spmd_far *far, bool leaves)
{
    spmd_mpi_error error;
    spmd_rank_state state;

    if (!far_idle(job, far))
        return false;
    spmd_job_watch(job, job->first, &state);
    far->sent = (spmd_beat){.waiting = waiting_beside(job, fars, far),
                            .operation = state.operation,
                            .superstep = state.superstep,
                            .site = spmd_job_runs(job) ? state.site : SPMD_NOT_RUNNING,
                            .position = state.position,
                            .leaves = leaves};
    const spmd_header *words = spmd_feeds_words(job);
    for (int k = 0; k < SPMD_FEEDS_SEEN; k++) {
        far->sent.reach[k] = atomic_load(&words->reach[k]);
        far->sent.ends[k] = atomic_load(&words->ends[k]);
    }
    if (spmd_job_aborted(job) && !far->told) {
        far->sent.failed = spmd_job_failure(job, &far->sent.failure);
        far->told = true;
    }
    far->busy = spmd_mpi_send(job, false, &far->sent, sizeof far->sent, (int)far->process,
                              WATCH_TAG, &far->request, &error);
    return far->busy;
}

static bool far_watch(spmd_job *job, spmd_far *far, int64_t limit, int64_t now,
                      spmd_notice *notice)
{
    const spmd_processes *all = &job->processes;
    int64_t silent = now - far->heard;
    /* If it is the centre that is lost, the next host says so; later ones only if that is lost. */
    int64_t order = all->host[all->number];
    int64_t patience = limit / 100 * (LOST_SHARE + (far->alone ? 0 : MATES_SHARE)) +
                       (order > 1 ? limit * order : 0);

    if (far->last.leaves || silent < limit / 2)
        return false;
    notice->process = far->process;
    notice->rank = all->first[far->process];
    notice->ranks = all->first[far->process + 1] - notice->rank;
    notice->operation = far->last.operation;
    notice->superstep = far->last.superstep;
    notice->site = far->last.site;
    notice->position = far->last.position;
    notice->milliseconds = silent / MS;
    notice->cause = SPMD_SILENT;
    if (silent > patience)
        return spmd_watch_lost(job, notice, SPMD_SILENT);
    if (far->late || order > 1 || !far->alone)
        return false;
    far->late = true;
    notice->kind = SPMD_NOTICE_LATE;
    return true;
}

/* After a failure that all know of, nothing may be asked of MPI: whoever ends the job closes
 * connections, and an MPI that sees that ends the job once more, which launchers do not expect. */
static bool all_told(spmd_job *job, const spmd_fars *fars)
{
    bool told = spmd_job_aborted(job);
    for (int64_t k = 0; k < fars->count; k++)
        told &= fars->far[k].told && !fars->far[k].busy;
    return told;
}

static void fars_exchange(spmd_job *job, spmd_fars *fars, int64_t turn)
{
    bool aborted = spmd_job_aborted(job);
    int64_t waiting = 0, now = spmd_now();

    if (all_told(job, fars) || !mpi_enter(job))
        return;
    for (int64_t k = 0; k < fars->count; k++) {
        spmd_far *far = &fars->far[k];
        while (far_hear(job, far, now))
            continue;
        if (far->last.waiting > waiting)
            waiting = far->last.waiting;
        if (aborted && far->told)
            far_idle(job, far);
        else if (turn % BEAT_TURNS == 1 || aborted)
            far_tell(job, fars, far, false);
    }
    pthread_mutex_unlock(&job->mpi_lock);
    atomic_store(&spmd_job_signs(job)->waiting, waiting);
}

/* true: there is something to say. limit 0: carry messages, accuse nobody. */
bool spmd_fars_watch(spmd_job *job, spmd_fars *fars, int64_t turn, int64_t limit,
                     spmd_notice *notice)
{
    if (fars->count == 0)
        return false;
    fars_exchange(job, fars, turn);
    int64_t now = spmd_now();
    for (int64_t k = 0; limit && !spmd_job_aborted(job) && k < fars->count; k++)
        if (far_watch(job, &fars->far[k], limit, now, notice))
            return true;
    return false;
}

/* Before this process ends a job that has failed: the other hosts hear of it, and stop. */
void spmd_fars_tell(spmd_job *job, spmd_fars *fars)
{
    const struct timespec moment = {.tv_nsec = MS}, turn = {.tv_nsec = TELL_NS};
    int64_t end = spmd_now() + TELL_NS;

    while (!all_told(job, fars) && spmd_now() < end) {
        fars_exchange(job, fars, 0);
        nanosleep(&moment, NULL);
    }
    nanosleep(&turn, NULL);
}

/* No beat may be on its way when the job's communicator is given up: the last one says that it is
 * the last, and everybody waits for the other's. */
void spmd_fars_leave(spmd_job *job, spmd_fars *fars, int64_t limit)
{
    const struct timespec moment = {.tv_nsec = MS / 5};
    int64_t end = spmd_now() + limit, left = fars->count;

    while (left > 0 && !spmd_job_aborted(job) && spmd_now() < end) {
        if (!mpi_enter(job))
            continue;
        left = 0;
        for (int64_t k = 0; k < fars->count; k++) {
            spmd_far *far = &fars->far[k];
            while (far_hear(job, far, spmd_now()))
                continue;
            far->left = far->left || far_tell(job, fars, far, true);
            left += !far->left || !far_idle(job, far) || !far->last.leaves;
        }
        pthread_mutex_unlock(&job->mpi_lock);
        if (left > 0)
            nanosleep(&moment, NULL);
    }
}
