/* Three processes of a job, played by one, of which the first leads calls and the others follow. */
#define _GNU_SOURCE
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

#include "led.h"

enum { ROWS = 11, COLUMNS = 7, RANKS = 4, PROCESSES = 3, CALLS = 300, RUNS = 100 };

static const int64_t first_rank[] = {0, 1, 2, RANKS}, zeros[PROCESSES] = {0};
static const int64_t size[] = {2, 2, 1}, scalar[] = {ROWS, COLUMNS, 0};
static int64_t input[ROWS][COLUMNS], output[ROWS][COLUMNS];
static const int64_t extent[] = {ROWS, COLUMNS}, stride[] = {COLUMNS * 8, 8};

#define GLOBAL(array)                                                                              \
    {                                                                                              \
        .base = (char *)(array), .dims = 2, .shape = extent, .stride = stride, .size = 8           \
    }

/* The first call gives its input, the second one does not. */
static const spmd_transfer put = {.array = 0, .rank = SPMD_EVERY_RANK, .global = GLOBAL(input)};
static const spmd_transfer get = {.array = 1, .rank = SPMD_EVERY_RANK, .global = GLOBAL(output)};
static const uint8_t given[][2] = {{1, 1}, {0, 1}}; /* the input, then: the output is wanted */
static const spmd_call call[] = {
    {.scalar = scalar, .given = given[0], .put = &put, .puts = 1, .get = &get, .gets = 1},
    {.scalar = scalar, .given = given[1], .get = &get, .gets = 1},
};
static const spmd_call *const calls[] = {&call[0], &call[1]};

static spmd_job *job_new(const spmd_image *image, int64_t number)
{
    const spmd_processes processes = {.count = PROCESSES, .number = number, .first = first_rank,
                                      .arena = zeros, .host = zeros};
    const spmd_settings settings = {
        .image = image, .ranks = RANKS, .size = size, .scalar = scalar, .scalars = 3,
        .first = first_rank[number], .count = first_rank[number + 1] - first_rank[number],
        .threads = 2, .processes = &processes,
    };
    spmd_job *job = NULL;
    return spmd_job_new(&settings, &job) == SPMD_OK ? job : NULL;
}

typedef struct follower {
    spmd_job *job;
    pthread_t thread;
    int state, wrong;
} follower;

/* A run that all processes begin of themselves. */
static int run(spmd_job *job)
{
    int state;
    if (spmd_job_start(job, given[1]) != SPMD_OK)
        return SPMD_ABORTED;
    do
        state = spmd_job_wait(job, 1000);
    while (state == SPMD_RUNNING);
    return state;
}

static void *follow(void *argument)
{
    follower *me = argument;
    do
        me->state = spmd_job_follow(me->job, calls, 5);
    while (me->state == SPMD_RUNNING);
    return NULL;
}

static pthread_barrier_t all_left;

/* Follows as soon as a run of its own is over: that one is no call, and nobody waits for it. */
static void *run_and_follow(void *argument)
{
    follower *me = argument;
    for (int k = 0; k < RUNS; k++) {
        me->wrong += run(me->job) != SPMD_FINISHED;
        follow(me);
        me->wrong += me->state != SPMD_FINISHED;
        pthread_barrier_wait(&all_left);
    }
    return NULL;
}

static int lead(spmd_job *job, int64_t number)
{
    int state;
    spmd_job_lead(job, number);
    if (spmd_call_start(job, &call[number]) != SPMD_OK)
        return SPMD_ABORTED;
    do
        state = spmd_job_wait(job, 1000);
    while (state == SPMD_RUNNING);
    if (state == SPMD_FINISHED)
        do
            state = spmd_job_led(job, 1000);
        while (state == SPMD_RUNNING);
    return spmd_call_finish(job, &call[number]) == SPMD_OK ? state : SPMD_ABORTED;
}

static int64_t runs_check(spmd_job *job)
{
    int64_t wrong = 0;
    for (int k = 0; k < RUNS; k++) {
        wrong += run(job) != SPMD_FINISHED;
        wrong += lead(job, 1) != SPMD_FINISHED;
        spmd_job_lead(job, SPMD_LEAVE);
        pthread_barrier_wait(&all_left);
    }
    return wrong;
}

static int64_t calls_check(spmd_job *job)
{
    int64_t wrong = 0;
    for (int64_t turn = 0; turn < CALLS; turn++) {
        for (int64_t k = 0; k < ROWS * COLUMNS; k++)
            input[k / COLUMNS][k % COLUMNS] = turn + k;
        wrong += lead(job, turn % 3 == 1) != SPMD_FINISHED;
        for (int64_t k = 0; k < ROWS * COLUMNS; k++)
            wrong += output[k / COLUMNS][k % COLUMNS] != (turn % 3 == 1 ? -1 : 2 * (turn + k));
    }
    return wrong;
}

/* Leads calls between runs of all, has the others leave and come back, and aborts; counts what was
 * wrong. */
int64_t check_led(const spmd_image *image)
{
    spmd_job *job = job_new(image, 0);
    spmd_arena *arena;
    follower others[PROCESSES - 1] = {{.state = 0}};
    int64_t wrong = 0;

    if (spmd_arena_new(spmd_job_bytes(job), 0, &arena) != SPMD_OK)
        exit(1);
    wrong += spmd_job_load(job, arena) != SPMD_OK;
    for (int k = 0; k < PROCESSES - 1; k++) {
        others[k].job = job_new(image, k + 1);
        wrong += spmd_job_load(others[k].job, arena) != SPMD_OK;
    }
    pthread_barrier_init(&all_left, NULL, PROCESSES);
    for (int k = 0; k < PROCESSES - 1; k++)
        pthread_create(&others[k].thread, NULL, run_and_follow, &others[k]);
    wrong += runs_check(job);
    for (int k = 0; k < PROCESSES - 1; k++) {
        pthread_join(others[k].thread, NULL);
        wrong += others[k].wrong;
    }
    pthread_barrier_destroy(&all_left);
    for (int round = 0; round < 3; round++) {
        for (int k = 0; k < PROCESSES - 1; k++)
            pthread_create(&others[k].thread, NULL, follow, &others[k]);
        wrong += calls_check(job);
        if (round < 2)
            spmd_job_lead(job, SPMD_LEAVE);
        else
            spmd_job_abort(job, 75, -1, "the first one ends");
        for (int k = 0; k < PROCESSES - 1; k++) {
            pthread_join(others[k].thread, NULL);
            wrong += others[k].state != (round < 2 ? SPMD_FINISHED : SPMD_ABORTED);
        }
    }
    for (int k = 0; k < PROCESSES - 1; k++)
        wrong += spmd_job_free(others[k].job) != SPMD_OK;
    wrong += spmd_job_free(job) != SPMD_OK;
    spmd_arena_free(arena);
    if (wrong)
        fprintf(stderr, "led calls: %lld wrong\n", (long long)wrong);
    return wrong;
}
