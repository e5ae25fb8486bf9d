/* Which core a thread runs on. The scheduler often wakes two threads on one core, though another is
 * free, and moves one of them only after milliseconds. So each is woken on the core that it had
 * last, if no other thread of the job has it, and may go where the scheduler wants from then on.
 *
 * A thread signs the core that it runs on with the first of its ranks, when it begins and while it
 * waits. Who finds another's signature shares the core, and goes to one that nobody has signed. */
#define _GNU_SOURCE
#include "parts.h"

#include <sched.h>

#define SHARED_NS 1000000 /* who was found to share its core is believed to for this long */
/* A thread that has to move again and again shares the machine with other programs: it moves ever
 * more seldom. */
#define MOVE_NS 1000000
#define SELDOM_NS 1000000000
#define AGAIN 16 /* of the pause before: within it, moving has not helped */

_Static_assert(sizeof(cpu_set_t) == sizeof(spmd_cores), "a mask of cores");

static _Atomic int32_t *signature(const spmd_worker *worker, int64_t core)
{
    return &worker->job->arena->header->core[core];
}

static int32_t name(const spmd_worker *worker)
{
    return (int32_t)worker->job->hosted[worker->first].record->rank.index + 1;
}

/* Takes back the signature on the core before. */
static void core_sign(spmd_worker *worker, int64_t core)
{
    int32_t me = name(worker);
    if (worker->core >= 0 && worker->core != core)
        atomic_compare_exchange_strong(signature(worker, worker->core), &me, 0);
    atomic_store_explicit(signature(worker, core), name(worker), memory_order_relaxed);
    worker->core = core;
}

/* The core that the thread had last, if it still is its own, or the first that nobody has signed;
 * -1: there is none. */
static int64_t core_free(const spmd_worker *worker, const cpu_set_t *allowed)
{
    int64_t last = worker->core;
    int32_t me = name(worker);
    if (last >= 0 && CPU_ISSET((size_t)last, allowed) && atomic_load(signature(worker, last)) == me)
        return last;
    for (int64_t core = 0; core < SPMD_CORES; core++)
        if (CPU_ISSET((size_t)core, allowed) && !atomic_load(signature(worker, core)))
            return core;
    return -1;
}

/* Sets where a thread may run to one core, and keeps where it might before. */
static bool core_hold(spmd_worker *worker)
{
    cpu_set_t *allowed = (cpu_set_t *)&worker->allowed, one;
    if (pthread_getaffinity_np(worker->thread, sizeof *allowed, allowed) != 0 ||
        CPU_COUNT(allowed) < 2)
        return false;
    int64_t core = core_free(worker, allowed);
    if (core < 0)
        return false;
    CPU_ZERO(&one);
    CPU_SET((size_t)core, &one);
    if (pthread_setaffinity_np(worker->thread, sizeof one, &one) != 0)
        return false;
    core_sign(worker, core);
    return true;
}

/* Before a thread is woken for a run, by another one. */
void spmd_core_choose(spmd_worker *worker)
{
    spmd_job *job = worker->job;
    bool others = atomic_load_explicit(&job->arena->header->threads, memory_order_relaxed) > 1;
    worker->held = others && !job->crowded && worker->core >= 0 && core_hold(worker);
}

static void core_release(const spmd_worker *worker)
{
    pthread_setaffinity_np(worker->thread, sizeof worker->allowed,
                           (const cpu_set_t *)&worker->allowed);
}

/* The thread itself, at the begin of a run. */
void spmd_core_begin(spmd_worker *worker)
{
    if (worker->held)
        core_release(worker);
    worker->held = false;
    if (!worker->job->crowded)
        spmd_core_shared(worker, spmd_now());
}

/* Goes to a core that nobody has signed. false: there is none, or it was tried not long ago. */
static bool core_leave(spmd_worker *worker, int64_t now)
{
    if (now - worker->moved < worker->pause)
        return false;
    bool again = now - worker->moved < AGAIN * worker->pause;
    worker->pause = again ? 2 * worker->pause : MOVE_NS;
    worker->pause = worker->pause < SELDOM_NS ? worker->pause : SELDOM_NS;
    worker->moved = now;
    if (worker->core == sched_getcpu())
        worker->core = -1; /* it is the other's */
    if (!core_hold(worker))
        return false;
    core_release(worker);
    return true;
}

/* Whether another thread of this job is on my core, and I can't leave it: while I spin, whom I wait
 * for cannot run. */
bool spmd_core_shared(spmd_worker *worker, int64_t now)
{
    int64_t core = sched_getcpu();
    if (core < 0 || core >= SPMD_CORES) /* unknown, or beyond those that are looked after */
        return false;
    int32_t found = atomic_load_explicit(signature(worker, core), memory_order_relaxed);
    if (found && found != name(worker)) {
        if (core_leave(worker, now))
            return false;
        worker->shared_until = now + SHARED_NS;
    }
    if (found != name(worker))
        core_sign(worker, core);
    return now < worker->shared_until;
}
