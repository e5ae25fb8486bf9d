/* What outermost loops carry, kept and put back. A turn's point is a consistent cut of all ranks
 * without a barrier: a rank's part follows from what it has exchanged before. Parts are copied to
 * rooms; the host language writes them to files while the ranks go on. */
#define _GNU_SOURCE
#include "parts.h"

#include <stdlib.h>
#include <string.h>

enum { NEW = 0, COUNTED, STAGED }; /* how far a rank is with a point */

spmd_piece_of spmd_array_piece(const spmd_rank *rank, const spmd_image *image, uint32_t array)
{
    spmd_piece_of piece = {.dims = image->array_dims[array], .size = image->array_size[array]};
    int64_t before[SPMD_DIMS] = {0}, around[SPMD_DIMS], next = piece.size;
    image->shard(rank, array, piece.offset, piece.extent);
    memcpy(around, piece.extent, sizeof around);
    if (image->room)
        image->room(rank, array, before, around);
    piece.bytes = piece.size;
    for (int64_t d = piece.dims - 1; d >= 0; d--) {
        piece.packed[d] = piece.bytes;
        piece.bytes *= piece.extent[d] > 0 ? piece.extent[d] : 0;
        piece.stride[d] = next;
        piece.first += before[d] * next;
        next *= around[d];
    }
    return piece;
}

/* Where the part of an array stands in the room of its point; behind the last one: how long that
 * is. */
static int64_t place_in_room(const spmd_rank *rank, const spmd_image *image, uint32_t point,
                             uint32_t array)
{
    int64_t at = 0;
    for (uint32_t k = image->point_first[point]; k < array; k++)
        at += spmd_round_up(spmd_array_piece(rank, image, k).bytes, SPMD_LINE);
    return at;
}

static bool room_take(spmd_hosted *me, uint32_t point)
{
    const spmd_image *image = me->job->image;
    spmd_course *turns = &me->turns;
    int64_t bytes = place_in_room(&me->record->rank, image, point, image->point_first[point + 1]);
    if (bytes <= turns->bytes)
        return true;
    free(turns->room);
    turns->room = aligned_alloc(SPMD_LINE, (size_t)bytes);
    turns->bytes = turns->room ? bytes : 0;
    return turns->room != NULL;
}

/* Between a rank's buffers, where they are now, and its room. */
static void room_copy(spmd_hosted *me, uint32_t point, bool into_room)
{
    const spmd_image *image = me->job->image;
    char *at = me->turns.room;
    for (uint32_t k = image->point_first[point]; k < image->point_first[point + 1]; k++) {
        const spmd_rank *rank = &me->record->rank;
        spmd_piece_of piece = spmd_array_piece(rank, image, k);
        char *there = rank->memory + rank->buffer[image->array_buffer[k]] + piece.first;
        if (piece.bytes > 0 && into_room)
            spmd_array_copy(at, piece.packed, there, piece.stride, piece.extent, piece.dims,
                            piece.size, 0);
        else if (piece.bytes > 0)
            spmd_array_copy(there, piece.stride, at, piece.packed, piece.extent, piece.dims,
                            piece.size, 0);
        at += spmd_round_up(piece.bytes, SPMD_LINE);
    }
}

/* ---- when a set is kept --------------------------------------------------------------------- */

/* Rank 0 has seen how long turns take, and says at which one all will meet again: where a set is
 * due, or where it will know better. */
static void announce(const spmd_job *job, spmd_course *turns)
{
    int64_t now = spmd_now(), left = job->keeping.after - (now - turns->last);
    int64_t seen = turns->turn > turns->since_turn ? turns->turn - turns->since_turn : 1;
    int64_t each = (now - turns->since) / seen + 1;
    int64_t turns_left = left > 0 ? left / each + 1 : 1;

    turns->said[1] = turns_left <= seen;
    turns->said[0] = turns->turn + (turns->said[1] ? turns_left : seen);
    if (turns->last > turns->since) { /* a set was kept: from here on it is measured anew */
        turns->since = turns->last;
        turns->since_turn = turns->turn;
    }
}

/* All ranks of this arena know the last agreement: the next may be written in its place. */
static bool all_heard(const spmd_job *job, int64_t agreements)
{
    for (int64_t rank = job->lowest; rank <= job->highest; rank++)
        if (spmd_rank_near(job, rank) &&
            atomic_load_explicit(&spmd_job_record(job, rank)->heard, memory_order_acquire) <
                agreements)
            return false;
    return true;
}

/* What rank 0 says travels to the first rank of each other arena, who says it there. */
static void tell(spmd_hosted *me)
{
    const spmd_processes *processes = &me->job->processes;
    int64_t told = 0; /* arenas are numbered in the order in which they appear */
    for (int64_t k = 0; me->job->parted && k < processes->count; k++)
        if (processes->arena[k] > told) {
            told = processes->arena[k];
            spmd_packet_send(me, processes->first[k], me->turns.said, sizeof me->turns.said);
        }
}

/* The first rank of an arena. Returns whether all of its ranks can meet what was said. */
static bool say(spmd_hosted *me)
{
    spmd_job *job = me->job;
    spmd_course *turns = &me->turns;
    spmd_header *header = job->arena->header;

    if (!turns->says) {
        if (!all_heard(job, turns->agreements))
            return false;
        if (me->record->rank.index == 0) {
            announce(job, turns);
            tell(me);
        } else {
            spmd_packet_receive(me, 0, turns->said, sizeof turns->said);
        }
        turns->says = true;
    }
    if (!spmd_packets_done(me))
        return false;
    turns->says = false;
    header->next = turns->said[0];
    header->due = turns->said[1];
    atomic_store_explicit(&header->agreed, turns->agreements + 1, memory_order_release);
    spmd_job_ring(job);
    return true;
}

/* All ranks meet what rank 0 says, in the order in which it says it. */
static bool agree(spmd_hosted *me)
{
    spmd_job *job = me->job;
    spmd_course *turns = &me->turns;
    spmd_header *header = job->arena->header;
    bool says = me->record->rank.index == job->lowest;

    if (says ? !say(me)
             : atomic_load_explicit(&header->agreed, memory_order_acquire) <= turns->agreements)
        return false;
    turns->next = header->next;
    turns->due = header->due != 0;
    turns->agreements++;
    atomic_store_explicit(&me->record->heard, turns->agreements, memory_order_release);
    if (!says)
        spmd_rank_ring(job, job->lowest);
    return true;
}

/* ---- a rank at its point -------------------------------------------------------------------- */

static void begin_turn(spmd_hosted *me, uint32_t point)
{
    spmd_course *turns = &me->turns;
    if (turns->again) {
        turns->again = false;
    } else if (turns->point == point) {
        turns->turn++;
    } else {
        turns->point = point;
        turns->turn = 0;
        turns->next = 1;
        turns->due = false;
        turns->since = spmd_now();
        turns->since_turn = 0;
        spmd_readers_loop(me);
    }
    turns->stage = COUNTED;
}

static int put_back(spmd_hosted *me, uint32_t point, int64_t *counter)
{
    const spmd_keeping *keeping = &me->job->keeping;
    spmd_course *turns = &me->turns;
    room_copy(me, point, false);
    spmd_readers_resume(me);
    spmd_saves_resume(me, keeping->turn);
    if (counter)
        *counter = keeping->counter;
    turns->turn = turns->since_turn = keeping->turn;
    turns->next = keeping->turn + 1;
    turns->since = turns->last = spmd_now();
    turns->resumed = turns->again = true;
    turns->stage = NEW;
    me->worker->advances++;
    return SPMD_AGAIN;
}

/* Not while the last set is being written. */
static bool stage(spmd_hosted *me, uint32_t point, const int64_t *counter)
{
    spmd_keeping *keeping = &me->job->keeping;
    spmd_course *turns = &me->turns;
    if (atomic_load_explicit(&keeping->released, memory_order_acquire) < turns->sets)
        return false;
    int64_t begin = spmd_now();
    if (!room_take(me, point)) {
        spmd_rank_fail(&me->record->rank, 69, "no memory for what a checkpoint holds");
        return false;
    }
    room_copy(me, point, true);
    turns->copied += spmd_now() - begin;
    turns->sets++;
    turns->last = begin;
    pthread_mutex_lock(&me->job->lock);
    keeping->set_point = point;
    keeping->set_turn = turns->turn;
    keeping->set_counter = counter ? *counter : 0;
    spmd_readers_keep(me);
    spmd_saves_keep(me);
    atomic_fetch_add(&keeping->staged, 1);
    pthread_cond_broadcast(&me->job->news);
    pthread_mutex_unlock(&me->job->lock);
    return true;
}

static bool keeps(spmd_hosted *me, uint32_t point, const int64_t *counter)
{
    const spmd_keeping *keeping = &me->job->keeping;
    spmd_course *turns = &me->turns;
    bool by_time = keeping->every == 0 && keeping->after > 0;
    bool due = by_time ? turns->due && turns->turn == turns->next
                       : keeping->every > 0 && turns->turn > 0 &&
                             turns->turn % keeping->every == 0;
    if (keeping->resume == point && turns->turn == keeping->turn)
        due = false; /* it is kept already */
    if (turns->stage == COUNTED) {
        if (due && !stage(me, point, counter))
            return false;
        turns->stage = STAGED;
    }
    return !by_time || turns->turn != turns->next || agree(me);
}

int spmd_rank_point(spmd_rank *rank, uint32_t number, int64_t *counter)
{
    spmd_hosted *me = rank->engine_data;
    const spmd_keeping *keeping = &me->job->keeping;
    spmd_course *turns = &me->turns;

    if (number == SPMD_NO_TURN) {
        spmd_rank_fail(rank, 65,
                       "the loop of the checkpoint ends before turn %lld, from which the run would "
                       "go on: give the scalars with which it was kept, or larger ones",
                       (long long)keeping->turn);
        return SPMD_HELD;
    }
    if (keeping->every == 0 && keeping->after == 0 && keeping->resume < 0)
        return SPMD_GO_ON;
    if (turns->stage == NEW)
        begin_turn(me, number);
    if (keeping->resume >= 0 && !turns->resumed) {
        if (keeping->resume == number)
            return put_back(me, number, counter);
        turns->stage = NEW;
        return SPMD_GO_ON; /* an earlier loop, which is run again */
    }
    int64_t begin = spmd_now();
    bool passes = keeps(me, number, counter);
    if (turns->held_since)
        turns->held += begin - turns->held_since;
    turns->held += spmd_now() - begin;
    turns->held_since = passes ? 0 : spmd_now();
    if (!passes)
        return SPMD_HELD;
    turns->stage = NEW;
    me->worker->advances++;
    return SPMD_GO_ON;
}

void spmd_turns_reset(spmd_hosted *hosted)
{
    spmd_course *turns = &hosted->turns;
    turns->point = -1;
    turns->turn = turns->held = turns->copied = turns->held_since = 0;
    turns->stage = NEW;
    turns->resumed = turns->again = turns->says = false;
    turns->last = spmd_now();
}

/* ---- for the host language ------------------------------------------------------------------ */

bool spmd_set_waits(const spmd_job *job)
{
    int64_t released = atomic_load(&job->keeping.released);
    return atomic_load(&job->keeping.staged) == (released + 1) * job->count;
}

/* The same, for whoever asks whether ranks can still advance: a set that is released lets some, and
 * counts as an advance at once. */
bool spmd_set_held(spmd_job *job)
{
    pthread_mutex_lock(&job->lock);
    bool waits = spmd_set_waits(job);
    pthread_mutex_unlock(&job->lock);
    return waits;
}

int spmd_job_keep(spmd_job *job, int64_t every, int64_t nanoseconds)
{
    if (every < 0 || nanoseconds < 0)
        return SPMD_RANGE;
    job->keeping.every = every;
    job->keeping.after = nanoseconds;
    return SPMD_OK;
}

int spmd_job_set(const spmd_job *job, spmd_set *set)
{
    if (!spmd_set_waits(job))
        return 0;
    *set = (spmd_set){.point = job->keeping.set_point,
                      .turn = job->keeping.set_turn,
                      .counter = job->keeping.set_counter};
    return 1;
}

void spmd_job_release(spmd_job *job)
{
    pthread_mutex_lock(&job->lock); /* see spmd_set_held */
    atomic_fetch_add(&job->keeping.released, 1);
    atomic_fetch_add(&job->advances, 1);
    pthread_mutex_unlock(&job->lock);
    spmd_job_ring(job);
}

/* The point that carries an array; -1: none does. */
static int64_t point_of(const spmd_image *image, int64_t array)
{
    for (uint32_t k = 0; k < image->points; k++)
        if (array >= image->point_first[k] && array < image->point_first[k + 1])
            return k;
    return -1;
}

static spmd_hosted *hosted_rank(const spmd_job *job, int64_t rank)
{
    bool here = job->hosted && rank >= job->first && rank < job->first + job->count;
    return here ? &job->hosted[rank - job->first] : NULL;
}

int spmd_job_room(const spmd_job *job, int64_t array, int64_t rank, int64_t *offset,
                  int64_t *extent, void **address, int64_t *bytes)
{
    const spmd_image *image = job->image;
    int64_t point = point_of(image, array);
    spmd_hosted *me = hosted_rank(job, rank);
    if (!me || point < 0)
        return SPMD_RANGE;
    const spmd_rank *record = &me->record->rank;
    spmd_piece_of piece = spmd_array_piece(record, image, (uint32_t)array);
    memcpy(offset, piece.offset, sizeof piece.offset);
    memcpy(extent, piece.extent, sizeof piece.extent);
    *bytes = piece.bytes;
    *address = NULL;
    if (me->turns.room)
        *address = me->turns.room +
                   place_in_room(record, image, (uint32_t)point, (uint32_t)array);
    return SPMD_OK;
}

int64_t spmd_job_dims(const spmd_job *job, int64_t array)
{
    return job->image->array_dims[array];
}

int spmd_job_resume(spmd_job *job, const spmd_set *set)
{
    if (!job->hosted || set->point >= (int64_t)job->image->points)
        return SPMD_RANGE;
    for (int64_t k = 0; set->point >= 0 && k < job->count; k++) {
        spmd_course *turns = &job->hosted[k].turns;
        if (!room_take(&job->hosted[k], (uint32_t)set->point))
            return SPMD_NO_MEMORY;
        memset(turns->room, 0, (size_t)turns->bytes);
    }
    job->keeping.resume = set->point;
    job->keeping.turn = set->turn;
    job->keeping.counter = set->counter;
    return SPMD_OK;
}

int spmd_job_refill(spmd_job *job, int64_t array, int64_t rank, const int64_t *offset,
                    const int64_t *extent, const void *from)
{
    int64_t own_offset[SPMD_DIMS], own_extent[SPMD_DIMS], bytes;
    int64_t into_stride[SPMD_DIMS], from_stride[SPMD_DIMS], common[SPMD_DIMS];
    void *address;
    int status = spmd_job_room(job, array, rank, own_offset, own_extent, &address, &bytes);
    if (status != SPMD_OK || bytes == 0)
        return status;
    if (!address)
        return SPMD_RANGE;
    int64_t size = job->image->array_size[array], dims = job->image->array_dims[array];
    int64_t into_next = size, from_next = size;
    char *into = address;
    const char *source = from;
    for (int64_t d = dims - 1; d >= 0; d--) {
        int64_t low = own_offset[d] > offset[d] ? own_offset[d] : offset[d];
        int64_t end = spmd_least(own_offset[d] + own_extent[d], offset[d] + extent[d]);
        if (low >= end)
            return SPMD_OK;
        common[d] = end - low;
        into += (low - own_offset[d]) * into_next;
        source += (low - offset[d]) * from_next;
        into_stride[d] = into_next;
        from_stride[d] = from_next;
        into_next *= own_extent[d];
        from_next *= extent[d];
    }
    spmd_array_copy(into, into_stride, source, from_stride, common, dims, size, 0);
    return SPMD_OK;
}

int spmd_job_resumed(const spmd_job *job)
{
    for (int64_t k = 0; k < job->count; k++)
        if (!job->hosted[k].turns.resumed)
            return 0;
    return 1;
}

void spmd_job_held(const spmd_job *job, int64_t *held, int64_t *copied)
{
    *held = *copied = 0;
    for (int64_t k = 0; k < job->count; k++) {
        const spmd_course *turns = &job->hosted[k].turns;
        if (turns->held > *held) {
            *held = turns->held;
            *copied = turns->copied;
        }
    }
}
