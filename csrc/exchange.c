/* Exchange by shared memory: the receiver copies straight from the sender's memory into its own.
 * Every function here is called again and again until it returns 1, and never blocks: rank->stage
 * and the hosted record hold where it resumes. A word is written by release after the data that it
 * announces, and read by acquire before them. */
#include "parts.h"

const char *spmd_exchange_name(uint32_t kind)
{
    static const char *const name[] = {
        [SPMD_PERMUTE] = "permute",       [SPMD_BARRIER] = "barrier",
        [SPMD_PULL] = "pull",             [SPMD_ALL_REDUCE] = "all-reduce",
        [SPMD_REDUCE_SCATTER] = "reduce-scatter",
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

/* All members add to one counter, kept with member 0; the k-th meeting of this site is over when
 * it has reached k times the members. */
void spmd_group_arrive(spmd_hosted *me, const spmd_exchange *exchange)
{
    spmd_site *mine = &me->record->site[exchange->site];
    spmd_site *group = spmd_member_site(me, exchange, 0);
    mine->arrived += (uint64_t)exchange->members;
    me->target = mine->arrived;
    atomic_fetch_add_explicit(&group->arrivals, 1, memory_order_acq_rel);
}

bool spmd_group_passed(const spmd_hosted *me, const spmd_exchange *exchange)
{
    spmd_site *group = spmd_member_site(me, exchange, 0);
    return atomic_load_explicit(&group->arrivals, memory_order_acquire) >= me->target;
}

static int barrier(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (exchange->members <= 1)
        return 1;
    if (rank->stage == 0) {
        spmd_group_arrive(me, exchange);
        rank->stage = 1;
    }
    return spmd_group_passed(me, exchange);
}

enum { PULL_BEGIN, PULL_READY, PULL_TAKEN };

static int pull(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    if (rank->stage == PULL_BEGIN) {
        spmd_group_arrive(me, exchange);
        rank->stage = PULL_READY;
    }
    if (rank->stage == PULL_READY) {
        if (!spmd_group_passed(me, exchange))
            return 0;
        /* Each begins with itself: no member is read by all others at the same time. */
        for (int64_t k = 0; k < exchange->members; k++) {
            int64_t member = (exchange->position + k) % exchange->members;
            spmd_box from, into;
            exchange->pull(rank, member, &from, &into);
            spmd_box_copy(rank->memory, &into, spmd_member_memory(me, exchange, member), &from,
                          exchange->size);
        }
        spmd_group_arrive(me, exchange);
        rank->stage = PULL_TAKEN;
    }
    return spmd_group_passed(me, exchange);
}

enum { PERMUTE_BEGIN, PERMUTE_ROUTED, PERMUTE_POSTED, PERMUTE_TAKEN };

/* A source that was not solved at build: the sender announces itself in the receiver's slot. An
 * occupied slot is a collision. The slots alternate, because a sender may already be one exchange
 * ahead of me; it cannot be two, because it needs my arrival in between. */
static bool route_announce(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                           uint64_t count)
{
    if (exchange->dest == SPMD_NONE)
        return true;
    spmd_site *dest = spmd_member_site(me, exchange, exchange->dest);
    int64_t other = atomic_exchange_explicit(&dest->route[count & 1], exchange->position + 1,
                                             memory_order_acq_rel);
    if (other == 0)
        return true;
    spmd_rank_fail(rank, 65, "rank %lld and rank %lld both send to rank %lld in exchange %u",
                   (long long)spmd_member_rank(exchange, other - 1), (long long)rank->index,
                   (long long)spmd_member_rank(exchange, exchange->dest), exchange->site);
    return false;
}

static int64_t route_read(spmd_hosted *me, const spmd_exchange *exchange, uint64_t count)
{
    spmd_site *mine = &me->record->site[exchange->site];
    int64_t sender = atomic_exchange_explicit(&mine->route[count & 1], 0, memory_order_acq_rel);
    return sender == 0 ? SPMD_NONE : sender - 1;
}

static void permute_take(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    spmd_box from, into;
    /* With no source there is nothing to pull from; my own position serves to describe `into`. */
    int64_t member = me->source == SPMD_NONE ? exchange->position : me->source;
    exchange->pull(rank, member, &from, &into);
    if (me->source == SPMD_NONE)
        spmd_box_zero(rank->memory, &into, exchange->size);
    else
        spmd_box_copy(rank->memory, &into, spmd_member_memory(me, exchange, member), &from,
                      exchange->size);
}

/* Distances that a program computes can wrap round. */
static bool is_peer(const spmd_exchange *exchange, int64_t member)
{
    return member == SPMD_NONE || (member >= 0 && member < exchange->members);
}

static int permute(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange)
{
    spmd_site *mine = &me->record->site[exchange->site];
    uint64_t count = atomic_load_explicit(&mine->posted, memory_order_relaxed);

    if (rank->stage == PERMUTE_BEGIN) {
        if (!is_peer(exchange, exchange->dest) ||
            (exchange->source != SPMD_UNKNOWN && !is_peer(exchange, exchange->source))) {
            spmd_rank_fail(rank, 65, "rank %lld sends to member %lld of %lld in exchange %u",
                           (long long)rank->index, (long long)exchange->dest,
                           (long long)exchange->members, exchange->site);
            return 0;
        }
        me->source = exchange->source;
        atomic_store_explicit(&mine->posted, ++count, memory_order_release);
        rank->stage = PERMUTE_POSTED;
        if (exchange->source == SPMD_UNKNOWN) {
            if (!route_announce(me, rank, exchange, count))
                return 0;
            spmd_group_arrive(me, exchange);
            rank->stage = PERMUTE_ROUTED;
        }
    }
    if (rank->stage == PERMUTE_ROUTED) {
        if (!spmd_group_passed(me, exchange))
            return 0;
        me->source = route_read(me, exchange, count);
        rank->stage = PERMUTE_POSTED;
    }
    if (rank->stage == PERMUTE_POSTED) {
        if (me->source != SPMD_NONE) {
            spmd_site *source = spmd_member_site(me, exchange, me->source);
            if (atomic_load_explicit(&source->posted, memory_order_acquire) < count)
                return 0;
        }
        permute_take(me, rank, exchange);
        atomic_store_explicit(&mine->pulled, count, memory_order_release);
        rank->stage = PERMUTE_TAKEN;
    }
    if (exchange->dest == SPMD_NONE)
        return 1;
    spmd_site *dest = spmd_member_site(me, exchange, exchange->dest);
    return atomic_load_explicit(&dest->pulled, memory_order_acquire) >= count;
}

int spmd_exchange_advance(spmd_rank *rank)
{
    static int (*const advance[])(spmd_hosted *, spmd_rank *, spmd_exchange *) = {
        [SPMD_PERMUTE] = permute,
        [SPMD_BARRIER] = barrier,
        [SPMD_PULL] = pull,
        [SPMD_ALL_REDUCE] = spmd_all_reduce,
        [SPMD_REDUCE_SCATTER] = spmd_reduce_scatter,
    };
    spmd_hosted *me = rank->engine_data;
    spmd_exchange *exchange = &rank->exchange;
    uint32_t before = rank->stage;

    assert(exchange->kind < sizeof advance / sizeof *advance && "an exchange has a known kind");
    assert(exchange->site < me->job->image->sites && "an exchange is in the manifest's table");
    int complete = advance[exchange->kind](me, rank, exchange);
    if (complete) {
        rank->stage = 0;
        rank->superstep++;
    }
    if (complete || rank->stage != before)
        me->worker->advances++;
    return complete;
}
