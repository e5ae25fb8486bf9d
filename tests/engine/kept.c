/* A loop whose turns can be kept, as the compiler writes it: it carries a matrix in uneven blocks of
 * rows over the first mesh axis, with room around, in two buffers that change places, and numbers of
 * one byte over the second axis. At its end every rank checks that no turn was left out or made twice.
 * Scalars: elements, turns, and a seed for random delays (0: none). */
#define _GNU_SOURCE
#include <unistd.h>

#include "spmd_image.h"

enum { ERRORS, MATRIX, OTHER, BYTES, BUFFERS };
enum { ELEMENTS, TURNS, SEED, SCALARS };
enum { TURN, COUNTERS };
enum { COLUMNS = 3, ROOM = 2 }; /* room: rows above, and one column on the right */

static int64_t scalar(const spmd_rank *rank, int which)
{
    return rank->world->scalar[which];
}

static void block_of(int64_t n, int64_t parts, int64_t k, int64_t *offset, int64_t *extent)
{
    *offset = k * n / parts;
    *extent = (k + 1) * n / parts - *offset;
}

/* Array 0: errors, one per rank. Then what the point carries. */
static void shard(const spmd_rank *rank, uint32_t array, int64_t *offset, int64_t *extent)
{
    if (array == 0) {
        offset[0] = rank->index;
        extent[0] = 1;
        return;
    }
    int axis = array == 1 ? 0 : 1;
    block_of(scalar(rank, ELEMENTS), rank->world->size[axis], rank->coord[axis], offset, extent);
    if (array == 1) {
        offset[1] = 0;
        extent[1] = COLUMNS;
    }
}

static void room(const spmd_rank *rank, uint32_t array, int64_t *before, int64_t *around)
{
    (void)rank;
    if (array == 1) {
        before[0] = ROOM;
        around[0] += ROOM;
        around[1] = COLUMNS + 1;
    }
}

static void reserve(const spmd_world *world, int64_t *bytes)
{
    int64_t n = world->scalar[ELEMENTS];
    bytes[ERRORS] = 8;
    bytes[MATRIX] = bytes[OTHER] = (n + ROOM) * (COLUMNS + 1) * 8;
    bytes[BYTES] = n;
}

static void load(spmd_rank *rank)
{
    rank->at_load[0] = rank->index;
}

/* What an element is after so many turns. */
static int64_t value(int64_t row, int64_t column, int64_t turns)
{
    return row * 1000 + column + turns * (turns + 1) / 2;
}

static int64_t *element(const spmd_rank *rank, int buffer, int64_t row, int64_t column)
{
    return (int64_t *)(rank->memory + rank->buffer[buffer]) + (row + ROOM) * (COLUMNS + 1) + column;
}

/* turn: to it, from the one before; 0: as it begins. check: counts what is wrong instead. */
static int64_t walk(spmd_rank *rank, int64_t turn, int check)
{
    int64_t offset[2], extent[2], wrong = 0;
    uint8_t *byte = (uint8_t *)(rank->memory + rank->buffer[BYTES]);
    shard(rank, 1, offset, extent);
    for (int64_t i = 0; i < extent[0]; i++)
        for (int64_t j = 0; j < COLUMNS; j++) {
            int64_t *at = element(rank, MATRIX, i, j);
            if (check)
                wrong += *at != value(offset[0] + i, j, turn);
            else if (turn)
                *element(rank, OTHER, i, j) = *at + turn;
            else
                *at = value(offset[0] + i, j, 0);
        }
    shard(rank, 2, offset, extent);
    for (int64_t k = 0; k < extent[0]; k++) {
        if (check)
            wrong += byte[k] != (uint8_t)(offset[0] + k + turn);
        else
            byte[k] = turn ? (uint8_t)(byte[k] + 1) : (uint8_t)(offset[0] + k);
    }
    return wrong;
}

static int step(spmd_rank *rank)
{
    if (rank->pc == 1)
        goto wait;
    walk(rank, 0, 0);
    for (; rank->counter[TURN] < scalar(rank, TURNS); rank->counter[TURN]++) {
    wait:
        rank->pc = 1;
        switch (rank->engine->point(rank, 0, &rank->counter[TURN])) {
        case SPMD_HELD:
            return SPMD_WAITS;
        case SPMD_AGAIN:
            rank->counter[TURN]--;
            continue;
        }
        if (scalar(rank, SEED) && (rank->index + rank->counter[TURN]) % 3 == 0)
            usleep((useconds_t)(scalar(rank, SEED) * (rank->index + 1) % 97));
        walk(rank, rank->counter[TURN] + 1, 0);
        spmd_swap(rank, MATRIX, OTHER);
    }
    *(int64_t *)(rank->memory + rank->buffer[ERRORS]) = walk(rank, scalar(rank, TURNS), 1);
    return SPMD_DONE;
}

static const uint32_t buffers[] = {ERRORS, MATRIX, BYTES}, dims[] = {1, 2, 1}, sizes[] = {8, 8, 1};
static const uint32_t first[] = {1, 3};

const spmd_image kept_image = {
    .interface_version = SPMD_INTERFACE,
    .axes = SPMD_AXES,
    .scalars = SCALARS,
    .outputs = 1,
    .buffers = BUFFERS,
    .at_load = 1,
    .counters = COUNTERS,
    .points = 1,
    .array_buffer = buffers,
    .array_dims = dims,
    .array_size = sizes,
    .point_first = first,
    .reserve = reserve,
    .load = load,
    .shard = shard,
    .room = room,
    .step = step,
};
