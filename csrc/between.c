/* Collectives between arenas, in steps: in each a rank sends to one or more others, receives from
 * one or more, and goes on when all of it is done. Barriers and reductions are the business of the
 * leaders, one for each arena; whoever pulls from another arena gets its packet directly.
 * rank->stage is SPMD_BETWEEN plus the number of the step. */
#include "parts.h"

#include <string.h>

/* Up to here fewer messages are worth more than fewer bytes: `bench all-reduce --transport mpi`. */
#define DOUBLING_BYTES (64 * 1024)
#define PAIRS 16 /* members that one rank exchanges with at a time */

static int64_t leader_rank(const spmd_hosted *me, const spmd_exchange *exchange, int64_t arena)
{
    return spmd_member_rank(exchange, me->team->leader[arena]);
}

/* ---- barrier -------------------------------------------------------------------------------- */

/* Dissemination: in step k a leader hears, through others, of 2^k more arenas (Hensgen, Finkel and
 * Manber 1988). */
int spmd_barrier_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    int64_t arenas = me->team->arenas, mine = me->team->arena;

    for (;;) {
        int64_t distance = (int64_t)1 << (rank->stage - SPMD_BETWEEN);
        if (distance >= arenas)
            return 1;
        if (!me->packets.under_way) {
            me->packets.under_way = true;
            spmd_packet_receive(me, leader_rank(me, exchange, (mine + arenas - distance) % arenas),
                                NULL, 0);
            spmd_packet_send(me, leader_rank(me, exchange, (mine + distance) % arenas), NULL, 0);
        }
        if (!spmd_packets_done(me))
            return 0;
        me->packets.under_way = false;
        rank->stage++;
    }
}

/* ---- reductions among leaders --------------------------------------------------------------- */

/* One step of an all-reduce: what goes to an arena, what comes from one and what becomes of it. */
enum what { REPLACE, COMBINE_AFTER, COMBINE_BEFORE }; /* mine with theirs; theirs with mine */

typedef struct spmd_move {
    int64_t to, from; /* arenas, or SPMD_NONE */
    int64_t send_begin, send_end, begin, end; /* elements */
    enum what what;
} spmd_move;

/* Recursive doubling. Arenas beyond a power of two first hand theirs to a neighbour and get the
 * result from it in the end. Pairs combine in the order of the arenas: all have the same bits. */
static bool move_doubling(int64_t step, int64_t mine, int64_t arenas, int64_t elements,
                          spmd_move *move)
{
    int64_t power = 1, steps = 0;
    while (2 * power <= arenas) {
        power *= 2;
        steps++;
    }
    int64_t extra = arenas - power;
    bool folded = mine < 2 * extra, upper = folded && mine % 2 == 1;
    *move = (spmd_move){SPMD_NONE, SPMD_NONE, 0, elements, 0, elements, REPLACE};
    if (step == 0 || step == steps + 1) {
        bool up = step == 0; /* the even ones hand theirs up, and get the result down */
        if (folded && upper == up) {
            move->from = up ? mine - 1 : mine + 1;
            move->what = up ? COMBINE_BEFORE : REPLACE;
        } else if (folded)
            move->to = up ? mine + 1 : mine - 1;
        return true;
    }
    if (step > steps + 1)
        return false;
    if (folded && !upper)
        return true;
    int64_t place = folded ? mine / 2 : mine - extra;
    int64_t other = place ^ ((int64_t)1 << (step - 1));
    move->to = move->from = other < extra ? 2 * other + 1 : other + extra;
    move->what = other < place ? COMBINE_BEFORE : COMBINE_AFTER;
    return true;
}

/* A ring: reduce-scatter, then all-gather, in as many fragments as there are arenas; fragment f
 * starts at arena f and is whole at arena f - 1. */
static bool move_ring(int64_t step, int64_t mine, int64_t arenas, int64_t elements, spmd_move *move)
{
    if (step >= 2 * (arenas - 1))
        return false;
    int64_t sent = ((mine - step) % arenas + arenas) % arenas;
    int64_t fragment = (sent + arenas - 1) % arenas;
    *move = (spmd_move){
        .to = (mine + 1) % arenas,
        .from = (mine + arenas - 1) % arenas,
        .send_begin = sent * elements / arenas,
        .send_end = (sent + 1) * elements / arenas,
        .begin = fragment * elements / arenas,
        .end = (fragment + 1) * elements / arenas,
        .what = step < arenas - 1 ? COMBINE_BEFORE : REPLACE,
    };
    return true;
}

static void move_start(spmd_hosted *me, const spmd_exchange *exchange, const spmd_move *move,
                       char *vector, int64_t size)
{
    int64_t bytes = (move->end - move->begin) * size;

    if (move->from != SPMD_NONE && bytes) {
        bool direct = move->what == REPLACE;
        char *into = direct ? vector + move->begin * size : spmd_packets_room(me, bytes);
        if (!into)
            return;
        spmd_packet_receive(me, leader_rank(me, exchange, move->from), into, bytes);
    }
    if (move->to != SPMD_NONE && move->send_end > move->send_begin)
        spmd_packet_send(me, leader_rank(me, exchange, move->to), vector + move->send_begin * size,
                         (move->send_end - move->send_begin) * size);
}

static void move_finish(spmd_hosted *me, const spmd_move *move, char *vector, int64_t size,
                        spmd_fold fold)
{
    int64_t elements = move->end - move->begin;
    char *mine = vector + move->begin * size, *theirs = me->packets.room;

    if (move->from == SPMD_NONE || move->what == REPLACE || elements == 0)
        return;
    if (move->what == COMBINE_AFTER)
        spmd_fold_two(fold, mine, mine, theirs, elements);
    else
        spmd_fold_two(fold, mine, theirs, mine, elements);
}

/* Combines the leaders' vectors into all of them. Only leaders call this. */
int spmd_reduce_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange, char *into,
                        int64_t elements, int64_t size, spmd_fold fold)
{
    const spmd_team *team = me->team;
    bool doubling = team->arenas == 2 || elements * size <= DOUBLING_BYTES;
    spmd_move move;

    for (;;) {
        int64_t step = rank->stage - SPMD_BETWEEN;
        bool more = doubling ? move_doubling(step, team->arena, team->arenas, elements, &move)
                             : move_ring(step, team->arena, team->arenas, elements, &move);
        if (!more)
            return 1;
        if (!me->packets.under_way) {
            me->packets.under_way = true;
            move_start(me, exchange, &move, into, size);
        }
        if (!spmd_packets_done(me))
            return 0;
        me->packets.under_way = false;
        move_finish(me, &move, into, size, fold);
        rank->stage++;
    }
}

/* ---- pull and reduce-scatter ---------------------------------------------------------------- */

/* In round r, pairs r * PAIRS and the following: I send to those so far above me, and receive from
 * those so far below. A pair that shares my arena is served there. */
typedef struct spmd_pair {
    int64_t to, from; /* members, or SPMD_NONE */
    spmd_box send, theirs, into;
    int64_t send_bytes, bytes;
} spmd_pair;

static spmd_pair pair_of(const spmd_hosted *me, const spmd_rank *rank,
                         const spmd_exchange *exchange, int64_t distance)
{
    int64_t members = exchange->members;
    spmd_pair pair = {.to = (exchange->position + distance) % members,
                      .from = (exchange->position + members - distance) % members};

    bool sends = spmd_member_reads(exchange, pair.to, exchange->position) &&
                 spmd_member_far(me, exchange, pair.to);
    bool receives = spmd_member_reads(exchange, exchange->position, pair.from) &&
                    spmd_member_far(me, exchange, pair.from);
    for (int64_t wrap = 0; sends && wrap < exchange->wraps; wrap++) {
        exchange->send(rank, spmd_wrap_of(exchange, pair.to, wrap), &pair.send);
        pair.send_bytes += spmd_box_elements(&pair.send) * exchange->size;
    }
    for (int64_t wrap = 0; receives && wrap < exchange->wraps; wrap++) {
        exchange->pull(rank, spmd_wrap_of(exchange, pair.from, wrap), &pair.theirs, &pair.into);
        pair.bytes += spmd_box_elements(&pair.into) * exchange->size;
    }
    return pair;
}

/* Bytes of room for a pair: one box that lies contiguous is sent, or received, where it is. */
static int64_t room_to_send(const spmd_pair *pair, const spmd_exchange *exchange)
{
    bool direct = exchange->wraps == 1 && spmd_box_contiguous(&pair->send, exchange->size);
    return pair->send_bytes && !direct ? pair->send_bytes : 0;
}

static int64_t room_to_receive(const spmd_pair *pair, const spmd_exchange *exchange)
{
    bool direct = exchange->wraps == 1 && exchange->kind == SPMD_PULL && !exchange->take &&
                  spmd_box_contiguous(&pair->into, exchange->size);
    return pair->bytes && !direct ? pair->bytes : 0;
}

/* Boxes of all wraps, one after the other. */
static void pair_pack(const spmd_rank *rank, const spmd_exchange *exchange, const spmd_pair *pair,
                      char *room)
{
    for (int64_t wrap = 0; wrap < exchange->wraps; wrap++) {
        spmd_box from;
        exchange->send(rank, spmd_wrap_of(exchange, pair->to, wrap), &from);
        spmd_box_pack(room, rank->memory, &from, exchange->size);
        room += spmd_box_elements(&from) * exchange->size;
    }
}

static void pair_unpack(const spmd_rank *rank, const spmd_exchange *exchange,
                        const spmd_pair *pair, const char *room)
{
    for (int64_t wrap = 0; wrap < exchange->wraps; wrap++) {
        spmd_box theirs, into, packed;
        exchange->pull(rank, spmd_wrap_of(exchange, pair->from, wrap), &theirs, &into);
        spmd_box_packed(&packed, &into, exchange->size);
        spmd_box_take(rank, exchange, &into, room, &packed);
        room += spmd_box_elements(&into) * exchange->size;
    }
}

static void pair_start(spmd_hosted *me, const spmd_rank *rank, const spmd_exchange *exchange,
                       const spmd_pair *pair, char *room)
{
    if (pair->bytes) {
        char *into = room_to_receive(pair, exchange) ? room : rank->memory + pair->into.offset;
        spmd_packet_receive(me, spmd_member_rank(exchange, pair->from), into, pair->bytes);
    }
    if (pair->send_bytes) {
        const char *from = rank->memory + pair->send.offset;
        if (room_to_send(pair, exchange)) {
            char *packed = room + room_to_receive(pair, exchange);
            pair_pack(rank, exchange, pair, packed);
            from = packed;
        }
        spmd_packet_send(me, spmd_member_rank(exchange, pair->to), from, pair->send_bytes);
    }
}

static void pair_finish(const spmd_rank *rank, const spmd_exchange *exchange, const spmd_pair *pair,
                        const char *room)
{
    if (!room_to_receive(pair, exchange))
        return;
    if (!exchange->fold) {
        pair_unpack(rank, exchange, pair, room);
        return;
    }
    spmd_term mine_and_theirs[] = {{.from = NULL}, {.from = room}};
    spmd_box packed;
    spmd_box_packed(&packed, &pair->into, exchange->size);
    spmd_box_fold(rank->memory, &pair->into, &packed, exchange->size, exchange->fold,
                  mine_and_theirs, 2);
}

/* How many pairs there are, and how far the k-th of them is. */
static int64_t pairs_of(const spmd_hosted *me, const spmd_exchange *exchange)
{
    return me->near ? me->near->distances : exchange->members - 1;
}

static int64_t pair_distance(const spmd_hosted *me, int64_t k)
{
    return me->near ? me->near->distance[k] : k + 1;
}

/* Starts a round, or finishes it: both go over its pairs in the same order with the same room. */
static bool round_walk(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange, bool start)
{
    int64_t first = (int64_t)(rank->stage - SPMD_BETWEEN) * PAIRS;
    int64_t last = spmd_least(first + PAIRS, pairs_of(me, exchange));
    int64_t bytes = 0;
    spmd_pair pair[PAIRS];

    for (int64_t k = first; k < last; k++) {
        pair[k - first] = pair_of(me, rank, exchange, pair_distance(me, k));
        bytes += room_to_receive(&pair[k - first], exchange) +
                 room_to_send(&pair[k - first], exchange);
    }
    char *room = start && bytes ? spmd_packets_room(me, bytes) : me->packets.room;
    if (bytes && !room)
        return false;
    for (int64_t k = first; k < last; k++) {
        const spmd_pair *one = &pair[k - first];
        if (start)
            pair_start(me, rank, exchange, one, room);
        else
            pair_finish(rank, exchange, one, room);
        if (bytes)
            room += room_to_receive(one, exchange) + room_to_send(one, exchange);
    }
    return true;
}

/* Whatever other arenas have for me, and I for them: a pull, or a reduce-scatter where there is
 * something to combine with. */
int spmd_pull_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    while ((int64_t)(rank->stage - SPMD_BETWEEN) * PAIRS < pairs_of(me, exchange)) {
        if (!me->packets.under_way) {
            me->packets.under_way = true;
            if (!round_walk(me, rank, exchange, true))
                return 0;
        }
        if (!spmd_packets_done(me))
            return 0;
        me->packets.under_way = false;
        round_walk(me, rank, exchange, false);
        rank->stage++;
    }
    return 1;
}
