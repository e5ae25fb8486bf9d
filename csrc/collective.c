/* All-reduce and reduce-scatter among the members of a team, by their places in it; then, where
 * there are several arenas, among the leaders, who hand the result on. Whatever the algorithm,
 * every member ends with the same bits: an element is combined once, in one order, or by everybody
 * in the order of the members. */
#include "parts.h"

#include <string.h>

#define CHUNK_BYTES (16 * 1024)  /* stays in the first-level cache while members pass over it */
#define MESSAGE_MEMBERS 32       /* up to here everyone reads everyone's words */
#define FLAT_BYTES (32 * 1024)   /* read by each member: below it one meeting less is worth more */
#define FLAT_MEMBERS 16

static int64_t least(int64_t a, int64_t b)
{
    return a < b ? a : b;
}

static spmd_site *place_site(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    return spmd_member_site(me, exchange, spmd_team_member(me->team, place));
}

static char *place_memory(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    return spmd_member_memory(me, exchange, spmd_team_member(me->team, place));
}

/* The contiguous operand and result of an all-reduce, as one member sees them. */
typedef struct spmd_operand {
    const char *from;
    char *into;
    int64_t into_offset, elements, bytes;
} spmd_operand;

static spmd_operand operand_of(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                               int64_t place)
{
    spmd_box from, into;
    exchange->pull(rank, spmd_team_member(me->team, place), &from, &into);
    int64_t elements = spmd_box_elements(&into);
    return (spmd_operand){
        .from = place_memory(me, exchange, place) + from.offset,
        .into = rank->memory + into.offset,
        .into_offset = into.offset,
        .elements = elements,
        .bytes = elements * exchange->size,
    };
}

/* into[begin, end) = all members' elements, in the order of the members. */
static void members_combine(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                            int64_t begin, int64_t end)
{
    int64_t at = begin * exchange->size, bytes = (end - begin) * exchange->size;
    for (int64_t place = 0; place < me->team->count; place++) {
        spmd_operand operand = operand_of(me, rank, exchange, place);
        if (place == 0)
            memcpy(operand.into + at, operand.from + at, (size_t)bytes);
        else
            exchange->combine(operand.into + at, operand.from + at, end - begin);
    }
}

static int64_t chunk_elements(const spmd_exchange *exchange)
{
    int64_t elements = CHUNK_BYTES / exchange->size;
    return elements > 0 ? elements : 1;
}

/* Short vectors: the operand travels in the line that announces it. One meeting is enough, since
 * nobody reads the operand itself; see spmd_site about the two messages. */
enum { MESSAGE_POSTED = 1 };

/* Where threads share cores, the last one to come wakes the others, once. */
static int reduce_messages(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    bool crowded = spmd_job_crowded(me->job);
    spmd_site *mine = &me->record->site[exchange->site];
    uint64_t count = atomic_load_explicit(&mine->posted, memory_order_relaxed);

    if (rank->stage == 0) {
        spmd_operand own = operand_of(me, rank, exchange, me->team->position);
        memcpy(mine->message[++count & 1].bytes, own.from, (size_t)own.bytes);
        atomic_store_explicit(&mine->posted, count, memory_order_release);
        me->next = 0;
        rank->stage = MESSAGE_POSTED;
        if (crowded)
            spmd_team_arrive(me, exchange);
        else
            spmd_team_ring(me, exchange);
    }
    if (crowded && !spmd_team_passed(me, exchange))
        return 0;
    spmd_operand own = {0};
    while (me->next < me->team->count) {
        spmd_site *site = place_site(me, exchange, me->next);
        if (atomic_load_explicit(&site->posted, memory_order_acquire) < count)
            return 0;
        if (!own.into)
            own = operand_of(me, rank, exchange, me->team->position);
        if (me->next == 0)
            memcpy(own.into, site->message[count & 1].bytes, (size_t)own.bytes);
        else
            exchange->combine(own.into, site->message[count & 1].bytes, own.elements);
        me->next++;
    }
    return 1;
}

/* Everyone combines everything. */
enum { FLAT_READY = 1, FLAT_TAKEN };

static int reduce_flat(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == 0) {
        spmd_team_arrive(me, exchange);
        rank->stage = FLAT_READY;
    }
    if (rank->stage == FLAT_READY) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        int64_t n = operand_of(me, rank, exchange, me->team->position).elements;
        int64_t chunk = chunk_elements(exchange);
        for (int64_t begin = 0; begin < n; begin += chunk)
            members_combine(me, rank, exchange, begin, least(n, begin + chunk));
        spmd_team_arrive(me, exchange);
        rank->stage = FLAT_TAKEN;
    }
    return spmd_team_passed(me, exchange);
}

/* Hands elements of my result to all other members, straight into their result buffers. */
static void block_push(spmd_hosted *me, const spmd_exchange *exchange, const spmd_operand *own,
                       int64_t begin, int64_t end)
{
    spmd_site *mine = &me->record->site[exchange->site];
    uint64_t count = atomic_load_explicit(&mine->posted, memory_order_relaxed);
    int64_t at = begin * exchange->size, bytes = (end - begin) * exchange->size;

    for (int64_t k = 1; k < me->team->count; k++) {
        int64_t place = (me->team->position + k) % me->team->count;
        spmd_site *site = place_site(me, exchange, place);
        char *into = place_memory(me, exchange, place) + site->message[count & 1].into;
        memcpy(into + at, own->into + at, (size_t)bytes);
    }
}

/* Member k combines block k over all members, chunk by chunk, and hands each chunk on while it is
 * in the cache. A block has whole lines: of a short vector the first few members own all. */
static void block_reduce(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_operand own = operand_of(me, rank, exchange, me->team->position);
    int64_t line = exchange->size < SPMD_LINE ? SPMD_LINE / exchange->size : 1;
    int64_t block = (own.elements + me->team->count - 1) / me->team->count;
    block = (block + line - 1) / line * line;
    int64_t end = least(own.elements, (me->team->position + 1) * block);
    int64_t chunk = chunk_elements(exchange);

    for (int64_t begin = me->team->position * block; begin < end; begin += chunk) {
        members_combine(me, rank, exchange, begin, least(end, begin + chunk));
        block_push(me, exchange, &own, begin, least(end, begin + chunk));
    }
}

enum { BLOCKS_READY = 1, BLOCKS_GIVEN };

static int reduce_blocks(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    spmd_site *mine = &me->record->site[exchange->site];

    if (rank->stage == 0) {
        spmd_operand own = operand_of(me, rank, exchange, me->team->position);
        uint64_t count = atomic_load_explicit(&mine->posted, memory_order_relaxed) + 1;
        mine->message[count & 1].into = own.into_offset;
        atomic_store_explicit(&mine->posted, count, memory_order_release);
        spmd_team_arrive(me, exchange);
        rank->stage = BLOCKS_READY;
    }
    if (rank->stage == BLOCKS_READY) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        block_reduce(me, rank, exchange);
        spmd_team_arrive(me, exchange);
        rank->stage = BLOCKS_GIVEN;
    }
    return spmd_team_passed(me, exchange);
}

/* One hop: half of a fragment comes from a neighbour's result into mine, combined or as it is. */
static void ring_hop(spmd_hosted *me, const spmd_exchange *exchange, const spmd_operand *own,
                     int64_t neighbour, int64_t fragment, int half, bool combine)
{
    int64_t members = me->team->count;
    fragment = ((fragment % members) + members) % members;
    int64_t begin = fragment * own->elements / members;
    int64_t end = (fragment + 1) * own->elements / members;
    int64_t middle = begin + (end - begin + 1) / 2;
    spmd_site *site = place_site(me, exchange, neighbour);
    const char *from = place_memory(me, exchange, neighbour) + site->message[me->base & 1].into;

    begin = half == 0 ? begin : middle;
    end = half == 0 ? middle : end;
    if (begin == end)
        return;
    int64_t at = begin * exchange->size;
    if (combine)
        exchange->combine(own->into + at, from + at, end - begin);
    else
        memcpy(own->into + at, from + at, (size_t)((end - begin) * exchange->size));
}

/* Both neighbours have made `steps` steps: what I read of them is complete. */
static bool ring_ready(spmd_hosted *me, const spmd_exchange *exchange, int64_t steps)
{
    int64_t members = me->team->count, position = me->team->position;
    spmd_site *left = place_site(me, exchange, (position + members - 1) % members);
    spmd_site *right = place_site(me, exchange, (position + 1) % members);
    uint64_t least_posted = me->base + (uint64_t)steps;
    return atomic_load_explicit(&left->posted, memory_order_acquire) >= least_posted &&
           atomic_load_explicit(&right->posted, memory_order_acquire) >= least_posted;
}

/* My neighbours may wait for the step that I have made. */
static void ring_wake(const spmd_hosted *me, const spmd_exchange *exchange, int64_t left,
                      int64_t right)
{
    const spmd_team *team = me->team;
    spmd_rank_ring(me->job, spmd_member_rank(exchange, spmd_team_member(team, left)));
    spmd_rank_ring(me->job, spmd_member_rank(exchange, spmd_team_member(team, right)));
}

/* Reduce-scatter, then all-gather, over as many virtual rings as there are members: in ring f,
 * fragment f starts at member f. Its first half travels upwards, its second half downwards at the
 * same time. The slot that the all-gather overwrites was read before: a fragment is complete only
 * after it has passed every member. */
static int reduce_ring(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    spmd_site *mine = &me->record->site[exchange->site];
    int64_t members = me->team->count, last = 2 * (members - 1), k = me->team->position;
    int64_t left = (k + members - 1) % members, right = (k + 1) % members;

    if (rank->stage == 0) {
        spmd_operand own = operand_of(me, rank, exchange, k);
        memcpy(own.into, own.from, (size_t)own.bytes);
        me->base = atomic_load_explicit(&mine->posted, memory_order_relaxed) + 1;
        mine->message[me->base & 1].into = own.into_offset;
        atomic_store_explicit(&mine->posted, me->base, memory_order_release);
        ring_wake(me, exchange, left, right);
        rank->stage = 1;
    }
    for (int64_t step = rank->stage - 1; step < last; step++) {
        if (!ring_ready(me, exchange, step))
            return 0;
        spmd_operand own = operand_of(me, rank, exchange, k);
        bool combine = step < members - 1;
        int64_t hop = combine ? step + 1 : step - (members - 1);
        ring_hop(me, exchange, &own, left, k - hop, 0, combine);
        ring_hop(me, exchange, &own, right, k + hop, 1, combine);
        atomic_store_explicit(&mine->posted, me->base + (uint64_t)step + 1, memory_order_release);
        ring_wake(me, exchange, left, right);
        rank->stage++;
    }
    return ring_ready(me, exchange, last);
}

static int reduce_here(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    int64_t algorithm = me->job->algorithm, members = me->team->count;
    int64_t bytes = rank->stage == 0 ? operand_of(me, rank, exchange, me->team->position).bytes
                                     : me->bytes;
    me->bytes = bytes;
    if (members == 1) {
        members_combine(me, rank, exchange, 0, bytes / exchange->size);
        return 1;
    }
    if (algorithm == SPMD_AUTO)
        algorithm = members <= FLAT_MEMBERS && members * bytes <= FLAT_BYTES ? SPMD_FLAT
                                                                             : SPMD_BLOCKS;
    if (bytes <= SPMD_MESSAGE_BYTES && members <= MESSAGE_MEMBERS &&
        me->job->algorithm <= SPMD_FLAT)
        return reduce_messages(me, rank, exchange);
    if (algorithm == SPMD_RING)
        return reduce_ring(me, rank, exchange);
    if (algorithm == SPMD_BLOCKS)
        return reduce_blocks(me, rank, exchange);
    return reduce_flat(me, rank, exchange);
}

/* The leader's result for everybody of its arena. All post, as in every all-reduce, where theirs
 * is; the leader comes when it has the result, and waits until all have taken it. */
enum { HAND_READY = SPMD_BETWEEN - 2, HAND_TAKEN = SPMD_BETWEEN - 1 };

static int hand_on(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    spmd_operand own = operand_of(me, rank, exchange, me->team->position);

    if (rank->stage >= SPMD_BETWEEN) {
        spmd_site *mine = &me->record->site[exchange->site];
        uint64_t count = atomic_load_explicit(&mine->posted, memory_order_relaxed) + 1;
        mine->message[count & 1].into = own.into_offset;
        atomic_store_explicit(&mine->posted, count, memory_order_release);
        spmd_team_arrive(me, exchange);
        rank->stage = HAND_READY;
    }
    if (rank->stage == HAND_READY) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        if (me->team->position > 0) {
            spmd_site *leader = place_site(me, exchange, 0);
            uint64_t count = atomic_load_explicit(&leader->posted, memory_order_relaxed);
            memcpy(own.into, place_memory(me, exchange, 0) + leader->message[count & 1].into,
                   (size_t)own.bytes);
        }
        spmd_team_arrive(me, exchange);
        rank->stage = HAND_TAKEN;
    }
    return spmd_team_passed(me, exchange);
}

int spmd_all_reduce(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage < HAND_READY) {
        if (!reduce_here(me, rank, exchange))
            return 0;
        if (me->team->arenas == 1)
            return 1;
        rank->stage = SPMD_BETWEEN;
    }
    if (rank->stage >= SPMD_BETWEEN) {
        spmd_operand own = operand_of(me, rank, exchange, me->team->position);
        if (me->team->position == 0 &&
            !spmd_reduce_between(me, rank, exchange, own.into, own.elements, exchange->size,
                                 exchange->combine))
            return 0;
        if (me->team->count == 1)
            return 1;
    }
    return hand_on(me, rank, exchange);
}

enum { SCATTER_READY = 1, SCATTER_TAKEN };

int spmd_reduce_scatter(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == 0) {
        spmd_team_arrive(me, exchange);
        rank->stage = SCATTER_READY;
    }
    if (rank->stage == SCATTER_READY) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        for (int64_t place = 0; place < me->team->count; place++) {
            spmd_box from, into;
            const char *memory = place_memory(me, exchange, place);
            exchange->pull(rank, spmd_team_member(me->team, place), &from, &into);
            if (place == 0)
                spmd_box_copy(rank->memory, &into, memory, &from, exchange->size);
            else
                spmd_box_combine(rank->memory, &into, memory, &from, exchange->size,
                                 exchange->combine);
        }
        spmd_team_arrive(me, exchange);
        rank->stage = SCATTER_TAKEN;
    }
    if (rank->stage == SCATTER_TAKEN) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        if (me->team->arenas == 1)
            return 1;
        rank->stage = SPMD_BETWEEN;
    }
    return spmd_pull_between(me, rank, exchange);
}
