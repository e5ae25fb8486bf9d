/* Calls that the thread which waits for them makes itself, between calls that the worker makes, of
 * several threads that take turns; and aborts by a thread of its own meanwhile. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>

#include "here.h"

enum { ROWS = 11, COLUMNS = 7, RANKS = 4, CALLERS = 3, CALLS = 400, ABORTS = 100 };

static const int64_t size[] = {2, 2, 1}, scalar[] = {ROWS, COLUMNS, 0};
static int64_t input[ROWS][COLUMNS], output[ROWS][COLUMNS];
static const int64_t extent[] = {ROWS, COLUMNS}, stride[] = {COLUMNS * 8, 8};

#define GLOBAL(array)                                                                              \
    {                                                                                              \
        .base = (char *)(array), .dims = 2, .shape = extent, .stride = stride, .size = 8           \
    }

static const spmd_transfer put = {.array = 0, .rank = SPMD_EVERY_RANK, .global = GLOBAL(input)};
static const spmd_transfer get = {.array = 1, .rank = SPMD_EVERY_RANK, .global = GLOBAL(output)};
static const uint8_t given[] = {1, 1};
static const spmd_call call = {
    .scalar = scalar, .given = given, .put = &put, .puts = 1, .get = &get, .gets = 1};

static spmd_job *job_new(const spmd_image *image, spmd_arena **arena)
{
    const spmd_settings settings = {.image = image, .ranks = RANKS, .size = size, .scalar = scalar,
                                    .scalars = 3, .count = RANKS, .threads = 1};
    spmd_job *job = NULL;

    if (spmd_job_new(&settings, &job) != SPMD_OK ||
        spmd_arena_new(spmd_job_bytes(job), 0, arena) != SPMD_OK ||
        spmd_job_load(job, *arena) != SPMD_OK)
        exit(1);
    return job;
}

/* The state that a call ends in. It looks up again and again where it is `hasty`. */
static int make(spmd_job *job, bool here, bool hasty)
{
    spmd_call mine = call;
    int state;

    mine.here = here;
    if (spmd_call_start(job, &mine) != SPMD_OK)
        return SPMD_ABORTED;
    do
        state = spmd_job_wait(job, hasty ? 0 : 1000);
    while (state == SPMD_RUNNING);
    if (state == SPMD_FINISHED && spmd_call_finish(job, &mine) != SPMD_OK)
        return SPMD_ABORTED;
    return state;
}

static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER; /* of a call, as the host language has it */

typedef struct caller {
    spmd_job *job;
    pthread_t thread;
    int64_t number, wrong;
} caller;

static void *calls_make(void *argument)
{
    caller *me = argument;
    for (int64_t k = 0; k < CALLS; k++) {
        pthread_mutex_lock(&turn);
        for (int64_t e = 0; e < ROWS * COLUMNS; e++)
            input[e / COLUMNS][e % COLUMNS] = me->number + k + e;
        me->wrong += make(me->job, (k + me->number) % 3 != 0, k % 5 == 0) != SPMD_FINISHED;
        for (int64_t e = 0; e < ROWS * COLUMNS; e++)
            me->wrong += output[e / COLUMNS][e % COLUMNS] != 2 * (me->number + k + e);
        pthread_mutex_unlock(&turn);
    }
    return NULL;
}

static void *abort_make(void *argument)
{
    spmd_job_abort(argument, 75, -1, "another thread ends it");
    return NULL;
}

/* A call that is aborted before, while or after it runs; then the job may be freed. */
static int64_t abort_check(const spmd_image *image, bool here)
{
    spmd_arena *arena;
    spmd_job *job = job_new(image, &arena);
    pthread_t other;
    int64_t wrong = 0;

    wrong += make(job, here, false) != SPMD_FINISHED;
    pthread_create(&other, NULL, abort_make, job);
    for (int state = SPMD_FINISHED; state != SPMD_ABORTED;)
        state = make(job, here, true);
    pthread_join(other, NULL);
    wrong += spmd_job_free(job) != SPMD_OK;
    spmd_arena_free(arena);
    return wrong;
}

int64_t check_here(const spmd_image *image)
{
    spmd_arena *arena;
    spmd_job *job = job_new(image, &arena);
    caller callers[CALLERS];
    int64_t wrong = 0;

    for (int k = 0; k < CALLERS; k++) {
        callers[k] = (caller){.job = job, .number = k};
        pthread_create(&callers[k].thread, NULL, calls_make, &callers[k]);
    }
    for (int k = 0; k < CALLERS; k++) {
        pthread_join(callers[k].thread, NULL);
        wrong += callers[k].wrong;
    }
    wrong += spmd_job_free(job) != SPMD_OK;
    spmd_arena_free(arena);
    for (int k = 0; k < ABORTS; k++)
        wrong += abort_check(image, k % 2 == 0);
    if (wrong)
        fprintf(stderr, "calls made where they are waited for: %lld wrong\n", (long long)wrong);
    return wrong;
}
