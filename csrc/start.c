/* A process in MPI_Init, or in MPI_Finalize, waits for the others, cannot be interrupted, and holds
 * the host language up meanwhile: a thread of its own says so when it takes long, and ends the
 * process at last. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
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

void spmd_say(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        return; /* nobody reads it */
}

static void *start_main(void *unused)
{
    pthread_mutex_lock(&start.lock);
    if (!start_over_within(start.given.warn_ms)) {
        spmd_say(start.given.warning);
        if (!start_over_within(start.given.end_ms - start.given.warn_ms)) {
            spmd_say(start.given.error);
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

/* ---- the end --------------------------------------------------------------------------------- */

#define TURN_NS 50000000
#define MS 1000000
#define LOST_SHARE 80 /* per cent of the limit: reported before it is over */

typedef struct spmd_leaver {
    int64_t pid, since; /* when it was first seen stopped, 0: it is not */
    char *warning, *error;
    bool warned, silent; /* silent: another process speaks of it */
} spmd_leaver;

static struct {
    spmd_leaver *of;
    int64_t count, before, limit, late;
    int code;
} finish;

/* true: a process before this one is there and is not stopped: it says what is to be said. */
static bool another_speaks(void)
{
    for (int64_t k = 0; k < finish.before; k++)
        if (!finish.of[k].since && kill((pid_t)finish.of[k].pid, 0) == 0)
            return true;
    return false;
}

/* A launcher that lets others live when one has failed would wait for the stopped one. First it
 * shall see this process end, whose exit code counts: a child without streams waits meanwhile. */
static void kill_later(int64_t process)
{
    const struct timespec moment = {.tv_sec = 1};

    if (syscall(SYS_clone, SIGCHLD, 0, 0, 0, 0) != 0)
        return;
    for (int stream = 0; stream < 3; stream++)
        close(stream);
    setsid();
    nanosleep(&moment, NULL);
    if (spmd_process_is_stopped(process))
        kill((pid_t)process, SIGKILL);
    _exit(0);
}

/* A PMIx server that loses several processes at once, all but the stopped one in MPI_Finalize, may
 * take one wait off its list twice and die. SIGTERM, which it sends to all, ends the stopped one
 * only; SIGKILL, a quarter of a second later, the rest. */
static void outlive(int number)
{
    if (getenv("PMIX_NAMESPACE"))
        signal(number, SIG_IGN);
}

static void *finish_main(void *unused)
{
    const struct timespec turn = {.tv_nsec = TURN_NS};

    for (;; nanosleep(&turn, NULL)) {
        int64_t now = spmd_now();
        for (int64_t k = 0; k < finish.count; k++) {
            spmd_leaver *one = &finish.of[k];
            bool stopped = spmd_process_is_stopped(one->pid);
            one->since = !stopped ? 0 : one->since ? one->since : now;
        }
        for (int64_t k = 0; k < finish.count; k++) {
            spmd_leaver *one = &finish.of[k];
            int64_t time = one->since ? now - one->since : 0;
            if (time > finish.limit / 2 && !one->warned) {
                one->warned = true;
                outlive(SIGTERM);
                one->silent = another_speaks();
                if (!one->silent)
                    spmd_say(one->warning);
            }
            if (time > finish.limit / 100 * LOST_SHARE + (one->silent ? finish.late : 0)) {
                if (!one->silent)
                    spmd_say(one->error);
                kill_later(one->pid);
                _exit(finish.code);
            }
        }
    }
    return unused;
}

/* Nothing is given back: the host language has ended when MPI_Finalize is called. */
int spmd_finish_begin(const spmd_finish *given)
{
    sigset_t all, before;
    pthread_t thread;

    finish.of = calloc((size_t)given->processes + 1, sizeof *finish.of);
    if (!finish.of)
        return SPMD_NO_MEMORY;
    for (int64_t k = 0; k < given->processes; k++) {
        spmd_leaver *one = &finish.of[k];
        one->pid = given->pid[k];
        one->warning = strdup(given->warning[k]);
        one->error = strdup(given->error[k]);
        if (!one->warning || !one->error)
            return SPMD_NO_MEMORY;
    }
    finish.count = given->processes;
    finish.before = given->before;
    finish.limit = given->limit_ms * MS;
    finish.late = given->late_ms * MS;
    finish.code = (int)given->code;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = pthread_create(&thread, NULL, finish_main, NULL);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    return failed ? SPMD_SYSTEM : SPMD_OK;
}
