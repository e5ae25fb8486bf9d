/* Reductions: all-reduce, reduce and prefixes of contiguous vectors, by the flow of the exchange;
 * and broadcasts whose work all share. Inside an arena by one of the algorithms below; then, where
 * there are several arenas, among the leaders, who hand the result on. Whatever the algorithm,
 * every member ends with the same bits: an element is folded once, or by everybody in the order of
 * the members. */
#include "parts.h"

#include <string.h>

/* Up to here everyone folds everyone's short vectors: `bench all-reduce --ranks N --sizes 8-4k`
 * compares --algorithm flat and blocks. */
#define DIRECT_MEMBERS 32

/* The contiguous operand and result of a member, as it sees them. */
typedef struct spmd_operand {
    int64_t from, into; /* offsets in its memory */
    int64_t elements, bytes;
} spmd_operand;

static spmd_operand operand_of(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                               int64_t place)
{
    spmd_box from, into;
    exchange->pull(rank, spmd_team_member(me->team, place), &from, &into);
    int64_t elements = spmd_box_elements(&into);
    return (spmd_operand){from.offset, into.offset, elements, elements * exchange->size};
}

/* Mine; of a broadcast, the root's, and where it goes. */
static spmd_operand own_operand(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    bool rooted = exchange->flow == SPMD_FROM_ROOT;
    return operand_of(me, rank, exchange, rooted ? me->sources.begin : me->team->position);
}

/* Says where my result lies, to all. Nobody reads this slot but between the meetings: nobody asks
 * whether I have posted it, or whether I have taken anything. */
static void result_post(spmd_hosted *me, const spmd_exchange *exchange, int64_t into)
{
    me->site->read_by[me->count & 1] = spmd_span_of(0, 0);
    me->slot->where = into;
    spmd_team_arrive(me, exchange);
}

static char *result_at(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    return spmd_place_memory(me, exchange, place) + spmd_place_slot(me, exchange, place)->where;
}

/* ---- blocks --------------------------------------------------------------------------------- */

/* Where what the members up to `place` have together is wanted: by the one whose result it is. */
static char *prefix_at(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    if (exchange->flow == SPMD_UP_TO)
        return result_at(me, exchange, place);
    if (exchange->flow == SPMD_BEFORE && place + 1 < me->team->count)
        return result_at(me, exchange, place + 1);
    return NULL;
}

/* The terms that fold all members' elements from `at` bytes on, and write each result that these
 * are a part of: whole results beginning with mine, so that no member is written by all at once. */
static int64_t block_terms(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                           int64_t at)
{
    int64_t count = me->team->count, terms = 0;
    spmd_term *term = me->worker->term;

    for (int64_t place = 0; place < count; place++) {
        spmd_operand operand = operand_of(me, rank, exchange, place);
        char *into = prefix_at(me, exchange, place);
        term[terms++] = (spmd_term){
            .from = spmd_place_memory(me, exchange, place) + operand.from + at,
            .into = into ? into + at : NULL,
        };
    }
    if (exchange->flow == SPMD_TO_ROOT)
        term[terms - 1].into = result_at(me, exchange, me->readers.begin) + at;
    for (int64_t k = 0; exchange->flow == SPMD_ALL && k < count; k++) {
        char *into = result_at(me, exchange, (me->team->position + k) % count) + at;
        if (k == 0)
            term[terms - 1].into = into;
        else
            term[terms++] = (spmd_term){.into = into};
    }
    return terms;
}

static void block_fold(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                       int64_t begin, int64_t end)
{
    int64_t terms = block_terms(me, rank, exchange, begin * exchange->size);
    exchange->fold(me->worker->term, terms, end - begin);
}

/* A part at a time, which stays in the first-level cache. */
static void block_copy(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                       int64_t begin, int64_t end)
{
    int64_t from = own_operand(me, rank, exchange).from, size = exchange->size;
    const char *root = spmd_place_memory(me, exchange, me->sources.begin) + from;

    for (int64_t at = begin * size; at < end * size; at += SPMD_COPY_BYTES)
        for (int64_t k = 0; k < me->team->count; k++) {
            int64_t place = (me->team->position + k) % me->team->count;
            spmd_run_copy(result_at(me, exchange, place) + at, root + at,
                          spmd_least(SPMD_COPY_BYTES, end * size - at));
        }
}

/* Member k deals with block k and writes it into all results. A block has whole lines: of a short
 * vector the first few members own all. */
static void block_write(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    int64_t elements = own_operand(me, rank, exchange).elements;
    int64_t line = exchange->size < SPMD_LINE ? SPMD_LINE / exchange->size : 1;
    int64_t block = (elements + me->team->count - 1) / me->team->count;
    block = (block + line - 1) / line * line;
    int64_t begin = me->team->position * block, end = spmd_least(elements, begin + block);

    if (begin < end && exchange->fold)
        block_fold(me, rank, exchange, begin, end);
    else if (begin < end)
        block_copy(me, rank, exchange, begin, end);
}

enum { BLOCKS_READY = SPMD_BEGUN + 1, BLOCKS_GIVEN };

bool spmd_blocks(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    if (rank->stage == SPMD_BEGUN) {
        if (!spmd_slot_free(me, exchange))
            return false;
        result_post(me, exchange, own_operand(me, rank, exchange).into);
        rank->stage = BLOCKS_READY;
    }
    if (rank->stage == BLOCKS_READY) {
        if (!spmd_team_passed(me, exchange))
            return false;
        block_write(me, rank, exchange);
        spmd_team_arrive(me, exchange);
        rank->stage = BLOCKS_GIVEN;
    }
    return spmd_team_passed(me, exchange);
}

/* A long broadcast, where all have a core and nobody would have anything better to do. */
bool spmd_shares_work(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_box from, into;
    if (exchange->flow != SPMD_FROM_ROOT || exchange->differs || me->job->crowded ||
        me->team->arenas > 1)
        return false;
    exchange->pull(rank, exchange->root, &from, &into);
    return spmd_box_elements(&into) * exchange->size >= spmd_job_limits(me->job)->share &&
           spmd_box_contiguous(&from, exchange->size) && spmd_box_contiguous(&into, exchange->size);
}

/* ---- ring ----------------------------------------------------------------------------------- */

/* One hop: half of a fragment comes from a neighbour's result into mine, folded or as it is. */
static void ring_hop(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                     int64_t neighbour, int64_t fragment, int half, bool folds)
{
    spmd_operand own = own_operand(me, rank, exchange);
    int64_t members = me->team->count;
    fragment = ((fragment % members) + members) % members;
    int64_t begin = fragment * own.elements / members;
    int64_t end = (fragment + 1) * own.elements / members;
    int64_t middle = begin + (end - begin + 1) / 2;

    begin = half == 0 ? begin : middle;
    end = half == 0 ? middle : end;
    if (begin == end)
        return;
    int64_t at = begin * exchange->size;
    char *into = rank->memory + own.into + at;
    const char *from = result_at(me, exchange, neighbour) + at;
    if (folds)
        spmd_fold_two(exchange->fold, into, into, from, end - begin);
    else
        memcpy(into, from, (size_t)((end - begin) * exchange->size));
}

/* A neighbour has posted its result, and made `steps` steps: what I read of it is complete. */
static bool ring_ready(spmd_hosted *me, const spmd_exchange *exchange, int64_t place, int64_t steps)
{
    const spmd_slot *slot = spmd_place_slot(me, exchange, place);
    const spmd_site *site = spmd_place_site(me, exchange, place);
    return atomic_load_explicit(&slot->posted, memory_order_acquire) >= me->count &&
           atomic_load_explicit(&site->steps, memory_order_acquire) >= me->base + (uint64_t)steps;
}

/* My neighbours may wait for the step that I have made. */
static void ring_wake(const spmd_hosted *me, const spmd_exchange *exchange, int64_t left,
                      int64_t right)
{
    spmd_span_ring(me, exchange, spmd_span_of(left, left + 1));
    spmd_span_ring(me, exchange, spmd_span_of(right, right + 1));
}

enum { RING_STEPS = SPMD_BEGUN + 1 };

/* Reduce-scatter, then all-gather, over as many virtual rings as there are members: in ring f,
 * fragment f starts at member f. Its first half travels upwards, its second half downwards at the
 * same time. The slot that the all-gather overwrites was read before: a fragment is complete only
 * after it has passed every member. */
static bool reduce_ring(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    int64_t members = me->team->count, last = 2 * (members - 1), k = me->team->position;
    int64_t left = (k + members - 1) % members, right = (k + 1) % members;

    if (rank->stage == SPMD_BEGUN) {
        if (!spmd_slot_free(me, exchange))
            return false;
        spmd_operand own = own_operand(me, rank, exchange);
        memcpy(rank->memory + own.into, rank->memory + own.from, (size_t)own.bytes);
        me->site->read_by[me->count & 1] = spmd_span_of(0, 0);
        me->base = atomic_load_explicit(&me->site->steps, memory_order_relaxed);
        me->slot->where = own.into;
        atomic_store_explicit(&me->slot->posted, me->count, memory_order_release);
        ring_wake(me, exchange, left, right);
        rank->stage = RING_STEPS;
    }
    for (int64_t step = rank->stage - RING_STEPS; step < last; step++) {
        if (!ring_ready(me, exchange, left, step) || !ring_ready(me, exchange, right, step))
            return false;
        bool folds = step < members - 1;
        int64_t hop = folds ? step + 1 : step - (members - 1);
        ring_hop(me, rank, exchange, left, k - hop, 0, folds);
        ring_hop(me, rank, exchange, right, k + hop, 1, folds);
        atomic_store_explicit(&me->site->steps, me->base + (uint64_t)step + 1,
                              memory_order_release);
        ring_wake(me, exchange, left, right);
        rank->stage++;
    }
    return ring_ready(me, exchange, left, last) && ring_ready(me, exchange, right, last);
}

/* ---- one arena, and several ----------------------------------------------------------------- */

static int64_t chosen(const spmd_hosted *me, const spmd_exchange *exchange, int64_t bytes)
{
    int64_t given = me->job->algorithm, members = me->team->count;

    if (members == 1 || (exchange->flow == SPMD_TO_ROOT && me->readers.begin == me->readers.end))
        return SPMD_FLAT;
    bool circles = exchange->flow == SPMD_ALL && bytes >= members * SPMD_LINE;
    if (given == SPMD_RING && !circles)
        return SPMD_BLOCKS;
    if (given != SPMD_AUTO)
        return given;
    const spmd_limits *limits = spmd_job_limits(me->job);
    if (bytes <= limits->fold && members <= DIRECT_MEMBERS)
        return SPMD_FLAT;
    return limits->ring && bytes >= limits->ring && circles ? SPMD_RING : SPMD_BLOCKS;
}

/* true: complete among the members of my arena. */
static bool reduce_here(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    if (rank->stage == SPMD_BEGUN)
        me->algorithm = chosen(me, exchange, own_operand(me, rank, exchange).bytes);
    if (me->algorithm == SPMD_RING)
        return reduce_ring(me, rank, exchange);
    if (me->algorithm == SPMD_BLOCKS)
        return spmd_blocks(me, rank, exchange);
    return spmd_direct(me, rank, exchange);
}

/* The leader's result for everybody of its arena. All come again, and tell where theirs is; the
 * leader comes when it has the result, and waits until all have taken it. */
enum { HAND_READY = SPMD_BETWEEN - 2, HAND_TAKEN = SPMD_BETWEEN - 1 };

static bool hand_on(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_operand own = own_operand(me, rank, exchange);

    if (rank->stage >= SPMD_BETWEEN) {
        spmd_count_begin(me, exchange);
        result_post(me, exchange, own.into);
        rank->stage = HAND_READY;
    }
    if (rank->stage == HAND_READY) {
        if (!spmd_team_passed(me, exchange))
            return false;
        if (me->team->position > 0)
            memcpy(rank->memory + own.into, result_at(me, exchange, 0), (size_t)own.bytes);
        spmd_team_arrive(me, exchange);
        rank->stage = HAND_TAKEN;
    }
    return spmd_team_passed(me, exchange);
}

static int all_reduce_between(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage >= SPMD_BETWEEN) {
        spmd_operand own = own_operand(me, rank, exchange);
        if (me->team->position == 0 &&
            !spmd_reduce_between(me, rank, exchange, rank->memory + own.into, own.elements,
                                 exchange->size, exchange->fold))
            return 0;
        if (me->team->count == 1)
            return 1;
    }
    return hand_on(me, rank, exchange);
}

/* Across arenas, a root gets everybody's operand itself. */
int spmd_reduce(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    bool prefix = exchange->flow == SPMD_UP_TO || exchange->flow == SPMD_BEFORE;

    if (prefix && me->team->arenas > 1)
        return spmd_scan(me, rank, exchange);
    if (rank->stage < HAND_READY) {
        if (!reduce_here(me, rank, exchange))
            return 0;
        if (me->team->arenas == 1)
            return 1;
        rank->stage = SPMD_BETWEEN;
    }
    if (exchange->flow == SPMD_TO_ROOT)
        return spmd_pull_between(me, rank, exchange);
    return all_reduce_between(me, rank, exchange);
}
