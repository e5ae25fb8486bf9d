/* A loop over the batches of a feed, as the compiler writes it. Its fields: x, rows over the first
 * mesh axis, with room around; y, which everybody has all of; z, of which columns are split over the
 * second axis; with SPLITS, rows of all are split. It sends a value back for each row, and its turns can be kept. Every rank counts what
 * it did not expect. Scalars: rows of a batch, the batches that there are, and flags. */
#include "spmd_image.h"

enum { ERRORS, SUM, X, Y, Z, VALUE, BUFFERS };
enum { ROWS, BATCHES, FLAGS, SCALARS };
enum { K, MORE, EARLY, COUNTERS };
enum { SENDS = 1, TAKES_EARLY = 2, ASKS_NOT = 4, KEEPS = 8, SPLITS = 16 };
enum { START, EARLY_TAKE, POINT, ASK, TAKE, SEND };
enum { X_COLUMNS = 3, Z_COLUMNS = 5, ROOM = 2 }; /* room: rows above, and one column on the right */

static int64_t scalar(const spmd_rank *rank, int which)
{
    return rank->world->scalar[which];
}

static void block_of(int64_t n, int64_t parts, int64_t k, int64_t *offset, int64_t *extent)
{
    *offset = k * n / parts;
    *extent = (k + 1) * n / parts - *offset;
}

/* Arrays: errors; the sum, which the point carries; x, y, z of two takes; what is sent. */
static void shard(const spmd_rank *rank, uint32_t array, int64_t *offset, int64_t *extent)
{
    uint32_t field = array < 8 ? (array + 1) % 3 : 3;
    int64_t rows = scalar(rank, ROWS);
    offset[0] = array == 0 ? rank->index : 0;
    extent[0] = array < 2 ? 1 : rows;
    if (array < 2)
        return;
    if (field == 0 || field == 3 || scalar(rank, FLAGS) & SPLITS)
        block_of(rows, rank->world->size[0], rank->coord[0], offset, extent);
    if (field == 0) {
        offset[1] = 0;
        extent[1] = X_COLUMNS;
    }
    if (field == 2)
        block_of(Z_COLUMNS, rank->world->size[1], rank->coord[1], offset + 1, extent + 1);
}

static void room(const spmd_rank *rank, uint32_t array, int64_t *before, int64_t *around)
{
    (void)rank;
    if (array == 2 || array == 5) {
        before[0] = ROOM;
        around[0] += ROOM;
        around[1] = X_COLUMNS + 1;
    }
}

static void reserve(const spmd_world *world, int64_t *bytes)
{
    int64_t n = world->scalar[ROWS];
    bytes[ERRORS] = bytes[SUM] = 8;
    bytes[X] = (n + ROOM) * (X_COLUMNS + 1) * 8;
    bytes[Y] = n * 4;
    bytes[Z] = n * Z_COLUMNS;
    bytes[VALUE] = n * 8;
}

static void load(spmd_rank *rank)
{
    rank->at_load[0] = rank->index;
}

/* Row 1 of a batch is a hole. */
static int64_t wrong_in(const spmd_rank *rank, int64_t k)
{
    int64_t offset[2], extent[2], wrong = 0;
    const int64_t *x = (int64_t *)(rank->memory + rank->buffer[X]);
    const int32_t *y = (int32_t *)(rank->memory + rank->buffer[Y]);
    const uint8_t *z = (uint8_t *)(rank->memory + rank->buffer[Z]);
    shard(rank, 2, offset, extent);
    for (int64_t i = 0; i < extent[0]; i++)
        for (int64_t j = 0; j < X_COLUMNS; j++) {
            int64_t row = offset[0] + i, want = row == 1 ? 0 : k * 1000 + row * 10 + j;
            wrong += x[(i + ROOM) * (X_COLUMNS + 1) + j] != want;
        }
    shard(rank, 3, offset, extent);
    for (int64_t i = 0; i < extent[0]; i++)
        wrong += y[i] != (offset[0] + i == 1 ? 0 : k * 100 + offset[0] + i);
    shard(rank, 4, offset, extent);
    for (int64_t i = 0; i < extent[0]; i++)
        for (int64_t j = 0; j < extent[1]; j++)
            wrong += z[i * extent[1] + j] !=
                     (offset[0] + i == 1
                          ? 0
                          : (uint8_t)(k + (offset[0] + i) * 10 + offset[1] + j));
    return wrong;
}

static void value_fill(const spmd_rank *rank, int64_t k)
{
    int64_t offset[1], extent[1], *value = (int64_t *)(rank->memory + rank->buffer[VALUE]);
    shard(rank, 8, offset, extent);
    for (int64_t i = 0; i < extent[0]; i++)
        value[i] = k * 100 + offset[0] + i;
}

static int step(spmd_rank *rank)
{
    int64_t *k = &rank->counter[K], flags = scalar(rank, FLAGS);
    int64_t *sum = (int64_t *)(rank->memory + rank->buffer[SUM]);
    int64_t *errors = (int64_t *)(rank->memory + rank->buffer[ERRORS]);
    switch (rank->pc) {
    case START:
        *errors = *sum = 0;
        if (flags & TAKES_EARLY) {
            rank->pc = EARLY_TAKE;
            /* fall through */
        case EARLY_TAKE:
            if (!rank->engine->take(rank, 1))
                return SPMD_WAITS;
            *errors += wrong_in(rank, 0);
            rank->counter[EARLY] = *k = 1;
        }
        for (;;) {
            rank->pc = POINT;
            /* fall through */
        case POINT:
            if (flags & KEEPS) {
                int found = rank->engine->point(rank, 0, k);
                if (found == SPMD_HELD)
                    return SPMD_WAITS;
                if (found == SPMD_AGAIN)
                    continue;
            }
            rank->pc = ASK;
            /* fall through */
        case ASK:
            if (!(flags & ASKS_NOT) && !rank->engine->more(rank, 0, &rank->counter[MORE]))
                return SPMD_WAITS;
            if (flags & ASKS_NOT ? *k == scalar(rank, BATCHES) : !rank->counter[MORE])
                break;
            rank->pc = TAKE;
            /* fall through */
        case TAKE:
            if (!rank->engine->take(rank, 0))
                return SPMD_WAITS;
            *errors += wrong_in(rank, *k);
            *sum += *k;
            value_fill(rank, *k);
            rank->pc = SEND;
            /* fall through */
        case SEND:
            if (flags & SENDS && !rank->engine->send(rank, 0))
                return SPMD_WAITS;
            ++*k;
        }
    }
    int64_t n = scalar(rank, BATCHES);
    *errors += *k != n || *sum != n * (n - 1) / 2;
    return SPMD_DONE;
}

static const uint32_t buffers[] = {ERRORS, SUM, X, Y, Z, X, Y, Z, VALUE};
static const uint32_t dims[] = {1, 1, 2, 1, 2, 2, 1, 2, 1}, sizes[] = {8, 8, 8, 4, 1, 8, 4, 1, 8};
static const uint32_t points[] = {1, 2}, takes[] = {2, 5, 8}, sends[] = {8, 9}, feed[] = {0, 0};
/* x has room around it: it is copied all the same. Nothing looks at a batch behind the next. */
static const uint32_t lie[] = {SPMD_LIE_IN_PLACE, SPMD_LIE_IN_PLACE, SPMD_LIE_IN_PLACE,
                               SPMD_LIE_IN_PLACE, SPMD_LIE_IN_PLACE, SPMD_LIE_IN_PLACE};

const spmd_image fed_image = {
    .interface_version = SPMD_INTERFACE,
    .axes = SPMD_AXES,
    .scalars = SCALARS,
    .outputs = 1,
    .buffers = BUFFERS,
    .at_load = 1,
    .counters = COUNTERS,
    .points = 1,
    .feeds = 1,
    .takes = 2,
    .sends = 1,
    .array_buffer = buffers,
    .array_dims = dims,
    .array_size = sizes,
    .point_first = points,
    .take_feed = feed,
    .take_first = takes,
    .take_lies = lie,
    .send_feed = feed,
    .send_first = sends,
    .reserve = reserve,
    .load = load,
    .shard = shard,
    .room = room,
    .step = step,
};
