/* Exchange inside an arena: the receiver copies straight from the sender's memory into its own.
 * What goes to another arena, or comes from one, is a packet.
 * Every function here is called again and again until it returns 1, and never blocks: rank->stage
 * and the hosted record hold where it resumes. A word is written by release after the data that it
 * announces, and read by acquire before them. */
#include "parts.h"

#include <stdlib.h>

const char *spmd_exchange_name(uint32_t kind)
{
    static const char *const name[] = {
        [SPMD_PERMUTE] = "permute",       [SPMD_BARRIER] = "barrier",
        [SPMD_PULL] = "pull",             [SPMD_ALL_REDUCE] = "all-reduce",
        [SPMD_REDUCE_SCATTER] = "reduce-scatter", [SPMD_SCAN] = "scan",
    };
    return kind < sizeof name / sizeof *name ? name[kind] : "unknown exchange";
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

spmd_site *spmd_member_site(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    return &spmd_job_record(me->job, spmd_member_rank(exchange, member))->site[exchange->site];
}

char *spmd_member_memory(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    return spmd_job_memory(me->job, spmd_member_rank(exchange, member));
}

/* It exists, and lives in another arena. */
bool spmd_member_far(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    return me->job->parted && member != SPMD_NONE &&
           !spmd_rank_near(me->job, spmd_member_rank(exchange, member));
}

/* All members of the team add to one counter, kept with its first; the k-th meeting at this site is
 * over when it has reached k times their number. */
void spmd_team_arrive(spmd_hosted *me, const spmd_exchange *exchange)
{
    spmd_site *mine = &me->record->site[exchange->site];
    spmd_site *group = spmd_member_site(me, exchange, spmd_team_member(me->team, 0));
    mine->arrived += (uint64_t)me->team->count;
    me->target = mine->arrived;
    if (atomic_fetch_add_explicit(&group->arrivals, 1, memory_order_acq_rel) + 1 == me->target)
        spmd_team_ring(me, exchange);
}

bool spmd_team_passed(const spmd_hosted *me, const spmd_exchange *exchange)
{
    spmd_site *group = spmd_member_site(me, exchange, spmd_team_member(me->team, 0));
    return atomic_load_explicit(&group->arrivals, memory_order_acquire) >= me->target;
}

enum { BARRIER_BEGIN, BARRIER_HERE, BARRIER_LEAVE = SPMD_BETWEEN - 1 };

/* Meet here; the leaders meet each other; then whoever waits here for its leader goes on too. */
static int barrier(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (exchange->members <= 1)
        return 1;
    if (rank->stage == BARRIER_BEGIN) {
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

enum { PULL_BEGIN, PULL_READY, PULL_TAKEN };

static int pull(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == PULL_BEGIN) {
        spmd_team_arrive(me, exchange);
        rank->stage = PULL_READY;
    }
    if (rank->stage == PULL_READY) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        /* Each begins with itself: no member is read by all others at the same time. */
        for (int64_t k = 0; k < me->team->count; k++) {
            int64_t place = (me->team->position + k) % me->team->count;
            int64_t member = spmd_team_member(me->team, place);
            spmd_box from, into;
            exchange->pull(rank, member, &from, &into);
            spmd_box_copy(rank->memory, &into, spmd_member_memory(me, exchange, member), &from,
                          exchange->size);
        }
        spmd_team_arrive(me, exchange);
        rank->stage = PULL_TAKEN;
    }
    if (rank->stage == PULL_TAKEN) {
        if (!spmd_team_passed(me, exchange))
            return 0;
        if (me->team->arenas == 1)
            return 1;
        rank->stage = SPMD_BETWEEN;
    }
    return spmd_pull_between(me, rank, exchange);
}

/* ---- permute -------------------------------------------------------------------------------- */

enum {
    PERMUTE_BEGIN,
    PERMUTE_ROUTED,    /* routes are announced, in this arena */
    PERMUTE_POSTED,    /* the source is known, packets are under way */
    PERMUTE_TAKEN,     /* what was sent to me is mine */
    PERMUTE_TOLD = SPMD_BETWEEN - 1, /* routes of all arenas are in the slots of this one */
};

static bool is_near(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    return member != SPMD_NONE && !spmd_member_far(me, exchange, member);
}

/* A source that was not solved at build: the sender announces itself in the receiver's slot. An
 * occupied slot is a collision. The slots alternate, because a sender may already be one exchange
 * ahead of me; it cannot be two, because it needs my arrival in between. */
static bool route_announce(spmd_hosted *me, const spmd_exchange *exchange, uint64_t count,
                           int64_t sender, int64_t receiver)
{
    spmd_site *dest = spmd_member_site(me, exchange, receiver);
    int64_t other = atomic_exchange_explicit(&dest->route[count & 1], sender + 1,
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

static int64_t route_read(spmd_hosted *me, const spmd_exchange *exchange, uint64_t count)
{
    spmd_site *mine = &me->record->site[exchange->site];
    int64_t sender = atomic_exchange_explicit(&mine->route[count & 1], 0, memory_order_acq_rel);
    return sender == 0 ? SPMD_NONE : sender - 1;
}

static void combine_larger(void *into, const void *from, int64_t n)
{
    int64_t *mine = into;
    const int64_t *theirs = from;
    for (int64_t k = 0; k < n; k++)
        mine[k] = theirs[k] > mine[k] ? theirs[k] : mine[k];
}

/* Routes across arenas: the leaders make a table of who sends to whom, and each fills the slots of
 * its own arena from it. A row is 0 until it is known, then the receiver + 2. */
static int routes_between(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                          uint64_t count)
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
            me->routes[member] =
                spmd_member_site(me, exchange, member)->message[count & 1].dest + 2;
        }
    }
    if (!spmd_reduce_between(me, rank, exchange, (char *)me->routes, exchange->members,
                             sizeof *me->routes, combine_larger))
        return 0;
    bool fine = true;
    for (int64_t sender = 0; fine && sender < exchange->members; sender++) {
        int64_t receiver = me->routes[sender] - 2;
        if (is_near(me, exchange, receiver))
            fine = route_announce(me, exchange, count, sender, receiver);
    }
    free(me->routes);
    me->routes = NULL;
    return fine;
}

/* 1: me->source is known. Announce, meet, and read who has announced itself to me. */
static int permute_route(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                         uint64_t count)
{
    if (rank->stage == PERMUTE_BEGIN) {
        spmd_site *mine = &me->record->site[exchange->site];
        mine->message[count & 1].dest = exchange->dest;
        if (me->team->arenas == 1 && exchange->dest != SPMD_NONE &&
            !route_announce(me, exchange, count, exchange->position, exchange->dest))
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
        if (me->team->position == 0 && !routes_between(me, rank, exchange, count))
            return 0;
        spmd_team_arrive(me, exchange);
        rank->stage = PERMUTE_TOLD;
    }
    if (!spmd_team_passed(me, exchange))
        return 0;
    me->source = route_read(me, exchange, count);
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

static void permute_take(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_box from, into;
    /* With no source there is nothing to pull from; my own position serves to describe `into`. */
    int64_t member = me->source == SPMD_NONE ? exchange->position : me->source;
    exchange->pull(rank, member, &from, &into);
    if (me->source == SPMD_NONE)
        spmd_box_zero(rank->memory, &into, exchange->size);
    else if (!spmd_member_far(me, exchange, member))
        spmd_box_copy(rank->memory, &into, spmd_member_memory(me, exchange, member), &from,
                      exchange->size);
    else if (!spmd_box_contiguous(&into, exchange->size))
        spmd_box_unpack(rank->memory, &into, me->packets.room, exchange->size);
}

/* Distances that a program computes can wrap round. */
static bool is_peer(const spmd_exchange *exchange, int64_t member)
{
    return member == SPMD_NONE || (member >= 0 && member < exchange->members);
}

static int permute_begin(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_site *mine = &me->record->site[exchange->site];

    if (!is_peer(exchange, exchange->dest) ||
        (exchange->source != SPMD_UNKNOWN && !is_peer(exchange, exchange->source))) {
        spmd_rank_fail(rank, 65, "rank %lld sends to member %lld of %lld in exchange %u",
                       (long long)rank->index, (long long)exchange->dest,
                       (long long)exchange->members, exchange->site);
        return 0;
    }
    atomic_fetch_add_explicit(&mine->posted, 1, memory_order_release);
    if (is_near(me, exchange, exchange->dest))
        spmd_rank_ring(me->job, spmd_member_rank(exchange, exchange->dest));
    return 1;
}

/* A packet that has arrived was sent before it arrived; a box in this arena was ready when its
 * owner posted, and is free again when its reader says that it has pulled. */
static int permute(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    spmd_site *mine = &me->record->site[exchange->site];

    if (rank->stage == PERMUTE_BEGIN && !permute_begin(me, rank, exchange))
        return 0;
    uint64_t count = atomic_load_explicit(&mine->posted, memory_order_relaxed);
    if (rank->stage != PERMUTE_POSTED && rank->stage != PERMUTE_TAKEN) {
        me->source = exchange->source;
        if (exchange->source == SPMD_UNKNOWN && !permute_route(me, rank, exchange, count))
            return 0;
        if (me->job->parted)
            permute_packets(me, rank, exchange);
        rank->stage = PERMUTE_POSTED;
    }
    if (rank->stage == PERMUTE_POSTED) {
        bool near = is_near(me, exchange, me->source);
        if (near && atomic_load_explicit(&spmd_member_site(me, exchange, me->source)->posted,
                                         memory_order_acquire) < count)
            return 0;
        if (me->job->parted && !spmd_packets_done(me))
            return 0;
        permute_take(me, rank, exchange);
        atomic_store_explicit(&mine->pulled, count, memory_order_release);
        if (is_near(me, exchange, me->source))
            spmd_rank_ring(me->job, spmd_member_rank(exchange, me->source));
        rank->stage = PERMUTE_TAKEN;
    }
    if (!is_near(me, exchange, exchange->dest))
        return 1;
    spmd_site *dest = spmd_member_site(me, exchange, exchange->dest);
    return atomic_load_explicit(&dest->pulled, memory_order_acquire) >= count;
}

static int try_once(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    static const spmd_advance advance[] = {
        [SPMD_PERMUTE] = permute,
        [SPMD_BARRIER] = barrier,
        [SPMD_PULL] = pull,
        [SPMD_ALL_REDUCE] = spmd_all_reduce,
        [SPMD_REDUCE_SCATTER] = spmd_reduce_scatter,
        [SPMD_SCAN] = spmd_scan,
    };
    assert(exchange->kind < sizeof advance / sizeof *advance && "an exchange has a known kind");
    if (me->timeline)
        return spmd_timeline_try(me, rank, exchange, advance[exchange->kind]);
    return advance[exchange->kind](me, rank, exchange);
}

int spmd_exchange_advance(spmd_rank *rank)
{
    spmd_hosted *me = rank->engine_data;
    spmd_exchange *exchange = &rank->exchange;
    uint32_t before = rank->stage;

    assert(exchange->site < me->job->image->sites && "an exchange is in the manifest's table");
    if (before == 0 && !spmd_team_find(me, exchange))
        return 0;
    int complete = try_once(me, rank, exchange);
    for (int64_t spins = me->worker->spins; !complete && spins > 0; spins--)
        complete = try_once(me, rank, exchange);
    if (complete) {
        rank->stage = 0;
        rank->superstep++;
    }
    if (complete || rank->stage != before) {
        me->worker->advances++;
        if (me->worker->sleepy) /* here, because a step can go on for long: who rings calls the system */
            spmd_wait_over(me->worker);
    }
    return complete;
}
