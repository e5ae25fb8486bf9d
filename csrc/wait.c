/* How a thread waits when none of its ranks can go on. While there is a core for every thread it
 * looks again and again for a while; then it sleeps at its bell. Whoever lets a rank go on rings
 * the bell of the thread that hosts it, if that one sleeps.
 *
 * Sleeping: say so, look once more, then sleep unless the bell has rung since. Letting go on: write
 * what is waited for, then look who sleeps. The two fences between them make sure that one of the
 * two sees the other (Dekker). tests/engine/test_bell.py tries every interleaving of a model. */
#define _GNU_SOURCE
#include "parts.h"

#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

/* What waiting costs: `bench barrier`, with more ranks than cores and with fewer; what a wake or a
 * yield costs: `bench floor switch-futex switch-yield`; where MPI is asked: `--transport mpi`. */
/* SPMD_NEXT_NS (parts.h): longer than a short call of another job and being woken take together, or
 * two jobs that are called by turns would wake their threads for every call. */
#define SPIN_NS 200000    /* longer than it takes to be woken */
#define SPIN_FED_NS 5000  /* for a batch: whoever makes it and brings it may need this core */
#define LOOK_AROUND_NS 2000 /* after this a spinning thread asks whether it shares its core */
#define YIELDS 8          /* where threads share cores */
#define LOOK_NS 20000000  /* a sleeper looks up after this, for what rings no bell */
#define POLL_SHARE 8      /* of the time waited so far: the delay that asking MPI adds */
#define POLL_NS 1000000
#define YIELD_NS 5000     /* among many processes a yield costs more than a short sleep */

/* The threads of this host do not all have a core. Asked once for every run, because all members
 * of an exchange must have one answer. */
bool spmd_job_crowded(const spmd_job *job)
{
    int64_t threads = atomic_load_explicit(&job->arena->header->threads, memory_order_relaxed);
    return threads + job->strangers > job->cores;
}

static spmd_bell *rank_bell(const spmd_job *job, int64_t rank)
{
    const spmd_record *record = spmd_job_record(job, rank);
    int64_t first = atomic_load_explicit(&record->bell_at, memory_order_relaxed);
    return &spmd_job_record(job, first)->bell;
}

static void bell_ring(spmd_bell *bell)
{
    if (!atomic_load_explicit(&bell->sleeps, memory_order_relaxed))
        return;
    atomic_fetch_add_explicit(&bell->rung, 1, memory_order_release);
    syscall(SYS_futex, &bell->rung, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* After a word was written that all of these, but me, may wait for; beginning next to me. */
void spmd_span_ring(const spmd_hosted *me, const spmd_exchange *exchange, spmd_span span)
{
    int64_t count = span.end - span.begin, own = me->team->position;
    if (count == 0)
        return;
    atomic_thread_fence(memory_order_seq_cst);
    for (int64_t k = 0; k < count; k++) {
        int64_t place = spmd_span_place(span, own, k);
        if (place != own)
            bell_ring(rank_bell(
                me->job, spmd_member_rank(exchange, spmd_team_member(me->team, place))));
    }
}

void spmd_rank_ring(const spmd_job *job, int64_t rank)
{
    atomic_thread_fence(memory_order_seq_cst);
    bell_ring(rank_bell(job, rank));
}

/* All threads of the arena look up. */
void spmd_job_ring(const spmd_job *job)
{
    atomic_thread_fence(memory_order_seq_cst);
    for (int64_t rank = job->lowest; rank <= job->highest; rank++)
        bell_ring(&spmd_job_record(job, rank)->bell);
}

/* Something has moved, or the run is over. */
void spmd_wait_over(spmd_worker *worker)
{
    if (worker->sleepy)
        atomic_store_explicit(&worker->bell->sleeps, 0, memory_order_relaxed);
    worker->sleepy = false;
    worker->idle_since = 0;
    worker->yields = 0;
}

static int64_t waited_since(spmd_worker *worker, int64_t now)
{
    if (!worker->idle_since)
        worker->idle_since = now;
    return now - worker->idle_since;
}

/* Where MPI must be asked again and again: ever more seldom. */
static void poll_pause(spmd_worker *worker)
{
    int64_t waited = waited_since(worker, spmd_now());
    if (!worker->job->crowded && waited < SPIN_NS)
        return;
    if (waited < YIELD_NS) {
        sched_yield();
        return;
    }
    int64_t sleep = waited / POLL_SHARE < POLL_NS ? waited / POLL_SHARE : POLL_NS;
    nanosleep(&(struct timespec){.tv_nsec = sleep}, NULL);
}

/* While there is a core for every thread, a waiting one looks again at once, for SPIN_NS. */
static bool may_spin(spmd_worker *worker)
{
    int64_t now = spmd_now();
    int64_t waited = waited_since(worker, now);
    bool shared = waited > LOOK_AROUND_NS && spmd_core_shared(worker, now);

    worker->spins = now < worker->shared_until ? 0 : worker->most_spins;
    return !shared && waited < SPIN_NS &&
           (waited < SPIN_FED_NS || !spmd_job_starved(worker->job));
}

/* After a sweep in which none of the worker's ranks got further. Where threads share a core, one
 * that yields may be chosen again and again, as long as it has used less time than the other: a
 * few yields, then sleep. */
void spmd_wait(spmd_worker *worker)
{
    const spmd_job *job = worker->job;
    const struct timespec look = {.tv_nsec = LOOK_NS};

    if (worker->sleepy) {
        syscall(SYS_futex, &worker->bell->rung, FUTEX_WAIT, worker->heard, &look, NULL, 0);
        worker->heard = atomic_load_explicit(&worker->bell->rung, memory_order_acquire);
        return;
    }
    if (job->parted) {
        poll_pause(worker);
        return;
    }
    if (!job->crowded && may_spin(worker))
        return;
    bool shared = job->crowded || worker->shared_until > worker->idle_since;
    if (shared && worker->yields++ < YIELDS) {
        sched_yield();
        return;
    }
    worker->heard = atomic_load_explicit(&worker->bell->rung, memory_order_acquire);
    atomic_store_explicit(&worker->bell->sleeps, 1, memory_order_relaxed);
    atomic_thread_fence(memory_order_seq_cst);
    worker->sleepy = true; /* after one more sweep */
}
