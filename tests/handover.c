/* How fast one process can hand megabytes to another: the least that feeding inside a host costs.
 * The first copies each out of an array of 64 into one of SLOTS places that both share, the second
 * copies it from there. Each line of standard input is how many; seconds are the answer. */
#define _GNU_SOURCE
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#define MEGABYTE (1L << 20)
#define SLOTS 8
#define GIVEN 64

/* Each count in a line of a cache of its own. */
typedef struct shared {
    _Alignas(64) _Atomic long asked;
    _Alignas(64) _Atomic long put;
    _Alignas(64) _Atomic long taken;
} shared;

static void *memory(long bytes)
{
    void *found = mmap(NULL, (size_t)bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                       -1, 0);
    if (found == MAP_FAILED)
        exit(1);
    memset(found, 0, (size_t)bytes); /* taken now */
    return found;
}

static void produce(shared *at, char *slots)
{
    char *given = malloc(GIVEN * MEGABYTE);
    if (!given)
        exit(1);
    memset(given, 1, GIVEN * MEGABYTE);
    for (long k = 0;; k++) {
        while (atomic_load(&at->asked) <= k || k - atomic_load(&at->taken) >= SLOTS)
            sched_yield();
        memcpy(slots + k % SLOTS * MEGABYTE, given + k % GIVEN * MEGABYTE, MEGABYTE);
        atomic_store(&at->put, k + 1);
    }
}

int main(void)
{
    shared *at = memory(sizeof *at);
    char *slots = memory(SLOTS * MEGABYTE), *into = malloc(MEGABYTE);
    long n, k = 0;
    if (!into)
        return 1;
    if (!fork()) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        produce(at, slots);
    }
    while (scanf("%ld", &n) == 1) {
        struct timespec begin, end;
        clock_gettime(CLOCK_MONOTONIC, &begin);
        atomic_fetch_add(&at->asked, n);
        for (long stop = k + n; k < stop; k++) {
            while (atomic_load(&at->put) <= k)
                sched_yield();
            memcpy(into, slots + k % SLOTS * MEGABYTE, MEGABYTE);
            atomic_store(&at->taken, k + 1);
        }
        clock_gettime(CLOCK_MONOTONIC, &end);
        printf("%.9f\n", (double)(end.tv_sec - begin.tv_sec) +
                             (double)(end.tv_nsec - begin.tv_nsec) * 1e-9);
        fflush(stdout);
    }
    return 0;
}
