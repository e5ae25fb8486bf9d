/* Calls that process 0 makes and all others of its arena carry out. It writes what is to be done
 * into the arena; a worker of each of the others looks there while it has nothing to run, so that
 * no other thread has to be woken. States get their new values once all processes have run: process
 * 0 says so (`committed`), and the others look when the next order comes, or the job ends. */
#define _GNU_SOURCE
#include "parts.h"

#include <limits.h>
#include <linux/futex.h>
#include <sched.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOK_NS 20000000 /* who sleeps looks up after this: nobody wakes it when a job is aborted */
#define LOOKS 100        /* between two looks at the clock */
#define LONGEST_MS 1000000000

static void word_wake(_Atomic uint32_t *word)
{
    syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Until a word has another value, or the job is aborted, or a moment is over. */
static void word_wait(const spmd_job *job, _Atomic uint32_t *word, uint32_t value)
{
    const struct timespec look = {.tv_nsec = LOOK_NS};
    int64_t end = spmd_job_crowded(job) ? 0 : spmd_now() + SPMD_NEXT_NS;

    do {
        for (int k = 0; k < LOOKS; k++)
            if (atomic_load_explicit(word, memory_order_acquire) != value || spmd_job_aborted(job))
                return;
        sched_yield();
    } while (spmd_now() < end);
    syscall(SYS_futex, word, FUTEX_WAIT, value, &look, NULL, 0);
}

void spmd_job_lead(spmd_job *job, int64_t call)
{
    spmd_header *header = job->arena->header;

    atomic_store(&header->order, call);
    if (call != SPMD_LEAVE) {
        job->led += (uint32_t)(job->processes.count - 1);
        job->call_count++;
    }
    atomic_fetch_add(&header->orders, 1);
    word_wake(&header->orders);
}

int spmd_job_led(spmd_job *job, int64_t timeout_ms)
{
    _Atomic uint32_t *followed = &job->arena->header->followed;
    int64_t end = spmd_now() + (timeout_ms < LONGEST_MS ? timeout_ms : LONGEST_MS) * 1000000;

    for (;;) {
        if (spmd_job_aborted(job))
            return SPMD_ABORTED;
        uint32_t count = atomic_load_explicit(followed, memory_order_acquire);
        if (count == job->led)
            return SPMD_FINISHED;
        word_wait(job, followed, count);
        if (spmd_now() >= end)
            return SPMD_RUNNING;
    }
}

/* Where this process leads: what has run in all processes is now what they go on from. */
void spmd_call_commit(spmd_job *job)
{
    if (job->led)
        atomic_store(&job->arena->header->committed, job->call_count);
}

/* The call that has run here last gives states their new values, if it has succeeded everywhere. */
static void pending_end(spmd_job *job)
{
    const spmd_call *call = job->pending ? job->calls[job->call] : NULL;

    job->pending = false;
    if (call && atomic_load(&job->arena->header->committed) == job->call_count)
        spmd_job_replace(job, call->pair, call->pairs);
}

/* Begins what it is told to, or waits a moment for an order. The caller, a worker, holds the lock
 * of the job. */
void spmd_order_take(spmd_job *job)
{
    spmd_header *header = job->arena->header;
    bool told = atomic_load_explicit(&header->orders, memory_order_acquire) != job->heard;

    job->at_orders++;
    pthread_mutex_unlock(&job->lock);
    if (!told)
        word_wait(job, &header->orders, job->heard);
    bool runs = false, leaves = false;
    if (told)
        pending_end(job);
    if (told && !spmd_job_aborted(job)) {
        job->heard++;
        job->call = atomic_load(&header->order);
        leaves = job->call == SPMD_LEAVE;
        runs = !leaves;
        job->call_count += runs;
    }
    if (runs && spmd_call_start(job, job->calls[job->call]) != SPMD_OK)
        spmd_job_abort(job, 70, job->first, "a process cannot carry out a call of process 0");
    pthread_mutex_lock(&job->lock);
    job->at_orders--;
    if (spmd_job_aborted(job) || leaves) { /* an order that comes with an abort is none to leave */
        job->left = leaves;
        job->follows = false;
    }
    if (!job->follows)
        pthread_cond_broadcast(&job->news);
}

/* The last worker has finished the run of a call. */
void spmd_order_done(spmd_job *job)
{
    spmd_header *header = job->arena->header;

    pthread_mutex_lock(&job->lock);
    bool over = spmd_job_aborted(job);
    job->pending = !over;
    job->at_orders += !over;
    pthread_mutex_unlock(&job->lock);
    if (over)
        return;
    if (spmd_call_get(job, job->calls[job->call]) == SPMD_OK) {
        atomic_fetch_add(&header->followed, 1);
        word_wake(&header->followed);
    } else
        spmd_job_abort(job, 70, job->first, "a process cannot end a call of process 0");
    pthread_mutex_lock(&job->lock);
    job->at_orders--;
    pthread_mutex_unlock(&job->lock);
}

int spmd_job_follow(spmd_job *job, const spmd_call *const *calls, int64_t timeout_ms)
{
    int64_t end = spmd_now() + (timeout_ms < LONGEST_MS ? timeout_ms : LONGEST_MS) * 1000000;
    const struct timespec at = {.tv_sec = end / 1000000000, .tv_nsec = end % 1000000000};
    int state = SPMD_RUNNING;

    pthread_mutex_lock(&job->lock);
    if (!job->follows && !spmd_job_aborted(job) && !job->left) {
        job->calls = calls;
        job->follows = true;
        pthread_cond_broadcast(&job->go);
    }
    while (job->follows && !spmd_job_aborted(job) && !spmd_text_waits(&job->text) &&
           spmd_now() < end)
        pthread_cond_timedwait(&job->news, &job->lock, &at);
    if (job->at_orders == 0 && (!job->follows || spmd_job_aborted(job))) {
        pending_end(job);
        state = job->left ? SPMD_FINISHED : SPMD_ABORTED;
        job->left = job->follows = false;
    }
    pthread_mutex_unlock(&job->lock);
    return state;
}
