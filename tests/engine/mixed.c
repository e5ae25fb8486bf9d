/* One image with every kind of exchange, over every set of mesh axes, with nothing, little or much
 * to exchange: 312 sites, of which a run uses a few dozen in random order. In half of the steps the
 * ranks branch by one mesh coordinate: each group takes a site of its own, or none, on its own
 * clock. Operands and results change places at random. Every rank checks what it gets, and that
 * nothing beyond it was written.
 * Scalars: elements of a long exchange, steps, seed. */
#include <stddef.h>

#include "spmd_fold.h"
#include "counted.h"
#include "spmd_image.h"

#ifndef SPMD_DELAY
#define SPMD_DELAY() (void)0
#endif

enum { ERRORS, OPERAND, RESULT, PAIR = 2, BUFFERS = 1 + 2 * PAIR };
enum { ELEMENTS, STEPS, SEED, SCALARS };
enum { STEP, COUNTERS };
enum { GUARD = 4, USED = 24, ASIDE = -987654321 };

enum kind { MEET, SHIFT, EDGE, ROUTE, GATHER_ALL, SPREAD, GATHER, TURN, NEAR, SUM, SUM_PARTS,
            SUM_ROOT, PREFIX, KINDS };
static const uint32_t mask_of[] = {1, 2, 4, 3, 5, 7}; /* the axes of a group */
enum { MASKS = sizeof mask_of / sizeof *mask_of, LENGTHS = 4, SITES = KINDS * MASKS * LENGTHS };

/* What a site is: part of the program, so the same in every step. */
static enum kind kind_of(uint32_t site)
{
    return site % KINDS;
}

static int64_t length_of(const spmd_rank *rank, uint32_t site)
{
    const int64_t length[LENGTHS] = {0, 1, 3, rank->world->scalar[ELEMENTS]};
    return length[site / KINDS % LENGTHS];
}

static uint32_t axes_of(uint32_t site)
{
    return mask_of[site / KINDS / LENGTHS];
}

static uint64_t mix(uint64_t a, uint64_t b, uint64_t c)
{
    uint64_t mixed = a * 0x9e3779b97f4a7c15u + b * 0xbf58476d1ce4e5b9u + c * 0x94d049bb133111ebu;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

/* In some steps all ranks use the one pair of buffers, in others the other. */
static int64_t place_in_memory(const spmd_rank *rank, int which)
{
    uint64_t step = (uint64_t)rank->counter[STEP];
    int second = which != ERRORS && (mix(step, 5, 5) >> 17 & 1);
    return rank->buffer[which + PAIR * second];
}

static int64_t *buffer(const spmd_rank *rank, int which)
{
    return (int64_t *)(rank->memory + place_in_memory(rank, which));
}

/* What element `at` of a rank's operand is; no two steps or ranks give the same. */
static int64_t value(int64_t rank, int64_t step, int64_t at)
{
    return (rank + 1) * 1000003 + step * 7919 + at;
}

static int64_t now(const spmd_rank *rank)
{
    return rank->counter[STEP];
}

/* ---- groups and boxes ----------------------------------------------------------------------- */

static int64_t member_rank(const spmd_exchange *exchange, int64_t member)
{
    int64_t rank = exchange->first;
    for (int axis = SPMD_AXES - 1; axis >= 0; axis--) {
        rank += member % exchange->count[axis] * exchange->stride[axis];
        member /= exchange->count[axis];
    }
    return rank;
}

static spmd_box row(const spmd_rank *rank, int which, int64_t from, int64_t extent)
{
    spmd_box box = {.offset = place_in_memory(rank, which) + 8 * from, .dims = 1};
    box.extent[0] = extent;
    box.stride[0] = 8;
    return box;
}

static int64_t root_of(const spmd_exchange *exchange)
{
    return exchange->site % exchange->members;
}

/* Uneven: some members give nothing; of long ones some give little, and some much. */
static int64_t given_by(const spmd_exchange *exchange, int64_t member, int64_t length)
{
    return (member * 3571 + exchange->site * 1777) % (length + 1);
}

static int64_t block_begin(int64_t length, int64_t members, int64_t member)
{
    int64_t larger = length % members;
    return length / members * member + (member < larger ? member : larger);
}

/* Along each axis of a group I read those from so far below me to so far above. */
static spmd_range near_of(uint32_t site)
{
    int64_t step = site / KINDS % 2;
    return (spmd_range){step - (int64_t)(site % 3), step + (int64_t)(site % 2)};
}

static int is_near(const spmd_exchange *exchange, int64_t giver, int64_t taker)
{
    for (int axis = SPMD_AXES - 1; axis >= 0; axis--) {
        int64_t count = exchange->count[axis], far = giver % count - taker % count;
        spmd_range range = near_of(exchange->site);
        if (axes_of(exchange->site) >> axis & 1 && (far < range.begin || far > range.end))
            return 0;
        giver /= count;
        taker /= count;
    }
    return 1;
}

/* Positions along an axis, of those that lie on it. */
static spmd_range on_axis(int64_t begin, int64_t last, int64_t count)
{
    return (spmd_range){begin < 0 ? 0 : begin, last < count ? last + 1 : count};
}

/* Elements that `giver` has for `taker`, where they begin in its operand, and how far apart. */
typedef struct share {
    int64_t elements, begin, stride;
} share;

static share share_of(const spmd_rank *rank, int64_t giver, int64_t taker)
{
    const spmd_exchange *exchange = &rank->exchange;
    int64_t length = length_of(rank, exchange->site), members = exchange->members;
    switch (kind_of(exchange->site)) {
    case GATHER_ALL:
        return (share){given_by(exchange, giver, length), 0, 1};
    case SPREAD:
        return (share){giver == root_of(exchange) ? length : 0, 0, 1};
    case GATHER:
        return (share){taker == root_of(exchange) ? length : 0, 0, 1};
    case TURN:
        return (share){length, taker, members};
    case NEAR:
        return (share){given_by(exchange, giver * 5 + taker, length), taker, members};
    case SUM_PARTS:
        return (share){block_begin(length, members, taker + 1) -
                           block_begin(length, members, taker),
                       block_begin(length, members, taker), 1};
    default:
        return (share){length, 0, 1};
    }
}

/* What a member has is a part of what another one gets. */
static int counts(const spmd_exchange *exchange, int64_t giver, int64_t taker)
{
    switch (exchange->flow) {
    case SPMD_FROM_ROOT:
        return giver == exchange->root;
    case SPMD_TO_ROOT:
        return taker == exchange->root;
    case SPMD_UP_TO:
        return giver <= taker;
    case SPMD_BEFORE:
        return giver < taker;
    case SPMD_NEAR:
        return is_near(exchange, giver, taker);
    default:
        return 1;
    }
}

static uint32_t flow_of(uint32_t site)
{
    switch (kind_of(site)) {
    case SPREAD:
        return SPMD_FROM_ROOT;
    case GATHER:
    case SUM_ROOT:
        return SPMD_TO_ROOT;
    case NEAR:
        return SPMD_NEAR;
    case PREFIX: /* with my own, or without, by the length */
        return site / KINDS % 2 == 0 ? SPMD_UP_TO : SPMD_BEFORE;
    default:
        return SPMD_ALL;
    }
}

/* Where it goes in the taker's result. */
static int64_t place_of(const spmd_rank *rank, int64_t giver, int64_t taker)
{
    const spmd_exchange *exchange = &rank->exchange;
    int64_t length = length_of(rank, exchange->site), begin = 0;
    switch (kind_of(exchange->site)) {
    case GATHER_ALL:
    case NEAR:
        for (int64_t k = 0; k < giver; k++)
            begin += counts(exchange, k, taker) ? share_of(rank, k, taker).elements : 0;
        return begin;
    case GATHER:
    case TURN:
        return giver * length;
    default:
        return 0;
    }
}

static void send(const spmd_rank *rank, int64_t member, spmd_box *from)
{
    share mine = share_of(rank, rank->exchange.position, member);
    *from = row(rank, OPERAND, mine.begin, mine.elements);
    from->stride[0] = 8 * mine.stride;
}

static void pull(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    share theirs = share_of(rank, member, rank->exchange.position);
    SPMD_DELAY();
    *from = row(rank, OPERAND, theirs.begin, theirs.elements);
    from->stride[0] = 8 * theirs.stride;
    *into = row(rank, RESULT, place_of(rank, member, rank->exchange.position), theirs.elements);
}

static void give(const spmd_rank *rank, int64_t member, spmd_box *from, spmd_box *into)
{
    SPMD_DELAY();
    send(rank, member, from);
    *into = row(rank, RESULT, place_of(rank, rank->exchange.position, member), from->extent[0]);
}

static int64_t add(int64_t a, int64_t b)
{
    return a + b;
}
SPMD_FOLD(sum_at_once, int64_t, add)

static void sum(const spmd_term *term, int64_t terms, int64_t n)
{
    SPMD_DELAY();
    sum_at_once[0](term, terms, n);
    SPMD_DELAY();
}

/* ---- permutes ------------------------------------------------------------------------------- */

static int64_t wrap(int64_t number, int64_t n)
{
    return ((number % n) + n) % n;
}

static int64_t dest_of(const spmd_exchange *exchange, int64_t member, int64_t step)
{
    int64_t n = exchange->members;
    switch (kind_of(exchange->site)) {
    case SHIFT:
        return wrap(member + step, n);
    case EDGE:
        return member == n - 1 ? SPMD_NONE : member + 1;
    default: /* mirrored; in odd steps round, and member 0 is silent */
        if (step % 2 == 0)
            return n - 1 - member;
        return member == 0 ? SPMD_NONE : wrap(member + step, n);
    }
}

static int64_t source_of(const spmd_exchange *exchange, int64_t member, int64_t step)
{
    for (int64_t k = 0; k < exchange->members; k++)
        if (dest_of(exchange, k, step) == member)
            return k;
    return SPMD_NONE;
}

/* ---- steps ---------------------------------------------------------------------------------- */

/* Which site I go to in this step; -1: none. All members of its group come to the same answer. */
static int64_t site_of(const spmd_rank *rank)
{
    uint64_t seed = (uint64_t)rank->world->scalar[SEED], step = (uint64_t)now(rank);
    uint64_t random = mix(seed, step, 1);
    int axis = (int)(random % SPMD_AXES), branches = random >> 32 & 1;
    if (branches)
        random = mix(seed, step, 2 + (uint64_t)rank->coord[axis]);
    if (branches && random >> 40 & 1)
        return -1;
    for (uint64_t k = 0; k < USED; k++) {
        uint32_t site = (uint32_t)(mix(seed, (random + k) % USED, 0) % SITES);
        if (!branches || !(axes_of(site) >> axis & 1))
            return site;
    }
    return -1;
}

static const uint32_t engine_kind[KINDS] = {
    [MEET] = SPMD_BARRIER,         [SHIFT] = SPMD_PERMUTE,   [EDGE] = SPMD_PERMUTE,
    [ROUTE] = SPMD_PERMUTE,        [GATHER_ALL] = SPMD_PULL, [SPREAD] = SPMD_PULL,
    [GATHER] = SPMD_PULL,          [TURN] = SPMD_PULL,       [NEAR] = SPMD_PULL,
    [SUM] = SPMD_REDUCE,
    [SUM_PARTS] = SPMD_REDUCE_SCATTER, [SUM_ROOT] = SPMD_REDUCE, [PREFIX] = SPMD_REDUCE,
};

static void group_set(spmd_rank *rank, uint32_t site)
{
    const int64_t *size = rank->world->size;
    const int64_t stride[] = {size[1] * size[2], size[2], 1};
    rank->exchange = (spmd_exchange){
        .site = site, .kind = engine_kind[kind_of(site)], .size = 8, .wraps = 1, .members = 1,
        .first = rank->index, .source = SPMD_NONE, .dest = SPMD_NONE,
        .pull = pull, .send = send, .flow = flow_of(site),
        .differs = kind_of(site) == TURN || kind_of(site) == NEAR ||
                  kind_of(site) == SUM_PARTS,
    };
    spmd_exchange *exchange = &rank->exchange;
    for (int axis = 0; axis < SPMD_AXES; axis++) {
        int in = axes_of(site) >> axis & 1;
        exchange->count[axis] = in ? size[axis] : 1;
        exchange->stride[axis] = stride[axis];
        exchange->sources[axis] = exchange->readers[axis] = (spmd_range){0, 1};
        if (!in)
            continue;
        spmd_range near = near_of(site);
        int64_t at = rank->coord[axis];
        exchange->sources[axis] = on_axis(at + near.begin, at + near.end, size[axis]);
        exchange->readers[axis] = on_axis(at - near.end, at - near.begin, size[axis]);
        exchange->members *= size[axis];
        exchange->position = exchange->position * size[axis] + rank->coord[axis];
        exchange->first -= rank->coord[axis] * stride[axis];
    }
    exchange->root = root_of(exchange);
    if (kind_of(site) == GATHER_ALL || kind_of(site) == GATHER ||
        (kind_of(site) == NEAR && near_of(site).end))
        exchange->give = give;
    if (exchange->kind == SPMD_REDUCE || exchange->kind == SPMD_REDUCE_SCATTER)
        exchange->fold = sum;
}

/* Elements that this exchange brings me, zeros among them. */
static int64_t expected(const spmd_rank *rank)
{
    const spmd_exchange *exchange = &rank->exchange;
    int64_t elements = 0;
    if (exchange->kind == SPMD_BARRIER)
        return 0;
    for (int64_t k = 0; k < exchange->members; k++) {
        int64_t theirs = share_of(rank, k, exchange->position).elements;
        if (!counts(exchange, k, exchange->position))
            continue;
        if (exchange->kind == SPMD_PULL)
            elements += theirs;
        else if (theirs > elements)
            elements = theirs;
    }
    return elements;
}

static void begin(spmd_rank *rank, uint32_t site)
{
    group_set(rank, site);
    spmd_exchange *exchange = &rank->exchange;
    int64_t *operand = buffer(rank, OPERAND), *result = buffer(rank, RESULT);
    int64_t wide = kind_of(site) == TURN || kind_of(site) == NEAR ? exchange->members : 1;
    for (int64_t k = 0; k < wide * length_of(rank, site); k++)
        operand[k] = value(rank->index, now(rank), k);
    for (int64_t k = expected(rank) + GUARD; k-- > 0;)
        result[k] = ASIDE;
    if (exchange->kind == SPMD_PERMUTE) {
        exchange->dest = dest_of(exchange, exchange->position, now(rank));
        exchange->source = kind_of(site) == ROUTE
                               ? SPMD_UNKNOWN
                               : source_of(exchange, exchange->position, now(rank));
    }
}

/* What element `at` that comes from `giver` is. */
static int64_t sent(const spmd_rank *rank, int64_t giver, int64_t at)
{
    share theirs = share_of(rank, giver, rank->exchange.position);
    return value(member_rank(&rank->exchange, giver), now(rank), theirs.begin + at * theirs.stride);
}

static int64_t wanted(const spmd_rank *rank, int64_t at)
{
    const spmd_exchange *exchange = &rank->exchange;
    int64_t total = 0, source;
    if (exchange->kind == SPMD_PERMUTE) {
        source = source_of(exchange, exchange->position, now(rank));
        return source == SPMD_NONE ? 0 : sent(rank, source, at);
    }
    for (int64_t k = 0; k < exchange->members; k++) {
        share theirs = share_of(rank, k, exchange->position);
        int64_t begin_at = place_of(rank, k, exchange->position);
        if (counts(exchange, k, exchange->position) && at >= begin_at &&
            at < begin_at + theirs.elements)
            total += sent(rank, k, at - begin_at);
    }
    return total;
}

/* Of a long result every so many elements, and all near its ends. */
static void check(spmd_rank *rank)
{
    const int64_t *result = buffer(rank, RESULT);
    int64_t elements = expected(rank), errors = 0;
    for (int64_t k = 0; k < elements; k += k < 40 || k >= elements - 40 ? 1 : 37)
        errors += result[k] != wanted(rank, k);
    for (int64_t k = 0; k < GUARD; k++)
        errors += result[elements + k] != ASIDE;
    *buffer(rank, ERRORS) += errors;
}

static int mixed_step(spmd_rank *rank)
{
    if (rank->pc == 1)
        goto wait;
    *buffer(rank, ERRORS) = 0;
    for (; rank->counter[STEP] < rank->world->scalar[STEPS]; rank->counter[STEP]++) {
        int64_t site = site_of(rank);
        if (site < 0)
            continue;
        begin(rank, (uint32_t)site);
    wait:
        rank->pc = 1;
        if (!rank->engine->exchange(rank))
            return SPMD_WAITS;
        check(rank);
        rank->operation++;
    }
    return SPMD_DONE;
}

static void reserve(const spmd_world *world, int64_t *bytes)
{
    int64_t longest = world->scalar[ELEMENTS] > 3 ? world->scalar[ELEMENTS] : 3;
    bytes[ERRORS] = 8;
    for (int k = OPERAND; k < BUFFERS; k++)
        bytes[k] = (longest * world->ranks + GUARD) * 8;
}

COUNTED_IMAGE(mixed_image, mixed_step);
