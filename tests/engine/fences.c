/* Two threads meet, again and again; then each writes a word of its own and reads the other's. If a
 * fence stands between, or the write is sequentially consistent, at least one of them sees what the
 * other one wrote. Built with hooks.h, as the engine for the stress test is.
 * Arguments: "fence" or "store", seconds, one delay in so many steps, a defect of delays.h. Ends as
 * soon as neither has seen anything: exit code 1. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "delays.h"

enum { LINE = 64, SKEW = 256 };
enum { MEETINGS = 1000 }; /* between two looks at the clock */
enum { LOOKS = 2000 };    /* for the other one, before its turn on a core may have to come */

static struct side {
    _Alignas(LINE) _Atomic uint64_t word;
    _Alignas(LINE) uint64_t come; /* to so many meetings */
    bool missed;
} side[2];
static bool with_fence;
static uint64_t end = UINT64_MAX; /* the last meeting */

/* Not hooked, and so not what is tried. */
static void meet(int me, uint64_t number)
{
    __atomic_store_n(&side[me].come, number, __ATOMIC_SEQ_CST);
    for (int k = 0; __atomic_load_n(&side[!me].come, __ATOMIC_SEQ_CST) < number; k++)
        if (k > LOOKS)
            sched_yield();
}

static void write_and_read(int me, uint64_t number)
{
    if (with_fence) {
        atomic_store_explicit(&side[me].word, number, memory_order_relaxed);
        atomic_thread_fence(memory_order_seq_cst);
    } else
        atomic_store(&side[me].word, number);
    side[me].missed = atomic_load(&side[!me].word) < number;
}

static void *other_main(void *unused)
{
    for (uint64_t number = 1; number <= __atomic_load_n(&end, __ATOMIC_SEQ_CST); number++) {
        meet(1, 2 * number - 1);
        write_and_read(1, number);
        hook_flush();
        meet(1, 2 * number);
    }
    return unused;
}

static double now(void)
{
    struct timespec time;
    clock_gettime(CLOCK_MONOTONIC, &time);
    return (double)time.tv_sec + 1e-9 * (double)time.tv_nsec;
}

int main(int count, char **argument)
{
    if (count < 5)
        return 2;
    with_fence = strcmp(argument[1], "fence") == 0;
    double until = now() + atof(argument[2]);
    delays_set(1, strtoull(argument[3], NULL, 10), (enum delays_defect)atoi(argument[4]));
    pthread_t other;
    uint64_t number = 1;
    bool neither = false;
    if (pthread_create(&other, NULL, other_main, NULL) != 0)
        return 2;
    for (; number <= end; number++) {
        if (neither || (number % MEETINGS == 0 && now() > until))
            __atomic_store_n(&end, number, __ATOMIC_SEQ_CST);
        meet(0, 2 * number - 1);
        for (volatile uint64_t k = 0; k < number % SKEW; k++)
            ;
        write_and_read(0, number);
        hook_flush();
        meet(0, 2 * number);
        neither |= side[0].missed && side[1].missed;
    }
    pthread_join(other, NULL);
    printf("%s in %llu meetings\n", neither ? "a fence that was none" : "nothing found",
           (unsigned long long)(number - 1));
    return neither;
}
