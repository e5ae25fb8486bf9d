/* Inside an arena a member reads straight from the memory of the members that it reads: it copies
 * from it, or folds it. Short data are first copied into a slot, in the line that announces them:
 * then their owner goes on at once, and waits for its readers only when it needs the slot again,
 * two exchanges later. Long data are read where they lie, and stay there until all have read them;
 * or, where that spares somebody work, their owner writes them to where they are wanted.
 * A word is written by release after the data that it announces, and read by acquire before them.
 * tests/engine/test_slots.py tries every interleaving of a model. */
#include "parts.h"

#include <string.h>

/* Above, one counter is cheaper than a look at everybody: `bench all-gather --sizes 8` of more and
 * fewer ranks shows it, where each has a core. */
#define GATE_MEMBERS 8
#define ELEMENT_BYTES 16 /* the largest */

/* ---- the words of the members --------------------------------------------------------------- */

static int64_t place_rank(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    return spmd_member_rank(exchange, spmd_team_member(me->team, place));
}

spmd_site *spmd_place_site(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    return spmd_job_site(me->job, place_rank(me, exchange, place), exchange->site);
}

char *spmd_place_memory(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    return spmd_job_memory(me->job, place_rank(me, exchange, place));
}

static spmd_slot *site_slot(const spmd_job *job, spmd_site *site, uint64_t count)
{
    int64_t slot = (int64_t)offsetof(spmd_slot, bytes) + job->slot_bytes;
    return (spmd_slot *)((char *)(site + 1) + (int64_t)(count & 1) * slot);
}

const spmd_slot *spmd_place_slot(const spmd_hosted *me, const spmd_exchange *exchange,
                                 int64_t place)
{
    return site_slot(me->job, spmd_place_site(me, exchange, place), me->count);
}

static bool has_posted(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    const spmd_slot *slot = spmd_place_slot(me, exchange, place);
    return atomic_load_explicit(&slot->posted, memory_order_acquire) >= me->count;
}

/* All in this span, but me, have taken what they read in exchange `count` and before. */
static bool have_taken(const spmd_hosted *me, const spmd_exchange *exchange, spmd_span span,
                       uint64_t count)
{
    for (int64_t k = span.begin; k < span.end; k++) {
        int64_t place = spmd_span_at(span, k);
        const spmd_site *site = spmd_place_site(me, exchange, place);
        if (place != me->team->position &&
            atomic_load_explicit(&site->taken, memory_order_acquire) < count)
            return false;
    }
    return true;
}

/* An exchange begins, or a further part of one in which I am to post again. */
void spmd_count_begin(spmd_hosted *me, const spmd_exchange *exchange)
{
    me->site = spmd_place_site(me, exchange, me->team->position);
    me->count = ++me->site->count;
    me->slot = site_slot(me->job, me->site, me->count);
}

/* All members of the team add to one counter, kept with its first; the k-th meeting at this site is
 * over when it has reached k times their number. */
void spmd_team_arrive(spmd_hosted *me, const spmd_exchange *exchange)
{
    spmd_site *group = spmd_place_site(me, exchange, 0);
    me->site->arrived += (uint64_t)me->team->count;
    me->target = me->site->arrived;
    if (atomic_fetch_add_explicit(&group->arrivals, 1, memory_order_acq_rel) + 1 == me->target)
        spmd_span_ring(me, exchange, spmd_span_of(0, me->team->count));
}

bool spmd_team_passed(const spmd_hosted *me, const spmd_exchange *exchange)
{
    const spmd_site *group = spmd_place_site(me, exchange, 0);
    return atomic_load_explicit(&group->arrivals, memory_order_acquire) >= me->target;
}

/* Whoever read my slot when it was last used has done so. Where all read all nobody needs to ask:
 * they have posted the exchange that came after it. */
bool spmd_slot_free(const spmd_hosted *me, const spmd_exchange *exchange)
{
    return me->count <= 2 ||
           have_taken(me, exchange, me->site->read_by[me->count & 1], me->count - 2);
}

/* ---- who reads whom ------------------------------------------------------------------------- */

static spmd_span only(const spmd_hosted *me, const spmd_exchange *exchange, int64_t member)
{
    if (member == SPMD_NONE || spmd_member_far(me, exchange, member))
        return spmd_span_of(0, 0);
    return spmd_team_span(me->team, member, member + 1);
}

void spmd_flow_find(spmd_hosted *me, const spmd_exchange *exchange)
{
    int64_t n = exchange->members, own = exchange->position, root = exchange->root;
    spmd_span all = spmd_span_of(0, me->team->count), none = spmd_span_of(0, 0);

    me->gated = false;
    if (exchange->kind == SPMD_PERMUTE) {
        me->sources = only(me, exchange, me->source);
        me->readers = only(me, exchange, exchange->dest);
        return;
    }
    switch (exchange->flow) {
    case SPMD_FROM_ROOT:
        me->sources = only(me, exchange, root);
        me->readers = own == root ? all : none;
        return;
    case SPMD_TO_ROOT:
        me->sources = own == root ? all : none;
        me->readers = only(me, exchange, root);
        return;
    case SPMD_UP_TO:
        me->sources = spmd_team_span(me->team, 0, own + 1);
        me->readers = spmd_team_span(me->team, own, n);
        return;
    case SPMD_BEFORE:
        me->sources = spmd_team_span(me->team, 0, own);
        me->readers = spmd_team_span(me->team, own + 1, n);
        return;
    case SPMD_NEAR:
        me->sources = me->near->sources;
        me->readers = me->near->readers;
        return;
    default:
        me->sources = me->readers = all;
        me->gated = me->team->count > GATE_MEMBERS || me->job->crowded;
    }
}

/* So nobody is two exchanges ahead of anybody, whoever asks or not. */
static bool all_read_all(const spmd_exchange *exchange)
{
    return exchange->kind != SPMD_PERMUTE && exchange->flow == SPMD_ALL;
}

static bool reads_others(const spmd_hosted *me, spmd_span span)
{
    int64_t own = me->team->position, count = span.end - span.begin;
    return count > 1 || (count == 1 && spmd_span_at(span, span.begin) != own);
}

/* ---- posting -------------------------------------------------------------------------------- */

/* Where my piece begins in a slot: in its table, by my place; or behind my place, where only those
 * near its owner are in it. */
static int64_t piece_begin(const spmd_hosted *me, const spmd_exchange *exchange,
                           const spmd_slot *slot)
{
    const int32_t *table = (const int32_t *)(const void *)slot->bytes;
    if (!exchange->differs)
        return 0;
    if (!me->near)
        return table[me->team->position];
    while (table[0] != me->team->position)
        table += 2;
    return table[1];
}

static int64_t box_of(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place,
                      int64_t wrap)
{
    return spmd_wrap_of(exchange, spmd_team_member(me->team, place), wrap);
}

/* What my readers read, one after the other in my slot; pieces behind a table of where they begin.
 * false: it does not fit. */
static bool slot_fill(spmd_hosted *me, const spmd_rank *rank, const spmd_exchange *exchange)
{
    int64_t size = exchange->size, most = spmd_job_limits(me->job)->slot;
    int32_t *table = (int32_t *)(void *)me->slot->bytes;
    int64_t words = me->near ? 2 * me->readers.end : me->team->count;
    int64_t table_bytes = words * (int64_t)sizeof *table;
    int64_t at = exchange->differs ? spmd_round_up(table_bytes, ELEMENT_BYTES) : 0;
    const uint64_t *wraps = me->near ? me->near->reader_wraps : NULL;

    for (int64_t k = me->readers.begin; k < me->readers.end; k++) {
        int64_t place = spmd_span_at(me->readers, k);
        if (exchange->differs && !exchange->fold && place == me->team->position)
            continue;
        if (exchange->differs && me->near)
            *table++ = (int32_t)place, *table++ = (int32_t)at;
        else if (exchange->differs)
            table[place] = (int32_t)at;
        for (int64_t wrap = 0; wrap < exchange->wraps; wrap++) {
            spmd_box box;
            if (!spmd_wrap_moves(wraps, k, wrap))
                continue;
            exchange->send(rank, box_of(me, exchange, place, wrap), &box);
            int64_t bytes = spmd_box_elements(&box) * size;
            if (at + bytes > most)
                return false;
            spmd_box_pack(me->slot->bytes + at, rank->memory, &box, size);
            at = spmd_round_up(at + bytes, ELEMENT_BYTES);
        }
        if (!exchange->differs)
            break;
    }
    return true;
}

/* Where everybody gives, all post: a post says too that my result may be written now. */
static void post(spmd_hosted *me, const spmd_rank *rank, const spmd_exchange *exchange)
{
    bool is_read = reads_others(me, me->readers);

    me->in_place = me->theirs_in_place = me->gives = me->theirs_given = false;
    me->site->read_by[me->count & 1] = all_read_all(exchange) ? spmd_span_of(0, 0) : me->readers;
    if (is_read || (exchange->give && reads_others(me, me->sources))) {
        bool fits = !is_read || slot_fill(me, rank, exchange);
        me->gives = !fits && exchange->give;
        me->in_place = !fits && !exchange->give;
        me->slot->where = fits ? SPMD_HERE : me->gives ? SPMD_GIVEN : SPMD_IN_PLACE;
        atomic_store_explicit(&me->slot->posted, me->count, memory_order_release);
        if (me->near && exchange->give)
            spmd_span_ring(me, exchange, me->near->both);
        else if (!me->gated)
            spmd_span_ring(me, exchange, is_read ? me->readers : me->sources);
    }
    if (me->gated)
        spmd_team_arrive(me, exchange);
}

/* ---- giving --------------------------------------------------------------------------------- */

/* A box into the memory of each reader, mine too if I am one: a part at a time, which stays in the
 * first-level cache where it is one box for all; else boxes may be of different lengths. */
static void give(const spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    int64_t count = (me->readers.end - me->readers.begin) * exchange->wraps;
    int64_t size = exchange->size, longest = 1;
    const uint64_t *wraps = me->near ? me->near->reader_wraps : NULL;

    for (int64_t at = 0; at < longest; at += SPMD_COPY_BYTES)
        for (int64_t k = 0; k < count; k++) {
            int64_t reader = k / exchange->wraps, wrap = k % exchange->wraps;
            if (!spmd_wrap_moves(wraps, reader, wrap))
                continue;
            int64_t place = spmd_span_place(me->readers, me->team->position, reader);
            char *memory = spmd_place_memory(me, exchange, place);
            spmd_box from, into;
            exchange->give(rank, box_of(me, exchange, place, wrap), &from, &into);
            int64_t bytes = spmd_box_elements(&from) * size;
            if (spmd_box_contiguous(&from, size) && spmd_box_contiguous(&into, size)) {
                longest = bytes > longest ? bytes : longest;
                if (at < bytes)
                    spmd_run_copy(memory + into.offset + at, rank->memory + from.offset + at,
                                  spmd_least(bytes - at, SPMD_COPY_BYTES));
            } else if (at == 0)
                spmd_box_copy(memory, &into, rank->memory, &from, size);
        }
}

/* false: a reader is not there yet. */
static bool readers_give(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    for (int64_t k = me->readers.begin; !me->gated && k < me->readers.end; k++) {
        int64_t place = spmd_span_at(me->readers, k);
        if (place != me->team->position && !has_posted(me, exchange, place))
            return false;
    }
    if (me->gated && !spmd_team_passed(me, exchange))
        return false;
    give(me, rank, exchange);
    atomic_store_explicit(&me->site->given, me->count, memory_order_release);
    if (!me->gated)
        spmd_span_ring(me, exchange, me->readers);
    return true;
}

static bool has_given(const spmd_hosted *me, const spmd_exchange *exchange, int64_t place)
{
    const spmd_site *site = spmd_place_site(me, exchange, place);
    return atomic_load_explicit(&site->given, memory_order_acquire) >= me->count;
}

/* ---- taking --------------------------------------------------------------------------------- */

/* Where a source has what I read of it: from its memory on, or packed in its slot. My own piece is
 * packed where those are that it is folded with. */
static const char *source_memory(spmd_hosted *me, const spmd_exchange *exchange, int64_t place,
                                 spmd_box *from)
{
    bool own = place == me->team->position;
    bool packed = !own || (exchange->fold && exchange->differs && me->team->count > 1);
    const spmd_slot *slot = packed ? spmd_place_slot(me, exchange, place) : NULL;

    if (slot && slot->where == SPMD_HERE) {
        spmd_box_packed(from, from, exchange->size);
        return slot->bytes + piece_begin(me, exchange, slot);
    }
    me->theirs_in_place |= !own;
    return spmd_place_memory(me, exchange, place);
}

/* false: it is being given, and not yet complete. */
static bool copy_from(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange,
                      int64_t place)
{
    bool own = place == me->team->position;
    const spmd_slot *slot = spmd_place_slot(me, exchange, place);
    const uint64_t *wraps = me->near ? me->near->source_wraps : NULL;
    int64_t packed = 0;

    if (own ? me->gives && exchange->flow == SPMD_ALL : slot->where == SPMD_GIVEN) {
        me->theirs_given |= !own;
        return own || me->gated || has_given(me, exchange, place);
    }
    for (int64_t wrap = 0; wrap < exchange->wraps; wrap++) {
        spmd_box from, into;
        if (!spmd_wrap_moves(wraps, me->next, wrap))
            continue;
        exchange->pull(rank, box_of(me, exchange, place, wrap), &from, &into);
        int64_t bytes = spmd_box_elements(&from) * exchange->size;
        const char *memory = source_memory(me, exchange, place, &from);
        if (!own && slot->where == SPMD_HERE) { /* its wraps lie one after the other */
            memory += packed;
            packed += spmd_round_up(bytes, ELEMENT_BYTES);
        }
        spmd_box_take(rank, exchange, &into, memory, &from);
    }
    return true;
}

/* All sources at once, in the order of their places. */
static void fold_all(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    int64_t terms = me->sources.end - me->sources.begin;
    spmd_term *term = me->worker->term;
    spmd_box from, into;

    for (int64_t k = 0; k < terms; k++) {
        int64_t place = spmd_span_at(me->sources, me->sources.begin + k);
        exchange->pull(rank, spmd_team_member(me->team, place), &from, &into);
        const char *memory = source_memory(me, exchange, place, &from);
        term[k] = (spmd_term){.from = memory + from.offset};
    }
    if (terms)
        spmd_box_fold(rank->memory, &into, &from, exchange->size, exchange->fold, term, terms);
}

/* false: somebody has not posted. Each begins with itself, or with the one that is next to it: no
 * member is read by all others at the same time. */
static bool sources_take(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    int64_t count = me->sources.end - me->sources.begin, own = me->team->position;
    bool folds = exchange->fold != NULL;

    if (me->gated && me->next == 0 && !spmd_team_passed(me, exchange))
        return false;
    for (; me->next < count; me->next++) {
        int64_t place = spmd_span_place(me->sources, own, me->next);
        if (!me->gated && place != own && !has_posted(me, exchange, place))
            return false;
        if (!folds && !copy_from(me, rank, exchange, place))
            return false;
    }
    if (folds)
        fold_all(me, rank, exchange);
    return true;
}

/* As all members know. */
static bool meets_again(const spmd_hosted *me)
{
    return me->gated && (me->in_place || me->theirs_in_place || me->gives || me->theirs_given);
}

/* I have read what I read; whoever waits for that is told. */
static void taken(spmd_hosted *me, const spmd_exchange *exchange)
{
    atomic_store_explicit(&me->site->taken, me->count, memory_order_release);
    if (meets_again(me))
        spmd_team_arrive(me, exchange);
    else if (me->theirs_in_place || !all_read_all(exchange))
        spmd_span_ring(me, exchange, me->sources);
}

/* What I hold ready may be written again. */
static bool is_over(const spmd_hosted *me, const spmd_exchange *exchange)
{
    if (me->gated)
        return !meets_again(me) || spmd_team_passed(me, exchange);
    return !me->in_place || have_taken(me, exchange, me->readers, me->count);
}

enum { DIRECT_FREE = SPMD_DIRECT_BEGIN, DIRECT_POSTED, DIRECT_GIVEN, DIRECT_TAKEN };

/* true: it is complete in this arena. */
bool spmd_direct(spmd_hosted *me, spmd_rank *rank, const spmd_exchange *exchange)
{
    if (rank->stage < DIRECT_FREE)
        rank->stage = DIRECT_FREE;
    if (rank->stage == DIRECT_FREE) {
        if (!spmd_slot_free(me, exchange))
            return false;
        post(me, rank, exchange);
        me->next = 0;
        rank->stage = DIRECT_POSTED;
    }
    if (rank->stage == DIRECT_POSTED) {
        if (me->gives && !readers_give(me, rank, exchange))
            return false;
        rank->stage = DIRECT_GIVEN;
    }
    if (rank->stage == DIRECT_GIVEN) {
        if (!sources_take(me, rank, exchange))
            return false;
        taken(me, exchange);
        rank->stage = DIRECT_TAKEN;
    }
    return is_over(me, exchange);
}
