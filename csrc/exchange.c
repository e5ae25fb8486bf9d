/* Exchanges: which function advances which, barriers, and permutes. Every function here is called
 * again and again until it returns 1, and never blocks: rank->stage and the hosted record hold
 * where it resumes. What goes to another arena, or comes from one, is a packet. */
#include "parts.h"

#include <stdlib.h>

const char *spmd_exchange_name(const spmd_exchange *exchange)
{
    static const char *const name[] = {
        [SPMD_PERMUTE] = "permute", [SPMD_BARRIER] = "barrier", [SPMD_PULL] = "pull",
        [SPMD_REDUCE] = "reduce",   [SPMD_REDUCE_SCATTER] = "reduce-scatter",
    };
    if (exchange->kind == SPMD_REDUCE && exchange->flow == SPMD_ALL)
        return "all-reduce";
    if (exchange->kind == SPMD_REDUCE && exchange->flow != SPMD_TO_ROOT)
        return "scan";
    return exchange->kind < sizeof name / sizeof *name ? name[exchange->kind] : "unknown exchange";
}

int64_t spmd_member_rank(const spmd_exchange *exchange, int64_t member)
{
    int64_t rank = exchange->first;
    for (int axis = SPMD_AXES - 1; axis >= 0 && member > 0; axis--) {
        int64_t count = exchange->count[axis];
        if (count <= 1)
            continue;
        rank += member % count * exchange->stride[axis];
        member /= count;
    }
    assert(member == 0 && "a member's position is below the number of members");
    return rank;
}

/* It exists, and lives in another arena. */
bool spmd_member_far(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    return me->job->parted && member != SPMD_NONE &&
           !spmd_rank_near(me->job, spmd_member_rank(exchange, member));
}

static bool in_ranges(const spmd_exchange *exchange, const spmd_range *range, int64_t member)
{
    for (int axis = SPMD_AXES - 1; axis >= 0; axis--) {
        int64_t count = exchange->count[axis], at = member % count;
        int64_t behind = ((at - range[axis].begin) % count + count) % count;
        if (behind >= range[axis].end - range[axis].begin)
            return false;
        member /= count;
    }
    return true;
}

/* `member` reads what `source` holds ready; one of them is me. */
bool spmd_member_reads(const spmd_exchange *exchange, int64_t member, int64_t source)
{
    switch (exchange->flow) {
    case SPMD_FROM_ROOT:
        return source == exchange->root;
    case SPMD_TO_ROOT:
        return member == exchange->root;
    case SPMD_UP_TO:
        return source <= member;
    case SPMD_BEFORE:
        return source < member;
    case SPMD_NEAR:
        return member == exchange->position ? in_ranges(exchange, exchange->sources, source)
                                            : in_ranges(exchange, exchange->readers, member);
    default:
        return true;
    }
}

enum { BARRIER_HERE = SPMD_BEGUN + 1, BARRIER_LEAVE = SPMD_BETWEEN - 1 };

/* Meet here; the leaders meet each other; then whoever waits here for its leader goes on too. */
static int barrier(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (exchange->members <= 1)
        return 1;
    if (rank->stage == SPMD_BEGUN) {
        spmd_team_arrive(me, exchange);
        rank->stage = BARRIER_HERE;
    }
    if (rank->stage == BARRIER_HERE) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        if (me->team->arenas == 1)
            return 1;
        rank->stage = SPMD_BETWEEN;
    }
    if (rank->stage >= SPMD_BETWEEN) {
        if (me->team->position == 0 && !spmd_barrier_between(me, rank, exchange))
            return 0;
        spmd_team_arrive(me, exchange);
        rank->stage = BARRIER_LEAVE;
    }
    return spmd_team_passed(me, exchange);
}

/* Boxes that are copied, or folded, as they come. */
static int pull(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == SPMD_BEGUN)
        me->shares = spmd_shares_work(me, rank, exchange);
    if (me->shares)
        return spmd_blocks(me, rank, exchange);
    if (rank->stage < SPMD_BETWEEN) {
        if (!spmd_direct(me, rank, exchange))
            return 0;
        if (me->team->arenas == 1)
            return 1;
        rank->stage = SPMD_BETWEEN;
    }
    return spmd_pull_between(me, rank, exchange);
}

/* ---- permute -------------------------------------------------------------------------------- */

enum {
    PERMUTE_ROUTED = SPMD_BEGUN + 1, /* routes are announced, in this arena */
    PERMUTE_KNOWN = SPMD_DIRECT_BEGIN - 1, /* the source is known, packets are under way */
    PERMUTE_HERE = SPMD_BETWEEN - 2,       /* what comes from this arena has come */
    PERMUTE_TOLD = SPMD_BETWEEN - 1,       /* routes of all arenas are known in this one */
};

static spmd_site *member_site(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    return spmd_job_site(me->job, spmd_member_rank(exchange, member), exchange->site);
}

static bool is_near(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    return member != SPMD_NONE && !spmd_member_far(me, exchange, member);
}

/* A source that was not solved at build: the sender announces itself in the receiver's slot. An
 * occupied slot is a collision. The slots alternate, because a sender may already be one exchange
 * ahead of me; it cannot be two, because it needs my arrival in between. */
static bool route_announce(spmd_hosted *me, const spmd_exchange *exchange, int64_t sender,
                           int64_t receiver)
{
    spmd_site *dest = member_site(me, exchange, receiver);
    int64_t other = atomic_exchange_explicit(&dest->route[me->count & 1], sender + 1,
                                             memory_order_acq_rel);
    if (other == 0)
        return true;
    spmd_rank_fail(&me->record->rank, 65,
                   "rank %lld and rank %lld both send to rank %lld in exchange %u",
                   (long long)spmd_member_rank(exchange, other - 1),
                   (long long)spmd_member_rank(exchange, sender),
                   (long long)spmd_member_rank(exchange, receiver), exchange->site);
    return false;
}

static int64_t route_read(spmd_hosted *me)
{
    int64_t sender = atomic_exchange_explicit(&me->site->route[me->count & 1], 0,
                                              memory_order_acq_rel);
    return sender == 0 ? SPMD_NONE : sender - 1;
}

/* A fold: what is larger. */
static void larger(const spmd_term *term, int64_t terms, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        int64_t most = 0;
        for (int64_t k = 0; k < terms; k++) {
            const int64_t *from = term[k].from;
            int64_t *into = term[k].into;
            if (from)
                most = k == 0 || from[i] > most ? from[i] : most;
            if (into)
                into[i] = most;
        }
    }
}

/* Routes across arenas: the leaders make a table of who sends to whom, and each fills the slots of
 * its own arena from it. A row is 0 until it is known, then the receiver + 2. */
static int routes_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    const spmd_team *team = me->team;

    if (rank->stage == SPMD_BETWEEN && !me->routes) {
        me->routes = calloc((size_t)exchange->members, sizeof *me->routes);
        if (!me->routes) {
            spmd_rank_fail(rank, 69, "no memory for a table of %lld routes",
                           (long long)exchange->members);
            return 0;
        }
        for (int64_t k = 0; k < team->count; k++) {
            int64_t member = spmd_team_member(team, k);
            me->routes[member] = member_site(me, exchange, member)->dest[me->count & 1] + 2;
        }
    }
    if (!spmd_reduce_between(me, rank, exchange, (char *)me->routes, exchange->members,
                             sizeof *me->routes, larger))
        return 0;
    bool fine = true;
    for (int64_t sender = 0; fine && sender < exchange->members; sender++) {
        int64_t receiver = me->routes[sender] - 2;
        if (is_near(me, exchange, receiver))
            fine = route_announce(me, exchange, sender, receiver);
    }
    free(me->routes);
    me->routes = NULL;
    return fine;
}

/* 1: me->source is known. Announce, meet, and read who has announced itself to me. */
static int permute_route(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    if (rank->stage == SPMD_BEGUN) {
        me->site->dest[me->count & 1] = exchange->dest;
        if (me->team->arenas == 1 && exchange->dest != SPMD_NONE &&
            !route_announce(me, exchange, exchange->position, exchange->dest))
            return 0;
        spmd_team_arrive(me, exchange);
        rank->stage = PERMUTE_ROUTED;
    }
    if (rank->stage == PERMUTE_ROUTED) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        rank->stage = me->team->arenas == 1 ? PERMUTE_TOLD : SPMD_BETWEEN;
    }
    if (rank->stage >= SPMD_BETWEEN) {
        if (me->team->position == 0 && !routes_between(me, rank, exchange))
            return 0;
        spmd_team_arrive(me, exchange);
        rank->stage = PERMUTE_TOLD;
    }
    if (!spmd_team_passed(me, exchange))
        return 0;
    me->source = route_read(me);
    return 1;
}

/* What goes to another arena, and what comes from one. A box that lies contiguous needs no room. */
static void permute_packets(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_box send, theirs, into;
    int64_t size = exchange->size, sent = 0, received = 0;
    bool pack = false, unpack = false;

    if (spmd_member_far(me, exchange, exchange->dest)) {
        exchange->send(rank, exchange->dest, &send);
        sent = spmd_box_elements(&send) * size;
        pack = sent && !spmd_box_contiguous(&send, size);
    }
    if (spmd_member_far(me, exchange, me->source)) {
        exchange->pull(rank, me->source, &theirs, &into);
        received = spmd_box_elements(&into) * size;
        unpack = received && !spmd_box_contiguous(&into, size);
    }
    int64_t bytes = (unpack ? received : 0) + (pack ? sent : 0);
    char *room = bytes ? spmd_packets_room(me, bytes) : NULL;
    if (bytes && !room)
        return;
    if (received)
        spmd_packet_receive(me, spmd_member_rank(exchange, me->source),
                            unpack ? room : rank->memory + into.offset, received);
    if (sent) {
        char *from = rank->memory + send.offset;
        if (pack) {
            from = room + (unpack ? received : 0);
            spmd_box_pack(from, rank->memory, &send, size);
        }
        spmd_packet_send(me, spmd_member_rank(exchange, exchange->dest), from, sent);
    }
}

/* Who receives nothing gets zeros; what has come in a packet may have to be unpacked. */
static void permute_finish(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_box from, into;
    bool none = me->source == SPMD_NONE; /* my own position serves to describe `into` */
    if (!none && !spmd_member_far(me, exchange, me->source))
        return;
    exchange->pull(rank, none ? exchange->position : me->source, &from, &into);
    if (none)
        spmd_box_zero(rank->memory, &into, exchange->size);
    else if (!spmd_box_contiguous(&into, exchange->size))
        spmd_box_unpack(rank->memory, &into, me->packets.room, exchange->size);
}

/* Distances that a program computes can wrap round. */
static bool is_peer(const spmd_exchange *exchange, int64_t member)
{
    return member == SPMD_NONE || (member >= 0 && member < exchange->members);
}

static bool has_peers(const spmd_rank *rank, const spmd_exchange *exchange)
{
    if (is_peer(exchange, exchange->dest) &&
        (exchange->source == SPMD_UNKNOWN || is_peer(exchange, exchange->source)))
        return true;
    spmd_rank_fail(rank, 65, "rank %lld sends to member %lld of %lld in exchange %u",
                   (long long)rank->index, (long long)exchange->dest, (long long)exchange->members,
                   exchange->site);
    return false;
}

static bool is_known(uint32_t stage)
{
    return stage >= PERMUTE_KNOWN && stage <= PERMUTE_HERE;
}

static int permute(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == SPMD_BEGUN && !has_peers(rank, exchange))
        return 0;
    if (!is_known(rank->stage)) {
        me->source = exchange->source;
        if (exchange->source == SPMD_UNKNOWN && !permute_route(me, rank, exchange))
            return 0;
        spmd_flow_find(me, exchange);
        if (me->job->parted)
            permute_packets(me, rank, exchange);
        rank->stage = PERMUTE_KNOWN;
    }
    if (rank->stage != PERMUTE_HERE) {
        if (!spmd_direct(me, rank, exchange))
            return 0;
        rank->stage = PERMUTE_HERE;
    }
    if (me->job->parted && !spmd_packets_done(me))
        return 0;
    permute_finish(me, rank, exchange);
    return 1;
}

enum { MEET_BEFORE, MOVE, MEET_AFTER };

static bool begin(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    if (!spmd_team_find(me, exchange))
        return false;
    me->near = NULL;
    if (exchange->flow == SPMD_NEAR && !spmd_near_find(me, exchange))
        return false;
    spmd_count_begin(me, exchange);
    if (exchange->kind != SPMD_PERMUTE)
        spmd_flow_find(me, exchange);
    rank->stage = SPMD_BEGUN;
    return true;
}

static int one_kind(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    static const spmd_advance kind[] = {
        [SPMD_PERMUTE] = permute,    [SPMD_BARRIER] = barrier,
        [SPMD_PULL] = pull,          [SPMD_REDUCE] = spmd_reduce,
        [SPMD_REDUCE_SCATTER] = pull,
    };
    assert(exchange->kind < sizeof kind / sizeof *kind && "an exchange has a known kind");
    return kind[exchange->kind](me, rank, exchange);
}

/* The only member of a group takes from itself what it takes; it meets nobody, and tells nobody. */
static bool is_alone(const spmd_exchange *exchange)
{
    bool moves = exchange->kind == SPMD_PULL || exchange->kind == SPMD_REDUCE ||
                 exchange->kind == SPMD_REDUCE_SCATTER;
    return exchange->members == 1 && exchange->flow == SPMD_ALL && moves;
}

static void take_own(spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_box from, into;

    for (int64_t wrap = 0; wrap < exchange->wraps; wrap++) {
        exchange->pull(rank, spmd_wrap_of(exchange, exchange->position, wrap), &from, &into);
        spmd_box_take(rank, exchange, &into, rank->memory, &from);
    }
}

/* With strict barriers all members meet before anything moves, and again when everything has. */
static int advance(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == 0) {
        if (is_alone(exchange)) {
            take_own(rank, exchange);
            return 1;
        }
        if (!begin(me, rank, exchange))
            return 0;
        me->around = me->job->strict ? MEET_BEFORE : MOVE;
    }
    if (me->around == MEET_BEFORE) {
        if (!barrier(me, rank, exchange))
            return 0;
        me->around = MOVE;
        rank->stage = SPMD_BEGUN;
    }
    if (me->around == MOVE) {
        if (!one_kind(me, rank, exchange))
            return 0;
        if (!me->job->strict)
            return 1;
        me->around = MEET_AFTER;
        rank->stage = SPMD_BEGUN;
    }
    return barrier(me, rank, exchange);
}

static int try_once(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    return me->timeline ? spmd_timeline_try(me, rank, exchange, advance)
                        : advance(me, rank, exchange);
}

int spmd_exchange_advance(spmd_rank *rank)
{
    spmd_hosted *me = rank->engine_data;
    spmd_exchange *exchange = &rank->exchange;
    uint32_t before = rank->stage;
    int around = me->around;

    assert(exchange->site < me->job->image->sites && "an exchange is in the manifest's table");
    int complete = try_once(me, rank, exchange);
    for (int64_t spins = me->worker->spins; !complete && spins > 0; spins--)
        complete = try_once(me, rank, exchange);
    if (complete) {
        rank->stage = 0;
        rank->superstep++;
    }
    if (complete || rank->stage != before || me->around != around) {
        me->worker->advances++;
        if (me->worker->sleepy) /* here, as a step can go on for long: a ring calls the system */
            spmd_wait_over(me->worker);
    }
    return complete;
}
