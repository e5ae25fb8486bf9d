/* Small images written by hand, the way the compiler writes them: one table per program. Every
 * program checks what it receives and counts what is wrong in output 0, one number per rank.
 * Scalars: elements, steps, and a seed for random delays (0: none). */
#define _GNU_SOURCE
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "spmd_fold.h"
#include "spmd_image.h"

enum { ERRORS, OPERAND, RESULT, BUFFERS };
enum { ELEMENTS, STEPS, SEED, SCALARS };
enum { STEP, COUNTERS };

static int64_t scalar(const spmd_rank *rank, int which)
{
    return rank->world->scalar[which];
}

static void *buffer(const spmd_rank *rank, int which)
{
    return rank->memory + rank->buffer[which];
}

static int64_t wrap(int64_t value, int64_t n)
{
    return ((value % n) + n) % n;
}

static void expect(spmd_rank *rank, int64_t found, int64_t expected)
{
    *(int64_t *)buffer(rank, ERRORS) += found != expected;
}

/* What element `at` of `rank` holds in a step; small, so that sums of doubles are exact. */
static int64_t value(int64_t rank, int64_t step, int64_t at)
{
    return rank * 37 + step * 11 + at % 101;
}

static void delay(const spmd_rank *rank)
{
    uint64_t seed = (uint64_t)scalar(rank, SEED);
    if (!seed)
        return;
    uint64_t mixed = (seed + (uint64_t)rank->index) * 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ (uint64_t)rank->counter[STEP]) * 0xbf58476d1ce4e5b9u;
    if (mixed >> 61 == 0)
        usleep((useconds_t)(mixed >> 32 & 255));
}

static void load_nothing(spmd_rank *rank)
{
    rank->at_load[0] = rank->index;
}

static void reserve_two(const spmd_world *world, int64_t *bytes)
{
    bytes[ERRORS] = 8;
    bytes[OPERAND] = bytes[RESULT] = world->scalar[ELEMENTS] * 8;
}

static void reserve_all(const spmd_world *world, int64_t *bytes)
{
    bytes[ERRORS] = 8;
    bytes[OPERAND] = bytes[RESULT] = world->scalar[ELEMENTS] * world->ranks * 8;
}

/* Array 0: errors, one per rank. Array 1: the result, one row per rank. */
static void shard_rows(const spmd_rank *rank, uint32_t array, int64_t *offset, int64_t *extent)
{
    offset[0] = rank->at_load[0];
    extent[0] = 1;
    if (array == 1) {
        offset[1] = 0;
        extent[1] = scalar(rank, ELEMENTS);
    }
}

static spmd_box row(const spmd_rank *rank, int which, int64_t from, int64_t extent)
{
    spmd_box box = {.offset = rank->buffer[which] + 8 * from, .dims = 1};
    box.extent[0] = extent;
    box.stride[0] = 8;
    return box;
}

/* Every exchange here is over all ranks, unless it changes that afterwards. */
static spmd_exchange *begin(spmd_rank *rank, uint32_t kind, uint32_t site)
{
    const spmd_world *world = rank->world;
    rank->exchange = (spmd_exchange){
        .site = site,
        .kind = kind,
        .size = 8,
        .wraps = 1,
        .members = world->ranks,
        .position = rank->index,
        .count = {world->size[0], world->size[1], world->size[2]},
        .stride = {world->size[1] * world->size[2], world->size[2], 1},
        .source = SPMD_NONE,
        .dest = SPMD_NONE,
    };
    return &rank->exchange;
}

/* The members along one mesh axis. */
static void along(spmd_rank *rank, int axis)
{
    spmd_exchange *exchange = &rank->exchange;
    int64_t stride = exchange->stride[axis];
    exchange->members = rank->world->size[axis];
    exchange->position = rank->coord[axis];
    exchange->first = rank->index - rank->coord[axis] * stride;
    for (int k = 0; k < SPMD_AXES; k++)
        exchange->count[k] = k == axis ? exchange->members : 1;
}

static void pull_row(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    (void)member;
    *from = row(rank, OPERAND, 0, scalar(rank, ELEMENTS));
    *into = row(rank, RESULT, 0, scalar(rank, ELEMENTS));
}

static void send_row(const spmd_rank *rank, int64_t member, spmd_box *from)
{
    (void)member;
    *from = row(rank, OPERAND, 0, scalar(rank, ELEMENTS));
}

static void fill_row(spmd_rank *rank)
{
    int64_t *operand = buffer(rank, OPERAND);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
        operand[k] = value(rank->index, rank->counter[STEP], k);
}

static void check_row(spmd_rank *rank, int64_t from)
{
    const int64_t *result = buffer(rank, RESULT);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
        expect(rank, result[k], from < 0 ? 0 : value(from, rank->counter[STEP], k));
}

/* One exchange per step; each program says how it begins and how its result is checked. */
#define LOOP(program, prepare, check)                                                              \
    static int program##_step(spmd_rank *rank)                                                     \
    {                                                                                              \
        if (rank->pc == 1)                                                                         \
            goto wait;                                                                             \
        *(int64_t *)buffer(rank, ERRORS) = 0;                                                      \
        for (; rank->counter[STEP] < scalar(rank, STEPS); rank->counter[STEP]++) {                 \
            delay(rank);                                                                           \
            prepare(rank);                                                                         \
        wait:                                                                                      \
            rank->pc = 1;                                                                          \
            if (!rank->engine->exchange(rank))                                                     \
                return SPMD_WAITS;                                                                 \
            check(rank);                                                                           \
            rank->operation++;                                                                     \
        }                                                                                          \
        return SPMD_DONE;                                                                          \
    }

/* ring: everybody sends to the rank `step` further on. */
static void ring_prepare(spmd_rank *rank)
{
    int64_t n = rank->world->ranks, shift = rank->counter[STEP];
    fill_row(rank);
    spmd_exchange *exchange = begin(rank, SPMD_PERMUTE, 0);
    exchange->source = wrap(rank->index - shift, n);
    exchange->dest = wrap(rank->index + shift, n);
    exchange->pull = pull_row;
    exchange->send = send_row;
}

static void ring_check(spmd_rank *rank)
{
    check_row(rank, wrap(rank->index - rank->counter[STEP], rank->world->ranks));
}
LOOP(ring, ring_prepare, ring_check)

/* edge: to the next rank; the last sends to nobody and the first receives zeros. */
static void edge_prepare(spmd_rank *rank)
{
    ring_prepare(rank);
    rank->exchange.source = rank->index == 0 ? SPMD_NONE : rank->index - 1;
    rank->exchange.dest = rank->index == rank->world->ranks - 1 ? SPMD_NONE : rank->index + 1;
}

static void edge_check(spmd_rank *rank)
{
    check_row(rank, rank->index - 1);
}
LOOP(edge, edge_prepare, edge_check)

/* route: the source is found at run time. Even steps mirror; in odd ones rank 0 sends nothing. */
static int64_t route_dest(int64_t n, int64_t index, int64_t step)
{
    if (step % 2 == 0)
        return n - 1 - index;
    return index == 0 ? SPMD_NONE : (index + step) % n;
}

static void route_prepare(spmd_rank *rank)
{
    ring_prepare(rank);
    rank->exchange.source = SPMD_UNKNOWN;
    rank->exchange.dest = route_dest(rank->world->ranks, rank->index, rank->counter[STEP]);
}

static void route_check(spmd_rank *rank)
{
    int64_t n = rank->world->ranks, step = rank->counter[STEP];
    int64_t source = step % 2 == 0 ? n - 1 - rank->index : wrap(rank->index - step, n);
    check_row(rank, step % 2 && source == 0 ? SPMD_NONE : source);
}
LOOP(route, route_prepare, route_check)

/* collide: the last two ranks both send to rank 0. */
static void collide_prepare(spmd_rank *rank)
{
    ring_prepare(rank);
    rank->exchange.source = SPMD_UNKNOWN;
    rank->exchange.dest = rank->index >= rank->world->ranks - 2 ? 0 : SPMD_NONE;
}

static void check_nothing(spmd_rank *rank)
{
    (void)rank;
}
LOOP(collide, collide_prepare, check_nothing)

/* reduce: the sum of all ranks' rows. */
static double add(double a, double b)
{
    return a + b;
}
SPMD_FOLD(sum, double, add)

static void reduce_prepare(spmd_rank *rank)
{
    double *operand = buffer(rank, OPERAND);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
        operand[k] = (double)value(rank->index, rank->counter[STEP], k);
    spmd_exchange *exchange = begin(rank, SPMD_REDUCE, 0);
    exchange->pull = pull_row;
    exchange->send = send_row;
    exchange->fold = sum[rank->engine->vectors];
}

static void reduce_check(spmd_rank *rank)
{
    int64_t n = rank->world->ranks;
    const double *result = buffer(rank, RESULT);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
        expect(rank, (int64_t)result[k],
               n * value(0, rank->counter[STEP], k) + 37 * (n * (n - 1) / 2));
}
LOOP(reduce, reduce_prepare, reduce_check)

/* round: sums whose rounding shows the order; all ranks must end with the same bits. */
static void round_prepare(spmd_rank *rank)
{
    reduce_prepare(rank);
    double *operand = buffer(rank, OPERAND);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
        operand[k] = 1.0 / (double)(1 + value(rank->index, rank->counter[STEP], k));
}
LOOP(round, round_prepare, check_nothing)

/* axes: sums along one mesh axis after the other, at sites of their own. */
static void axes_prepare(spmd_rank *rank)
{
    int axis = (int)(rank->counter[STEP] % SPMD_AXES);
    reduce_prepare(rank);
    rank->exchange.site = (uint32_t)axis;
    along(rank, axis);
}

static void axes_check(spmd_rank *rank)
{
    const spmd_exchange *exchange = &rank->exchange;
    int axis = (int)(rank->counter[STEP] % SPMD_AXES);
    const double *result = buffer(rank, RESULT);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++) {
        int64_t total = 0;
        for (int64_t m = 0; m < exchange->members; m++)
            total += value(exchange->first + m * exchange->stride[axis], rank->counter[STEP], k);
        expect(rank, (int64_t)result[k], total);
    }
}
LOOP(axes, axes_prepare, axes_check)

/* gather: rank k gives k % elements numbers (some none); everyone gets all of them in order. */
static int64_t given_before(int64_t rank, int64_t elements)
{
    int64_t rest = rank % elements;
    return rank / elements * (elements * (elements - 1) / 2) + rest * (rest - 1) / 2;
}

static void pull_gather(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    int64_t elements = scalar(rank, ELEMENTS);
    *from = row(rank, OPERAND, 0, member % elements);
    *into = row(rank, RESULT, given_before(member, elements), member % elements);
}

static void send_gather(const spmd_rank *rank, int64_t member, spmd_box *from)
{
    (void)member;
    *from = row(rank, OPERAND, 0, rank->index % scalar(rank, ELEMENTS));
}

static void gather_prepare(spmd_rank *rank)
{
    fill_row(rank);
    spmd_exchange *exchange = begin(rank, SPMD_PULL, 0);
    exchange->pull = pull_gather;
    exchange->send = send_gather;
}

static void gather_check(spmd_rank *rank)
{
    int64_t elements = scalar(rank, ELEMENTS);
    const int64_t *result = buffer(rank, RESULT);
    for (int64_t from = 0; from < rank->world->ranks; from++)
        for (int64_t k = 0; k < from % elements; k++)
            expect(rank, *result++, value(from, rank->counter[STEP], k));
}
LOOP(gather, gather_prepare, gather_check)

/* swap: an all-to-all of blocks, read as columns of the sender (strided) into rows; in every other
 * turn they are added to what is there. */
#define THERE 7

static void take_swap(const spmd_rank *rank, const spmd_piece *piece)
{
    for (int64_t row = 0; row < piece->rows; row++) {
        const char *from = (const char *)piece->from + row * piece->from_stride;
        char *into = rank->memory + piece->into + row * piece->into_stride;
        for (int64_t k = 0; k < piece->n; k++)
            ((int64_t *)(void *)into)[k] += ((const int64_t *)(const void *)from)[k];
    }
}

static void pull_swap(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    int64_t elements = scalar(rank, ELEMENTS);
    *from = row(rank, OPERAND, rank->index, elements);
    from->stride[0] = 8 * rank->world->ranks;
    *into = row(rank, RESULT, member * elements, elements);
}

static void send_swap(const spmd_rank *rank, int64_t member, spmd_box *from)
{
    *from = row(rank, OPERAND, member, scalar(rank, ELEMENTS));
    from->stride[0] = 8 * rank->world->ranks;
}

static void swap_prepare(spmd_rank *rank)
{
    int64_t n = rank->world->ranks, *operand = buffer(rank, OPERAND);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
        for (int64_t to = 0; to < n; to++)
            operand[k * n + to] = value(rank->index, rank->counter[STEP], k) + 1000 * to;
    for (int64_t k = 0; k < scalar(rank, ELEMENTS) * n; k++)
        ((int64_t *)buffer(rank, RESULT))[k] = THERE;
    spmd_exchange *exchange = begin(rank, SPMD_PULL, 0);
    exchange->take = rank->counter[STEP] % 2 ? take_swap : NULL;
    exchange->pull = pull_swap;
    exchange->send = send_swap;
    exchange->differs = 1;
}

static void swap_check(spmd_rank *rank)
{
    const int64_t *result = buffer(rank, RESULT), step = rank->counter[STEP];
    for (int64_t from = 0; from < rank->world->ranks; from++)
        for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
            expect(rank, *result++,
                   value(from, step, k) + 1000 * rank->index + (step % 2 ? THERE : 0));
}
LOOP(swap, swap_prepare, swap_check)

/* scatter: the sum of my column block of everybody's (elements, ranks) matrix. */
static void send_scatter(const spmd_rank *rank, int64_t member, spmd_box *from)
{
    *from = row(rank, OPERAND, member, scalar(rank, ELEMENTS));
    from->dims = 2;
    from->extent[1] = 1;
    from->stride[0] = 8 * rank->world->ranks;
    from->stride[1] = 8;
}

static void pull_scatter(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    (void)member;
    send_scatter(rank, rank->index, from);
    *into = row(rank, RESULT, 0, scalar(rank, ELEMENTS));
    into->dims = 2;
    into->extent[1] = 1;
    into->stride[1] = 8;
}

static void scatter_prepare(spmd_rank *rank)
{
    int64_t n = rank->world->ranks;
    double *operand = buffer(rank, OPERAND);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS) * n; k++)
        operand[k] = (double)value(rank->index, rank->counter[STEP], k);
    spmd_exchange *exchange = begin(rank, SPMD_REDUCE_SCATTER, 0);
    exchange->pull = pull_scatter;
    exchange->send = send_scatter;
    exchange->fold = sum[rank->engine->vectors];
    exchange->differs = 1;
}

static void scatter_check(spmd_rank *rank)
{
    int64_t n = rank->world->ranks;
    const double *result = buffer(rank, RESULT);
    for (int64_t k = 0; k < scalar(rank, ELEMENTS); k++)
        expect(rank, (int64_t)result[k],
               n * value(0, rank->counter[STEP], k * n + rank->index) + 37 * (n * (n - 1) / 2));
}
LOOP(scatter, scatter_prepare, scatter_check)

/* scan: the sum of the rows of everybody up to me; in odd steps without mine. Combining is not
 * commutative: a result is 3 times itself, so that the order counts. */
static int64_t thrice(int64_t a, int64_t b)
{
    return (int64_t)(3 * (uint64_t)a + (uint64_t)b);
}
SPMD_FOLD(thrices, int64_t, thrice)

static void scan_prepare(spmd_rank *rank)
{
    int axis = (int)(rank->counter[STEP] % (SPMD_AXES + 1));
    fill_row(rank);
    spmd_exchange *exchange = begin(rank, SPMD_REDUCE, (uint32_t)axis);
    if (axis < SPMD_AXES)
        along(rank, axis);
    exchange->flow = rank->counter[STEP] % 2 == 0 ? SPMD_UP_TO : SPMD_BEFORE;
    exchange->pull = pull_row;
    exchange->send = send_row;
    exchange->fold = thrices[rank->engine->vectors];
}

static void scan_check(spmd_rank *rank)
{
    const spmd_exchange *exchange = &rank->exchange;
    int axis = (int)(rank->counter[STEP] % (SPMD_AXES + 1));
    int64_t stride = axis < SPMD_AXES ? exchange->stride[axis] : 1;
    int64_t members = exchange->position + (rank->counter[STEP] % 2 == 0);
    const int64_t *result = buffer(rank, RESULT);
    for (int64_t k = 0; members && k < scalar(rank, ELEMENTS); k++) {
        int64_t total = value(exchange->first, rank->counter[STEP], k);
        for (int64_t m = 1; m < members; m++) {
            int64_t theirs = value(exchange->first + m * stride, rank->counter[STEP], k);
            total = thrice(total, theirs);
        }
        expect(rank, result[k], total);
    }
}
LOOP(scan, scan_prepare, scan_check)

/* halo: columns and rows of a square block go to the neighbours on a 2-D mesh that wraps; the
 * block of `elements` x `elements` lies in OPERAND with one line of ghost cells around it. */
static void reserve_halo(const spmd_world *world, int64_t *bytes)
{
    int64_t side = world->scalar[ELEMENTS] + 2;
    bytes[ERRORS] = 8;
    bytes[OPERAND] = bytes[RESULT] = side * side * 8;
}

static void pull_halo(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    int64_t n = scalar(rank, ELEMENTS), width = n + 2, direction = rank->counter[STEP] % 4;
    static const int64_t axis_of[] = {0, 0, 1, 1};
    int64_t step = axis_of[direction] == 0 ? width : 1;
    int64_t across = axis_of[direction] == 0 ? 1 : width;
    (void)member;
    *from = row(rank, OPERAND, across + step * (direction % 2 == 0 ? n : 1), n);
    *into = row(rank, OPERAND, across + step * (direction % 2 == 0 ? 0 : n + 1), n);
    from->stride[0] = into->stride[0] = 8 * across;
}

static void send_halo(const spmd_rank *rank, int64_t member, spmd_box *from)
{
    spmd_box into;
    pull_halo(rank, member, from, &into);
}

static void halo_prepare(spmd_rank *rank)
{
    int64_t n = scalar(rank, ELEMENTS), width = n + 2, direction = rank->counter[STEP] % 4;
    int64_t *block = buffer(rank, OPERAND), shift = direction % 2 == 0 ? 1 : -1;
    for (int64_t r = 1; r <= n; r++)
        for (int64_t c = 1; c <= n; c++)
            block[r * width + c] = value(rank->index, rank->counter[STEP], r * width + c);
    spmd_exchange *exchange = begin(rank, SPMD_PERMUTE, (uint32_t)direction);
    along(rank, direction < 2 ? 0 : 1);
    exchange->source = wrap(exchange->position - shift, exchange->members);
    exchange->dest = wrap(exchange->position + shift, exchange->members);
    exchange->pull = pull_halo;
    exchange->send = send_halo;
}

static void halo_check(spmd_rank *rank)
{
    const spmd_exchange *exchange = &rank->exchange;
    int64_t direction = rank->counter[STEP] % 4, axis = direction < 2 ? 0 : 1;
    int64_t source = exchange->first + exchange->source * exchange->stride[axis];
    const int64_t *block = buffer(rank, OPERAND);
    spmd_box from, into;
    pull_halo(rank, exchange->source, &from, &into);
    for (int64_t k = 0; k < into.extent[0]; k++) {
        int64_t at = (into.offset - rank->buffer[OPERAND] + k * into.stride[0]) / 8;
        int64_t sent = (from.offset - rank->buffer[OPERAND] + k * from.stride[0]) / 8;
        expect(rank, block[at], value(source, rank->counter[STEP], sent));
    }
}
LOOP(halo, halo_prepare, halo_check)

/* print: a barrier and a line from every rank in each step. */
static void print_prepare(spmd_rank *rank)
{
    begin(rank, SPMD_BARRIER, 0);
}

static void print_check(spmd_rank *rank)
{
    char line[64];
    int length = snprintf(line, sizeof line, "step %lld rank %lld",
                          (long long)rank->counter[STEP], (long long)rank->index);
    rank->engine->print(rank, line, length);
}
LOOP(print, print_prepare, print_check)

/* stuck: rank 0 waits at a barrier to which nobody else comes. */
static int stuck_step(spmd_rank *rank)
{
    if (rank->index > 0)
        return SPMD_DONE;
    if (rank->pc == 0)
        begin(rank, SPMD_BARRIER, 0);
    rank->pc = 1;
    return rank->engine->exchange(rank) ? SPMD_DONE : SPMD_WAITS;
}

/* idle: one barrier, for measuring what a rank costs at load. */
static int idle_step(spmd_rank *rank)
{
    return stuck_step(rank);
}

/* data: input 0 (rows, columns) in uneven blocks over a 2-D mesh; output 0 is its double. */
static void block_of(int64_t n, int64_t parts, int64_t k, int64_t *offset, int64_t *extent)
{
    int64_t small = n / parts, larger = n % parts;
    *extent = small + (k < larger);
    *offset = k * small + (k < larger ? k : larger);
}

static void shard_data(const spmd_rank *rank, uint32_t array, int64_t *offset, int64_t *extent)
{
    (void)array;
    block_of(scalar(rank, ELEMENTS), rank->world->size[0], rank->coord[0], offset, extent);
    block_of(scalar(rank, STEPS), rank->world->size[1], rank->coord[1], offset + 1, extent + 1);
}

static void reserve_data(const spmd_world *world, int64_t *bytes)
{
    int64_t rows = world->scalar[ELEMENTS] / world->size[0] + 1;
    int64_t columns = world->scalar[STEPS] / world->size[1] + 1;
    bytes[ERRORS] = 8;
    bytes[OPERAND] = bytes[RESULT] = rows * columns * 8;
}

static int data_step(spmd_rank *rank)
{
    int64_t offset[2], extent[2];
    const int64_t *from = buffer(rank, OPERAND);
    int64_t *into = buffer(rank, RESULT);
    shard_data(rank, 0, offset, extent);
    for (int64_t k = 0; k < extent[0] * extent[1]; k++)
        into[k] = rank->world->given[0] ? 2 * from[k] : -1;
    return SPMD_DONE;
}

static const uint32_t row_buffers[] = {ERRORS, RESULT}, row_dims[] = {1, 2};
static const uint32_t data_buffers[] = {OPERAND, RESULT}, data_dims[] = {2, 2};

#define IMAGE(program, room, first_inputs, buffer_table, dims_table, shard_function)               \
    __attribute__((visibility("default"))) const spmd_image program##_image = {                    \
        .interface_version = SPMD_INTERFACE,                                                       \
        .axes = SPMD_AXES,                                                                         \
        .scalars = SCALARS,                                                                        \
        .inputs = first_inputs,                                                                    \
        .outputs = 2 - first_inputs,                                                               \
        .buffers = BUFFERS,                                                                        \
        .at_load = 1,                                                                              \
        .counters = COUNTERS,                                                                      \
        .sites = 4,                                                                                \
        .array_buffer = buffer_table,                                                              \
        .array_dims = dims_table,                                                                  \
        .reserve = room,                                                                           \
        .load = load_nothing,                                                                      \
        .shard = shard_function,                                                                   \
        .step = program##_step,                                                                    \
    }
#define ROWS(program, room) IMAGE(program, room, 0, row_buffers, row_dims, shard_rows)

ROWS(ring, reserve_two);
ROWS(edge, reserve_two);
ROWS(route, reserve_two);
ROWS(collide, reserve_two);
ROWS(reduce, reserve_two);
ROWS(round, reserve_two);
ROWS(axes, reserve_two);
ROWS(gather, reserve_all);
ROWS(swap, reserve_all);
ROWS(scatter, reserve_all);
ROWS(scan, reserve_two);
ROWS(halo, reserve_halo);
ROWS(print, reserve_two);
ROWS(stuck, reserve_two);
ROWS(idle, reserve_two);
IMAGE(data, reserve_data, 1, data_buffers, data_dims, shard_data);
