/* Whoever fills the rings of fed.c, on a thread of its own: two pieces of each batch, in turn in
 * other memory, which is spoilt once the batch was taken; and it looks at what is sent back. */
#include "supply.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { ROWS = 11, BATCHES = 40, DEPTH = 3, FIELDS = 3, WORDS = 2 + FIELDS };
enum { SENDS = 1, TAKES_EARLY = 2, ASKS_NOT = 4 };

typedef struct spmd_supply {
    spmd_ring *ring;
    int64_t begin, end, wrong;
    bool sends;
    int64_t x[DEPTH][ROWS][3];
    int32_t y[DEPTH][ROWS];
    uint8_t z[DEPTH][ROWS][5];
    pthread_t thread;
} spmd_supply;

static void rows_fill(spmd_supply *supply, int64_t k)
{
    for (int64_t i = 0; i < ROWS; i++) {
        supply->y[k % DEPTH][i] = (int32_t)(k * 100 + i);
        for (int64_t j = 0; j < 3; j++)
            supply->x[k % DEPTH][i][j] = k * 1000 + i * 10 + j;
        for (int64_t j = 0; j < 5; j++)
            supply->z[k % DEPTH][i][j] = (uint8_t)(k + i * 10 + j);
    }
}

/* Row 1 is in no piece. */
static void batch_put(spmd_supply *supply, int64_t k)
{
    int64_t row[3][WORDS], pieces = 0;
    int64_t bounds[4] = {supply->begin, 1, 6, supply->end};
    rows_fill(supply, k);
    for (int part = 0; part < 3; part++) {
        int64_t first = bounds[part] + (part == 1), end = bounds[part + 1];
        first = first < supply->begin ? supply->begin : first;
        end = end > supply->end ? supply->end : end;
        if (first >= end)
            continue;
        row[pieces][0] = first;
        row[pieces][1] = end - first;
        row[pieces][2] = (int64_t)(uintptr_t)supply->x[k % DEPTH][first];
        row[pieces][3] = (int64_t)(uintptr_t)&supply->y[k % DEPTH][first];
        row[pieces++][4] = (int64_t)(uintptr_t)supply->z[k % DEPTH][first];
    }
    supply->wrong += spmd_ring_put(supply->ring, k, pieces, row[0]) != SPMD_OK;
}

static void values_look(spmd_supply *supply, int64_t *next)
{
    void *values[1];
    while (spmd_ring_sent(supply->ring, *next, values) == SPMD_OK) {
        const int64_t *value = values[0];
        for (int64_t i = supply->begin; i < supply->end; i++)
            supply->wrong += value[i - supply->begin] != *next * 100 + i;
        spmd_ring_let_go(supply->ring, (*next)++);
    }
}

static void *supply_run(void *given)
{
    spmd_supply *supply = given;
    int64_t next = 0, sent = 0, last = supply->sends ? BATCHES : 0;
    struct pollfd event = {.fd = spmd_ring_event(supply->ring), .events = POLLIN};
    while (next < BATCHES || sent < last) {
        uint64_t count;
        int64_t taken = spmd_ring_taken(supply->ring);
        while (next < BATCHES && next < taken + DEPTH)
            batch_put(supply, next++);
        if (next == BATCHES)
            supply->wrong += spmd_ring_end(supply->ring, BATCHES) != SPMD_OK;
        values_look(supply, &sent);
        if (poll(&event, 1, 50) > 0 && read(event.fd, &count, sizeof count) < 0)
            supply->wrong++;
    }
    return NULL;
}

/* A run of fed.c; the sum of what its ranks and supplies have found wrong. */
int64_t supply_check(spmd_job *job, int64_t flags, int64_t (*run)(spmd_job *job))
{
    static const int64_t shape[] = {2, ROWS, 3, 1, ROWS, 2, ROWS, 5, 1, ROWS};
    const spmd_feed given = {"feed", DEPTH, FIELDS, 1, shape};
    if (spmd_job_feed(job, 0, &given) != SPMD_OK)
        return 1;
    int64_t count = spmd_job_feed_rings(job, 0), wrong = 0;
    spmd_supply *supply = calloc((size_t)count, sizeof *supply);
    for (int64_t k = 0; k < count; k++) {
        supply[k].ring = spmd_job_feed_ring(job, 0, k);
        supply[k].sends = flags & SENDS;
        spmd_ring_rows(supply[k].ring, &supply[k].begin, &supply[k].end);
        pthread_create(&supply[k].thread, NULL, supply_run, &supply[k]);
    }
    wrong += run(job);
    for (int64_t k = 0; k < count; k++) {
        pthread_join(supply[k].thread, NULL);
        wrong += supply[k].wrong;
    }
    free(supply);
    return wrong;
}
