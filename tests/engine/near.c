/* Halos and shifts of a matrix that lies in balanced blocks over two mesh axes, as the compiler
 * writes them: of few rows, so that blocks are uneven and many are empty. What a rank wants of a
 * dim begins so far beyond where its block does, and ends so far beyond where that ends. In turn:
 * over both axes; along one; a shift that leaves nothing of my own; so wide that all read all. Every
 * rank checks what it gets, and that what nobody holds stays as it was.
 * Scalars: columns, steps, and a seed for random delays (0: none). */
#define _GNU_SOURCE
#include <unistd.h>

#include "counted.h"
#include "spmd_image.h"

#ifndef SPMD_DELAY
#define SPMD_DELAY() (void)0
#endif

enum { ERRORS, OPERAND, RESULT, BUFFERS };
enum { COLUMNS, STEPS, SEED, SCALARS };
enum { STEP, COUNTERS };
enum { SITES = 4, DIMS = 2, WIDE = 9, ASIDE = -1 };

typedef spmd_range part[DIMS];

static const spmd_range moved[SITES][DIMS] = { /* of where it begins, and where it ends */
    {{-1, 1}, {-2, 1}}, {{-1, 2}, {0, 0}}, {{0, 0}, {5, 6}}, {{-WIDE, WIDE}, {-WIDE, WIDE}},
};

static int in_group(uint32_t site, int axis)
{
    return axis < DIMS && (moved[site][axis].begin != 0 || moved[site][axis].end != 0);
}

static int64_t extent_of(const spmd_world *world, int dim)
{
    return dim ? world->scalar[COLUMNS] : 2 + world->scalar[COLUMNS] % 9;
}

static uint32_t site_of(const spmd_rank *rank)
{
    return (uint32_t)(rank->counter[STEP] % SITES);
}

static int64_t value(int64_t step, int64_t i, int64_t j)
{
    return step * 7919 + i * 100003 + j;
}

/* ---- who holds and wants what --------------------------------------------------------------- */

static spmd_range held(const spmd_world *world, int dim, int64_t k)
{
    int64_t n = extent_of(world, dim), small = n / world->size[dim], larger = n % world->size[dim];
    int64_t begin = k * small + (k < larger ? k : larger);
    return (spmd_range){begin, begin + small + (k < larger)};
}

static spmd_range wanted(const spmd_world *world, uint32_t site, int dim, int64_t k)
{
    spmd_range mine = held(world, dim, k);
    return (spmd_range){mine.begin + moved[site][dim].begin, mine.end + moved[site][dim].end};
}

static int reads(const spmd_world *world, uint32_t site, int dim, int64_t taker, int64_t giver)
{
    spmd_range has = held(world, dim, giver), wants = wanted(world, site, dim, taker);
    return has.begin < has.end && has.begin < wants.end && has.end > wants.begin;
}

/* Those along an axis that I read, or that read me. */
static spmd_range near_me(const spmd_rank *rank, uint32_t site, int axis, int readers)
{
    spmd_range found = {0, 0};
    int64_t me = rank->coord[axis], size = rank->world->size[axis];
    for (int64_t k = 0; k < size; k++) {
        if (!reads(rank->world, site, axis, readers ? k : me, readers ? me : k))
            continue;
        found.begin = found.end ? found.begin : k;
        found.end = k + 1;
    }
    return found;
}

/* What a member holds, or wants, of both dims. */
static void part_of(const spmd_rank *rank, int64_t member, int wants, part of)
{
    uint32_t site = site_of(rank);
    for (int dim = DIMS - 1; dim >= 0; dim--) {
        int64_t count = rank->exchange.count[dim], k = rank->coord[dim];
        if (in_group(site, dim))
            k = member % count;
        member /= count;
        of[dim] = wants ? wanted(rank->world, site, dim, k) : held(rank->world, dim, k);
    }
}

/* ---- boxes ---------------------------------------------------------------------------------- */

/* What the one holds and the other wants, where a buffer has all of `of`. */
static spmd_box common(const spmd_rank *rank, int which, part of, part has, part wants)
{
    spmd_box box = {.offset = rank->buffer[which], .dims = DIMS};
    int64_t stride = 8;
    for (int dim = DIMS - 1; dim >= 0; dim--) {
        int64_t begin = has[dim].begin > wants[dim].begin ? has[dim].begin : wants[dim].begin;
        int64_t end = has[dim].end < wants[dim].end ? has[dim].end : wants[dim].end;
        box.extent[dim] = end > begin ? end - begin : 0;
        box.stride[dim] = stride;
        box.offset += (begin - of[dim].begin) * stride;
        stride *= of[dim].end - of[dim].begin;
    }
    return box;
}

/* Of boxes that are alike in extents, the part of this wrap: rows in turn. */
static void wrap_part(const spmd_rank *rank, int64_t wrap, spmd_box *box)
{
    int64_t wraps = rank->exchange.wraps;
    box->offset += wrap * box->stride[0];
    box->extent[0] = (box->extent[0] - wrap + wraps - 1) / wraps;
    box->extent[0] = box->extent[0] > 0 ? box->extent[0] : 0;
    box->stride[0] *= wraps;
}

static void pull(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    part theirs, mine;
    int64_t wrap = member / rank->exchange.members;
    SPMD_DELAY();
    member %= rank->exchange.members;
    part_of(rank, member, 0, theirs);
    part_of(rank, rank->exchange.position, 1, mine);
    *from = common(rank, OPERAND, theirs, theirs, mine);
    *into = common(rank, RESULT, mine, theirs, mine);
    wrap_part(rank, wrap, from);
    wrap_part(rank, wrap, into);
}

static void give(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    part mine, theirs;
    int64_t wrap = member / rank->exchange.members;
    SPMD_DELAY();
    member %= rank->exchange.members;
    part_of(rank, rank->exchange.position, 0, mine);
    part_of(rank, member, 1, theirs);
    *from = common(rank, OPERAND, mine, mine, theirs);
    *into = common(rank, RESULT, theirs, mine, theirs);
    wrap_part(rank, wrap, from);
    wrap_part(rank, wrap, into);
}

static void send(const spmd_rank *rank, int64_t member, spmd_box *from)
{
    spmd_box into;
    give(rank, member, from, &into);
}

/* ---- steps ---------------------------------------------------------------------------------- */

static void begin(spmd_rank *rank)
{
    const int64_t *size = rank->world->size;
    const int64_t stride[] = {size[1] * size[2], size[2], 1};
    uint32_t site = site_of(rank);
    spmd_exchange *exchange = &rank->exchange;

    *exchange = (spmd_exchange){
        .site = site, .kind = SPMD_PULL, .size = 8, .flow = SPMD_NEAR, .differs = 1, .members = 1,
        .wraps = 1 + site % 3, .constant = site % 2,
        .first = rank->index, .pull = pull, .send = send,
        .give = rank->counter[STEP] / SITES % 2 ? give : NULL,
    };
    for (int axis = 0; axis < SPMD_AXES; axis++) {
        exchange->count[axis] = 1;
        exchange->stride[axis] = stride[axis];
        exchange->sources[axis] = exchange->readers[axis] = (spmd_range){0, 1};
        if (!in_group(site, axis))
            continue;
        exchange->count[axis] = size[axis];
        exchange->members *= size[axis];
        exchange->position = exchange->position * size[axis] + rank->coord[axis];
        exchange->first -= rank->coord[axis] * stride[axis];
        exchange->sources[axis] = near_me(rank, site, axis, 0);
        exchange->readers[axis] = near_me(rank, site, axis, 1);
    }
}

/* Fills my block and sets my result aside; or counts what is wrong in that. */
static int64_t walk(spmd_rank *rank, int which, int checks)
{
    int64_t *at = (int64_t *)(rank->memory + rank->buffer[which]), wrong = 0;
    int64_t rows = extent_of(rank->world, 0), columns = extent_of(rank->world, 1);
    part of;

    part_of(rank, rank->exchange.position, which == RESULT, of);
    for (int64_t i = of[0].begin; i < of[0].end; i++)
        for (int64_t j = of[1].begin; j < of[1].end; j++, at++) {
            int there = i >= 0 && i < rows && j >= 0 && j < columns;
            int64_t right = there ? value(rank->counter[STEP], i, j) : ASIDE;
            if (checks)
                wrong += *at != right;
            else
                *at = which == RESULT ? ASIDE : right;
        }
    return wrong;
}

static int near_step(spmd_rank *rank)
{
    int64_t *errors = (int64_t *)(rank->memory + rank->buffer[ERRORS]);
    if (rank->pc == 1)
        goto wait;
    *errors = 0;
    for (; rank->counter[STEP] < rank->world->scalar[STEPS]; rank->counter[STEP]++) {
        if (rank->world->scalar[SEED] && (rank->index + rank->counter[STEP]) % 7 == 0)
            usleep((useconds_t)(rank->world->scalar[SEED] * (rank->index + 1) % 97));
        begin(rank);
        walk(rank, OPERAND, 0);
        walk(rank, RESULT, 0);
    wait:
        rank->pc = 1;
        if (!rank->engine->exchange(rank))
            return SPMD_WAITS;
        *errors += walk(rank, RESULT, 1);
        rank->operation++;
    }
    return SPMD_DONE;
}

static void reserve(const spmd_world *world, int64_t *bytes)
{
    int64_t elements = 1;
    for (int dim = 0; dim < DIMS; dim++)
        elements *= extent_of(world, dim) / world->size[dim] + 1 + 2 * WIDE;
    bytes[ERRORS] = 8;
    bytes[OPERAND] = bytes[RESULT] = elements * 8;
}

COUNTED_IMAGE(near_image, near_step);
