/* A process in MPI_Init waits for the others, cannot be interrupted, and holds the host language up
 * meanwhile: a thread of its own says so when it takes long, and ends the process at last. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static struct {
    pthread_mutex_t lock;
    pthread_cond_t come;
    pthread_t thread;
    bool runs, over;
    spmd_start given;
} start = {.lock = PTHREAD_MUTEX_INITIALIZER};

/* true: everybody has come, before so many milliseconds have passed. */
static bool start_over_within(int64_t milliseconds)
{
    int64_t until = spmd_now() + milliseconds * 1000000;
    struct timespec at = {.tv_sec = until / 1000000000, .tv_nsec = until % 1000000000};
    while (!start.over && pthread_cond_timedwait(&start.come, &start.lock, &at) != ETIMEDOUT)
        continue;
    return start.over;
}

static void say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* nobody reads it */
}

static void *start_main(void *unused)
{
    pthread_mutex_lock(&start.lock);
    if (!start_over_within(start.given.warn_ms)) {
        say(start.given.warning);
        if (!start_over_within(start.given.end_ms - start.given.warn_ms)) {
            say(start.given.error);
            _exit((int)start.given.code);
        }
    }
    pthread_mutex_unlock(&start.lock);
    return unused;
}

int spmd_start_begin(const spmd_start *given)
{
    pthread_condattr_t monotonic;
    sigset_t all, before;

    if (start.runs)
        return SPMD_BUSY;
    start.given = *given;
    start.over = false;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&start.come, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all); /* signals are for the thread that waits */
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&start.thread, NULL, start_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    start.runs = failed == 0;
    return start.runs ? SPMD_OK : SPMD_SYSTEM;
}

void spmd_start_end(void)
{
    if (!start.runs)
        return;
    pthread_mutex_lock(&start.lock);
    start.over = true;
    pthread_cond_signal(&start.come);
    pthread_mutex_unlock(&start.lock);
    pthread_join(start.thread, NULL);
    pthread_cond_destroy(&start.come);
    start.runs = false;
}
