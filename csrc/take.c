/* Ranks take batches out of rings, ask whether there are more, and send values back. Functions are
 * called again and again until they return 1, and never block. */
#define _GNU_SOURCE
#include "parts.h"

#include <stdlib.h>
#include <string.h>

/* A rank that waits for its feed is neither slow nor lost. */
bool spmd_job_starved(const spmd_job *job)
{
    for (int64_t k = 0; job->feds && k < job->count; k++)
        if (atomic_load_explicit(&job->hosted[k].starves, memory_order_acquire))
            return true;
    return false;
}

static int waits(spmd_hosted *me, uint32_t feed)
{
    if (atomic_load_explicit(&me->starves, memory_order_relaxed) == 0) {
        atomic_store_explicit(&me->hungry, feed, memory_order_relaxed);
        atomic_store_explicit(&me->starves, spmd_now(), memory_order_release);
        me->worker->advances++;
    }
    return 0;
}

/* Since when it waited; 0: it did not. What comes before the first batch is no starving. That it
 * goes on counts as an advance at once: whoever sees that nobody starves must see that too. */
static int64_t wait_over(spmd_hosted *me, spmd_reader *reader, int64_t now)
{
    int64_t since = atomic_load_explicit(&me->starves, memory_order_relaxed);
    me->worker->advances++;
    if (since) {
        if (atomic_load_explicit(&reader->first, memory_order_relaxed)) {
            atomic_fetch_add_explicit(&reader->waited, now - since, memory_order_relaxed);
            atomic_store_explicit(&reader->last, now, memory_order_relaxed); /* more() may be it */
        }
        atomic_fetch_add(&me->job->advances, 1);
        atomic_store_explicit(&me->starves, 0, memory_order_release);
    }
    return since;
}

/* ---- copies ---------------------------------------------------------------------------------- */

/* Rows `first` to `end` of a rank's part of an array, and of rows of whole batches that lie one
 * after the other from the row `first` on. */
typedef struct spmd_rows_of {
    char *part, *whole;
    int64_t whole_stride[SPMD_DIMS], extent[SPMD_DIMS];
} spmd_rows_of;

static spmd_rows_of rows_of(const spmd_rank *rank, uint32_t array, const spmd_piece_of *piece,
                            const spmd_shape *shape, int64_t first, int64_t end, char *whole)
{
    const spmd_image *image = ((spmd_hosted *)rank->engine_data)->job->image;
    char *memory = rank->memory + rank->buffer[image->array_buffer[array]] + piece->first;
    spmd_rows_of rows = {.part = memory + (first - piece->offset[0]) * piece->stride[0],
                         .whole = whole};
    int64_t next = shape->size;
    memcpy(rows.extent, piece->extent, sizeof rows.extent);
    rows.extent[0] = end - first;
    for (int64_t d = piece->dims - 1; d >= 0; d--) {
        rows.whole_stride[d] = next;
        rows.whole += d > 0 ? piece->offset[d] * next : 0;
        next *= d > 0 ? shape->extent[d] : 1;
    }
    return rows;
}

/* The rank's rows are those of whole batches, without room around. */
static bool is_plain(const spmd_piece_of *piece, const spmd_shape *shape)
{
    for (int64_t d = 1; d < piece->dims; d++)
        if (piece->extent[d] != shape->extent[d])
            return false;
    return piece->stride[0] == shape->row_bytes;
}

static void rows_copy(const spmd_rows_of *rows, const spmd_piece_of *piece,
                      const spmd_shape *shape, bool into_part)
{
    if (is_plain(piece, shape)) {
        size_t bytes = (size_t)(rows->extent[0] * shape->row_bytes);
        memcpy(into_part ? rows->part : rows->whole, into_part ? rows->whole : rows->part, bytes);
    } else if (into_part) {
        spmd_array_copy(rows->part, piece->stride, rows->whole, rows->whole_stride, rows->extent,
                        piece->dims, piece->size, 0);
    } else {
        spmd_array_copy(rows->whole, rows->whole_stride, rows->part, piece->stride, rows->extent,
                        piece->dims, piece->size, 0);
    }
}

static void rows_zero(const spmd_rank *rank, uint32_t array, const spmd_piece_of *piece,
                      int64_t first, int64_t end)
{
    const spmd_image *image = ((spmd_hosted *)rank->engine_data)->job->image;
    spmd_box box = {.offset = rank->buffer[image->array_buffer[array]] + piece->first +
                              (first - piece->offset[0]) * piece->stride[0],
                    .dims = (int32_t)piece->dims};
    if (first >= end)
        return;
    memcpy(box.extent, piece->extent, sizeof box.extent);
    memcpy(box.stride, piece->stride, sizeof box.stride);
    box.extent[0] = end - first;
    spmd_box_zero(rank->memory, &box, piece->size);
}

/* Where a rank's part of a field lies in the pieces, as it would in its buffer; NULL: not so. */
static char *part_in_place(const spmd_piece_of *piece, const spmd_shape *shape,
                           const spmd_batch *batch, int64_t field)
{
    const int64_t *row = batch->row;
    if (batch->pieces != 1 || !is_plain(piece, shape) || row[0] > piece->offset[0] ||
        row[0] + row[1] < piece->offset[0] + piece->extent[0])
        return NULL;
    char *found = (char *)(uintptr_t)row[2 + field] +
                  (piece->offset[0] - row[0]) * shape->row_bytes;
    return (uintptr_t)found % (uintptr_t)shape->size ? NULL : found;
}

static bool may_lie(const spmd_rank *rank, uint32_t array)
{
    const spmd_image *image = ((spmd_hosted *)rank->engine_data)->job->image;
    uint32_t may = image->take_lies ? image->take_lies[array - image->take_first[0]]
                                    : SPMD_LIE_COPIED;
    return may == SPMD_LIE_IN_PLACE || (may == SPMD_LIE_ALONE && rank->world->ranks == 1);
}

/* A rank's part of a field, out of the pieces; `held` is set where it stays there. */
static int64_t field_take(const spmd_rank *rank, uint32_t array, const spmd_fed *fed, int64_t field,
                          const spmd_batch *batch, bool *held)
{
    const spmd_shape *shape = &fed->shape[field];
    const spmd_image *image = ((spmd_hosted *)rank->engine_data)->job->image;
    spmd_piece_of piece = spmd_array_piece(rank, image, array);
    int64_t at = piece.offset[0], end = at + piece.extent[0];
    if (piece.bytes == 0)
        return 0;
    if (may_lie(rank, array)) {
        int64_t *begin = &rank->buffer[image->array_buffer[array]];
        char *found = part_in_place(&piece, shape, batch, field);
        *begin = found ? found - rank->memory - piece.first
                       : spmd_rank_home(rank)[image->array_buffer[array]];
        *held |= found != NULL;
        if (found)
            return piece.bytes;
    }
    for (int64_t k = 0; k < batch->pieces && at < end; k++) {
        const int64_t *row = batch->row + k * (2 + fed->fields);
        int64_t first = row[0] > at ? row[0] : at, until = spmd_least(row[0] + row[1], end);
        if (first >= until)
            continue;
        rows_zero(rank, array, &piece, at, first);
        char *from = (char *)(uintptr_t)row[2 + field] + (first - row[0]) * shape->row_bytes;
        spmd_rows_of rows = rows_of(rank, array, &piece, shape, first, until, from);
        rows_copy(&rows, &piece, shape, true);
        at = until;
    }
    rows_zero(rank, array, &piece, at, end);
    return piece.bytes;
}

/* ---- taking ---------------------------------------------------------------------------------- */

static bool is_there(const spmd_reader *reader, int64_t k)
{
    spmd_ring *ring = reader->ring;
    spmd_batch *batch = &ring->batch[k % ring->fed->depth];
    return atomic_load_explicit(&batch->number, memory_order_acquire) == k + 1;
}

/* false: the rank has failed. */
static bool is_given(const spmd_rank *rank, const spmd_hosted *me, uint32_t feed)
{
    if (me->streams && me->streams[feed].ring)
        return true;
    spmd_rank_fail(rank, 70, "nothing was given for feed %u", feed);
    return false;
}

/* As often as whoever fills the ring wants to hear of it. */
static void taken_tell(spmd_ring *ring, int64_t taken)
{
    if (taken % atomic_load_explicit(&ring->tells, memory_order_acquire) == 0)
        spmd_ring_tell(ring);
}

static int fails_behind_end(const spmd_rank *rank, const spmd_fed *fed, int64_t k)
{
    spmd_rank_fail(rank, 65,
                   "feed '%s' has ended after %lld batches, and next() asks for another one; "
                   "while feed.more(): asks first",
                   fed->name, (long long)k);
    return 0;
}

/* A rank that holds no rows goes on at once: behind the end of the stream, those that do hold some
 * end the run. */
static int idle_take(spmd_hosted *me, spmd_reader *reader, int64_t k)
{
    int64_t now = spmd_now();
    if (!atomic_load_explicit(&reader->first, memory_order_relaxed))
        atomic_store_explicit(&reader->first, now, memory_order_relaxed);
    atomic_store_explicit(&reader->last, now, memory_order_relaxed);
    atomic_store_explicit(&reader->taken, k + 1, memory_order_release);
    if (reader->ring->readers == 0)
        taken_tell(reader->ring, k + 1);
    me->worker->advances++;
    spmd_timeline_fed(me, 0, now, 0);
    return 1;
}

/* A rank does not look at a batch any more. */
static void batch_leave(spmd_ring *ring, int64_t k)
{
    if (atomic_fetch_sub_explicit(&ring->batch[k % ring->fed->depth].readers, 1,
                                  memory_order_acq_rel) == 1) {
        atomic_store_explicit(&ring->taken, k + 1, memory_order_release);
        taken_tell(ring, k + 1);
    }
}

/* Nor at the one that it holds: its fields begin in their buffers again, and stay there with
 * `keep`. */
static void held_leave(spmd_hosted *me, uint32_t feed, bool keep)
{
    const spmd_image *image = me->job->image;
    const spmd_rank *rank = &me->record->rank;
    spmd_reader *reader = &me->streams[feed];
    int64_t held = reader->held;
    for (uint32_t take = 0; held && take < image->takes; take++)
        for (uint32_t k = image->take_first[take]; k < image->take_first[take + 1]; k++) {
            int64_t *begin = &rank->buffer[image->array_buffer[k]];
            int64_t home = spmd_rank_home(rank)[image->array_buffer[k]];
            if (image->take_feed[take] != feed || !may_lie(rank, k) || *begin == home)
                continue;
            spmd_piece_of piece = spmd_array_piece(rank, image, k);
            if (keep)
                memcpy(rank->memory + home + piece.first, rank->memory + *begin + piece.first,
                       (size_t)piece.bytes);
            *begin = home;
        }
    reader->held = 0;
    if (held)
        batch_leave(reader->ring, held - 1);
}

int spmd_rank_take(spmd_rank *rank, uint32_t take)
{
    spmd_hosted *me = rank->engine_data;
    const spmd_image *image = me->job->image;
    uint32_t feed = image->take_feed[take], first = image->take_first[take];
    if (!is_given(rank, me, feed))
        return 0;
    spmd_reader *reader = &me->streams[feed];
    spmd_ring *ring = reader->ring;
    const spmd_fed *fed = ring->fed;
    int64_t k = atomic_load_explicit(&reader->taken, memory_order_relaxed), bytes = 0;

    bool there = is_there(reader, k);
    if (!there && atomic_load_explicit(&ring->last, memory_order_acquire) <= k)
        return fails_behind_end(rank, fed, k);
    if (reader->idle)
        return idle_take(me, reader, k);
    held_leave(me, feed, false);
    if (!there)
        return waits(me, feed);
    int64_t begin = spmd_now(), since = wait_over(me, reader, begin);
    spmd_batch *batch = &ring->batch[k % fed->depth];
    bool held = false;
    for (int64_t f = 0; f < fed->fields; f++)
        bytes += field_take(rank, first + (uint32_t)f, fed, f, batch, &held);
    int64_t now = spmd_now();
    atomic_store_explicit(&reader->last, now, memory_order_relaxed);
    if (!atomic_load_explicit(&reader->first, memory_order_relaxed))
        atomic_store_explicit(&reader->first, now, memory_order_relaxed);
    atomic_store_explicit(&reader->taken, k + 1, memory_order_release);
    if (held)
        reader->held = k + 1;
    else
        batch_leave(ring, k);
    spmd_timeline_fed(me, since, begin, bytes);
    return 1;
}

int spmd_rank_more(spmd_rank *rank, uint32_t feed, int64_t *more)
{
    spmd_hosted *me = rank->engine_data;
    if (!is_given(rank, me, feed))
        return 0;
    spmd_reader *reader = &me->streams[feed];
    int64_t k = atomic_load_explicit(&reader->taken, memory_order_relaxed);
    *more = atomic_load_explicit(&reader->ring->there, memory_order_acquire) > k;
    if (!*more && atomic_load_explicit(&reader->ring->last, memory_order_acquire) > k) {
        held_leave(me, feed, true); /* whoever makes the next one may need its place */
        return waits(me, feed);
    }
    reader->over += !*more;
    int64_t now = spmd_now();
    spmd_timeline_fed(me, wait_over(me, reader, now), now, 0);
    return 1;
}

/* ---- values back ----------------------------------------------------------------------------- */

/* Where a rank's rows of a value go; several ranks may have the same ones. */
static void values_put(const spmd_rank *rank, const spmd_ring *ring, spmd_batch *batch,
                       uint32_t first)
{
    const spmd_fed *fed = ring->fed;
    const spmd_image *image = ring->job->image;
    char *at = batch->values;
    for (int64_t v = 0; v < fed->values; v++) {
        const spmd_shape *shape = &fed->shape[fed->fields + v];
        uint32_t array = first + (uint32_t)v;
        spmd_piece_of piece = spmd_array_piece(rank, image, array);
        int64_t low = piece.offset[0] > ring->begin ? piece.offset[0] : ring->begin;
        int64_t end = spmd_least(piece.offset[0] + piece.extent[0], ring->end);
        if (piece.bytes > 0 && low < end) {
            spmd_rows_of rows = rows_of(rank, array, &piece, shape, low, end,
                                        at + (low - ring->begin) * shape->row_bytes);
            rows_copy(&rows, &piece, shape, false);
        }
        at += shape->row_bytes * (ring->end - ring->begin);
    }
}

int spmd_rank_send(spmd_rank *rank, uint32_t send)
{
    spmd_hosted *me = rank->engine_data;
    const spmd_image *image = me->job->image;
    uint32_t feed = image->send_feed[send];
    if (!is_given(rank, me, feed))
        return 0;
    spmd_reader *reader = &me->streams[feed];
    spmd_ring *ring = reader->ring;
    int64_t taken = atomic_load_explicit(&reader->taken, memory_order_relaxed);
    if (taken == reader->sent) {
        spmd_rank_fail(rank, 65, "feed '%s': send() needs a batch that next() has taken, and once "
                       "for each", ring->fed->name);
        return 0;
    }
    if (reader->idle) {
        reader->sent = taken;
        me->worker->advances++;
        return 1;
    }
    spmd_batch *batch = &ring->batch[(taken - 1) % ring->fed->depth];
    pthread_mutex_lock(&ring->lock);
    if (batch->sending == 0) {
        batch->sending = taken;
        batch->senders = 0;
    }
    bool room = batch->sending == taken;
    bool all = false;
    if (room) {
        values_put(rank, ring, batch, image->send_first[send]);
        all = ++batch->senders == ring->readers;
        if (all)
            atomic_store_explicit(&batch->sent, taken, memory_order_release);
    }
    pthread_mutex_unlock(&ring->lock);
    if (!room)
        return waits(me, feed);
    reader->sent = taken;
    if (all)
        spmd_ring_tell(ring);
    int64_t now = spmd_now();
    spmd_timeline_fed(me, wait_over(me, reader, now), now, 0);
    return 1;
}

/* ---- runs and checkpoints -------------------------------------------------------------------- */

void spmd_readers_reset(spmd_hosted *me)
{
    atomic_store(&me->starves, 0);
    for (uint32_t feed = 0; me->streams && feed < me->job->image->feeds; feed++) {
        spmd_reader *reader = &me->streams[feed];
        reader->began = atomic_load(&reader->taken);
        reader->early = false;
    }
}

/* The rank is done: it looks at no batch any more. */
void spmd_readers_done(spmd_hosted *me)
{
    for (uint32_t feed = 0; me->streams && feed < me->job->image->feeds; feed++)
        held_leave(me, feed, false);
}

/* A loop begins. Batches before it are taken again by whoever goes on from a turn of it. */
void spmd_readers_loop(spmd_hosted *me)
{
    for (uint32_t feed = 0; me->streams && feed < me->job->image->feeds; feed++) {
        spmd_reader *reader = &me->streams[feed];
        reader->early = atomic_load(&reader->taken) != reader->began;
    }
}

void spmd_readers_keep(spmd_hosted *me)
{
    for (uint32_t feed = 0; me->streams && feed < me->job->image->feeds; feed++) {
        const spmd_reader *reader = &me->streams[feed];
        spmd_fed *fed = &me->job->feds[feed];
        fed->set_taken = atomic_load(&reader->taken);
        fed->set_from = reader->early ? reader->began : fed->set_taken;
    }
}

/* What the set has taken is left out, by all ranks of the ring. */
void spmd_readers_resume(spmd_hosted *me)
{
    for (uint32_t feed = 0; me->streams && feed < me->job->image->feeds; feed++) {
        spmd_reader *reader = &me->streams[feed];
        const spmd_fed *fed = &me->job->feds[feed];
        spmd_ring *ring = reader->ring;
        reader->early = fed->from < fed->taken;
        if (!ring || !reader->early)
            continue;
        held_leave(me, feed, true);
        atomic_store(&reader->taken, fed->taken);
        reader->sent = fed->taken;
        if (reader->idle) {
            spmd_ring_tell(ring);
            continue;
        }
        if (atomic_fetch_add(&ring->jumped, 1) + 1 == ring->readers) {
            atomic_store(&ring->taken, fed->taken);
            spmd_ring_tell(ring);
        }
    }
}
