/* Rings of batches between the host language, which fills them, and the hosted ranks, which take
 * from them (take.c). A ring holds addresses: rows lie in the host language's memory until all
 * ranks of the ring have left the batch. A rank leaves it when it has copied its part; one that
 * reads its part where it lies, when it asks for the next batch or is done.
 *
 * Whether there is a next batch, all ranks must be told alike, though each process is told by its
 * own supply. So whoever puts a batch says how far the stream reaches, whoever ends it where, and
 * each then looks what others have said: one of the two sees that they differ. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define ENDLESS INT64_MAX
#define COUNT_BITS 40 /* of a number of batches, in a word that also counts beginnings */
#define COUNT_MOST (((int64_t)1 << COUNT_BITS) - 1)

_Static_assert(offsetof(spmd_header, core) <= SPMD_PAGE, "a board has the head of an arena");

/* ---- where streams end ----------------------------------------------------------------------- */

spmd_header *spmd_feeds_words(const spmd_job *job)
{
    return job->board ? job->board->header : job->arena->header;
}

static int64_t raise_to(_Atomic int64_t *word, int64_t value)
{
    int64_t before = atomic_load(word);
    while (before < value && !atomic_compare_exchange_weak(word, &before, value))
        continue;
    return before > value ? before : value;
}

/* Words hold how often streams were begun, above: those of an earlier one count no more. */
static void ends_compare(spmd_job *job, uint32_t feed)
{
    spmd_header *words = spmd_feeds_words(job);
    int64_t reach = atomic_load(&words->reach[feed]), end = atomic_load(&words->ends[feed]);
    int64_t batches = COUNT_MOST - (end & COUNT_MOST);
    if (reach >> COUNT_BITS != end >> COUNT_BITS || (reach & COUNT_MOST) <= batches)
        return;
    const spmd_rank *rank = &job->hosted[0].record->rank;
    spmd_rank_fail(rank, 65,
                   "feed '%s' ends after %lld batches in one process, and another has batch %lld "
                   "of it: every process must be given the same stream",
                   job->feds ? job->feds[feed].name : "", (long long)batches,
                   (long long)(reach & COUNT_MOST) - 1);
}

/* What another host has said. */
void spmd_feeds_seen(spmd_job *job, const int64_t *reach, const int64_t *ends)
{
    spmd_header *words = spmd_feeds_words(job);
    for (uint32_t feed = 0; feed < job->image->feeds && feed < SPMD_FEEDS_SEEN; feed++) {
        raise_to(&words->reach[feed], reach[feed]);
        raise_to(&words->ends[feed], ends[feed]);
        ends_compare(job, feed);
    }
}

static void say(spmd_ring *ring, bool ends, int64_t count)
{
    const spmd_fed *fed = ring->fed;
    spmd_header *words = spmd_feeds_words(ring->job);
    if (fed->number >= SPMD_FEEDS_SEEN || count > COUNT_MOST)
        return;
    int64_t begins = fed->begins << COUNT_BITS;
    if (ends)
        raise_to(&words->ends[fed->number], begins | (COUNT_MOST - count));
    else
        raise_to(&words->reach[fed->number], begins | count);
    ends_compare(ring->job, fed->number);
}

/* ---- rings ----------------------------------------------------------------------------------- */

/* The rows of a batch that a rank has something of, in any field. */
static void rank_rows(const spmd_job *job, const spmd_rank *rank, int64_t feed, int64_t *rows)
{
    const spmd_image *image = job->image;
    rows[0] = INT64_MAX;
    rows[1] = 0;
    for (uint32_t take = 0; take < image->takes; take++)
        for (uint32_t k = image->take_first[take]; k < image->take_first[take + 1]; k++) {
            spmd_piece_of piece = spmd_array_piece(rank, image, k);
            int64_t end = piece.offset[0] + piece.extent[0];
            if (image->take_feed[take] != feed || piece.bytes == 0)
                continue;
            rows[0] = piece.offset[0] < rows[0] ? piece.offset[0] : rows[0];
            rows[1] = end > rows[1] ? end : rows[1];
        }
    if (rows[1] == 0)
        rows[0] = 0;
}

/* Whoever has no rows hears with others whether there are more batches. */
static spmd_ring *ring_find(spmd_fed *fed, const int64_t *rows)
{
    for (int64_t k = 0; k < fed->rings; k++) {
        spmd_ring *ring = &fed->ring[k];
        if (rows[0] == rows[1] || (ring->begin == rows[0] && ring->end == rows[1]))
            return ring;
    }
    return NULL;
}

static int ring_open(spmd_job *job, spmd_fed *fed, spmd_ring *ring)
{
    size_t bytes = (size_t)fed->depth * sizeof *ring->batch;
    int64_t values = fed->value_bytes * (ring->end - ring->begin);
    ring->job = job;
    ring->fed = fed;
    ring->batch = aligned_alloc(SPMD_LINE, bytes);
    if (!ring->batch)
        return SPMD_NO_MEMORY;
    memset(ring->batch, 0, bytes);
    pthread_mutex_init(&ring->lock, NULL);
    spmd_ring_ahead(ring, fed->depth);
    ring->event = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
    if (ring->event < 0)
        return SPMD_SYSTEM;
    for (int64_t k = 0; fed->values && k < fed->depth; k++) {
        ring->batch[k].values = malloc((size_t)values + 1);
        if (!ring->batch[k].values)
            return SPMD_NO_MEMORY;
        memset(ring->batch[k].values, 0, (size_t)values + 1); /* taken now */
    }
    return SPMD_OK;
}

static int rings_make(spmd_job *job, spmd_fed *fed)
{
    int64_t rows[2];
    int status = SPMD_OK;
    fed->ring = aligned_alloc(SPMD_LINE, (size_t)job->count * sizeof *fed->ring);
    if (!fed->ring)
        return SPMD_NO_MEMORY;
    memset(fed->ring, 0, (size_t)job->count * sizeof *fed->ring);
    for (int empty = 0; empty < 2; empty++)
        for (int64_t k = 0; k < job->count; k++) {
            spmd_hosted *me = &job->hosted[k];
            rank_rows(job, &me->record->rank, fed->number, rows);
            if ((rows[0] == rows[1]) != empty)
                continue;
            spmd_ring *ring = ring_find(fed, rows);
            if (!ring) {
                ring = &fed->ring[fed->rings++];
                ring->begin = rows[0];
                ring->end = rows[1];
            }
            ring->readers += !empty;
            me->streams[fed->number].idle = empty;
            me->streams[fed->number].ring = ring;
        }
    for (int64_t k = 0; status == SPMD_OK && k < fed->rings; k++)
        status = ring_open(job, fed, &fed->ring[k]);
    return status;
}

/* The arrays of a feed's takes and sends are those that are given. */
static bool fits(const spmd_image *image, const spmd_fed *fed, bool sends)
{
    uint32_t places = sends ? image->sends : image->takes;
    const uint32_t *of = sends ? image->send_feed : image->take_feed;
    const uint32_t *first = sends ? image->send_first : image->take_first;
    int64_t shapes = sends ? fed->values : fed->fields;
    for (uint32_t place = 0; place < places; place++) {
        if (of[place] != fed->number)
            continue;
        if (first[place + 1] - first[place] != shapes)
            return false;
        for (int64_t k = 0; k < shapes; k++)
            if (image->array_dims[first[place] + k] !=
                fed->shape[sends ? fed->fields + k : k].dims)
                return false;
    }
    return true;
}

static uint32_t first_array(const spmd_image *image, uint32_t feed, bool sends)
{
    const uint32_t *of = sends ? image->send_feed : image->take_feed;
    for (uint32_t place = 0; place < (sends ? image->sends : image->takes); place++)
        if (of[place] == feed)
            return sends ? image->send_first[place] : image->take_first[place];
    return 0;
}

static int shapes_take(spmd_job *job, spmd_fed *fed, const spmd_feed *given)
{
    const spmd_image *image = job->image;
    const int64_t *at = given->shape;
    fed->fields = given->fields;
    fed->values = given->values;
    fed->shape = calloc((size_t)(fed->fields + fed->values) + 1, sizeof *fed->shape);
    if (!fed->shape)
        return SPMD_NO_MEMORY;
    for (int64_t k = 0; k < fed->fields + fed->values; k++) {
        spmd_shape *shape = &fed->shape[k];
        shape->dims = *at++;
        if (shape->dims < 1 || shape->dims > SPMD_DIMS)
            return SPMD_RANGE;
        memcpy(shape->extent, at, (size_t)shape->dims * sizeof *at);
        at += shape->dims;
    }
    if (!fits(image, fed, false) || !fits(image, fed, true))
        return SPMD_RANGE;
    for (int64_t k = 0; k < fed->fields + fed->values; k++) {
        spmd_shape *shape = &fed->shape[k];
        bool sends = k >= fed->fields;
        int64_t array = first_array(image, fed->number, sends) + (sends ? k - fed->fields : k);
        shape->size = shape->row_bytes = image->array_size[array];
        for (int64_t d = 1; d < shape->dims; d++)
            shape->row_bytes *= shape->extent[d];
        fed->value_bytes += sends ? shape->row_bytes : 0;
    }
    return SPMD_OK;
}

static int tables_take(spmd_job *job)
{
    size_t feeds = job->image->feeds;
    if (!job->feds)
        job->feds = calloc(feeds, sizeof *job->feds);
    for (int64_t k = 0; job->feds && k < job->count; k++) {
        if (!job->hosted[k].streams)
            job->hosted[k].streams = calloc(feeds, sizeof(spmd_reader));
        if (!job->hosted[k].streams)
            return SPMD_NO_MEMORY;
    }
    return job->feds ? SPMD_OK : SPMD_NO_MEMORY;
}

int spmd_job_feed(spmd_job *job, int64_t feed, const spmd_feed *given)
{
    if (!job->hosted || feed < 0 || feed >= job->image->feeds || given->depth < 1)
        return SPMD_RANGE;
    if (spmd_job_runs(job) || (job->feds && job->feds[feed].depth))
        return SPMD_BUSY;
    int status = tables_take(job);
    if (status != SPMD_OK)
        return status;
    spmd_fed *fed = &job->feds[feed];
    fed->number = (uint32_t)feed;
    fed->depth = given->depth;
    strncpy(fed->name, given->name, sizeof fed->name - 1);
    status = shapes_take(job, fed, given);
    if (status == SPMD_OK)
        status = rings_make(job, fed);
    return status == SPMD_OK ? spmd_job_feed_begin(job, feed, 0) : status;
}

static void ring_free(spmd_ring *ring)
{
    for (int64_t k = 0; ring->batch && k < ring->fed->depth; k++) {
        free(ring->batch[k].row);
        free(ring->batch[k].values);
    }
    if (ring->batch) {
        pthread_mutex_destroy(&ring->lock);
        if (ring->event >= 0)
            close(ring->event);
    }
    free(ring->batch);
}

void spmd_feeds_free(spmd_job *job)
{
    for (uint32_t feed = 0; job->feds && feed < job->image->feeds; feed++) {
        spmd_fed *fed = &job->feds[feed];
        for (int64_t k = 0; fed->ring && k < fed->rings; k++)
            ring_free(&fed->ring[k]);
        free(fed->ring);
        free(fed->shape);
    }
    for (int64_t k = 0; job->hosted && k < job->count; k++)
        free(job->hosted[k].streams);
    free(job->feds);
}

spmd_fed *spmd_job_fed(const spmd_job *job, int64_t feed)
{
    bool known = job->feds && feed >= 0 && feed < job->image->feeds && job->feds[feed].depth;
    return known ? &job->feds[feed] : NULL;
}

int spmd_job_feed_begin(spmd_job *job, int64_t feed, int64_t start)
{
    spmd_fed *fed = spmd_job_fed(job, feed);
    if (!fed || start < 0)
        return SPMD_RANGE;
    if (spmd_job_runs(job))
        return SPMD_BUSY;
    fed->begins++;
    fed->taken = fed->from = start;
    for (int64_t k = 0; k < fed->rings; k++) {
        spmd_ring *ring = &fed->ring[k];
        for (int64_t b = 0; b < fed->depth; b++) {
            spmd_batch *batch = &ring->batch[b];
            atomic_store(&batch->number, 0);
            atomic_store(&batch->sent, 0);
            batch->sending = 0;
        }
        atomic_store(&ring->jumped, 0);
        atomic_store(&ring->last, ENDLESS);
        atomic_store(&ring->there, start);
        atomic_store(&ring->taken, start);
    }
    for (int64_t k = 0; k < job->count; k++) {
        spmd_reader *reader = &job->hosted[k].streams[feed];
        reader->began = reader->sent = start;
        reader->over = 0;
        reader->held = 0;
        atomic_store(&reader->taken, start);
        atomic_store(&reader->waited, 0);
        atomic_store(&reader->first, 0);
    }
    return SPMD_OK;
}

int64_t spmd_job_feed_rings(const spmd_job *job, int64_t feed)
{
    const spmd_fed *fed = spmd_job_fed(job, feed);
    return fed ? fed->rings : 0;
}

spmd_ring *spmd_job_feed_ring(const spmd_job *job, int64_t feed, int64_t k)
{
    return &spmd_job_fed(job, feed)->ring[k];
}

void spmd_ring_rows(const spmd_ring *ring, int64_t *begin, int64_t *end)
{
    *begin = ring->begin;
    *end = ring->end;
}

int spmd_ring_event(const spmd_ring *ring)
{
    return ring->event;
}

/* Four times a round: a rank always comes to the next time, as so many batches as are put ahead are
 * more than lie between two. */
void spmd_ring_ahead(spmd_ring *ring, int64_t batches)
{
    atomic_store_explicit(&ring->tells, batches < 8 ? 1 : batches / 4, memory_order_release);
}

/* Ranks without rows take when they come to it, each for itself. */
int64_t spmd_ring_taken(const spmd_ring *ring)
{
    const spmd_job *job = ring->job;
    int64_t least = ENDLESS;
    if (ring->begin < ring->end)
        return atomic_load_explicit(&ring->taken, memory_order_acquire);
    for (int64_t k = 0; k < job->count; k++) {
        const spmd_reader *reader = &job->hosted[k].streams[ring->fed->number];
        least = spmd_least(least, atomic_load_explicit(&reader->taken, memory_order_acquire));
    }
    return least;
}

/* Something was taken, or sent: whoever fills the ring looks. */
void spmd_ring_tell(spmd_ring *ring)
{
    const uint64_t one = 1;
    if (write(ring->event, &one, sizeof one) < 0 && errno != EAGAIN)
        abort(); /* no such descriptor: somebody closed what is ours */
}

/* Ranks of the ring look again. */
static void readers_ring(const spmd_ring *ring)
{
    const spmd_job *job = ring->job;
    for (int64_t k = 0; k < job->count; k++) {
        const spmd_hosted *me = &job->hosted[k];
        if (me->streams[ring->fed->number].ring == ring)
            spmd_rank_ring(job, me->record->rank.index);
    }
}

static bool rows_fit(const spmd_ring *ring, int64_t pieces, const int64_t *row)
{
    int64_t words = 2 + ring->fed->fields, end = ring->begin;
    for (int64_t k = 0; k < pieces; k++, row += words) {
        if (row[0] < end || row[1] < 1 || row[1] > ring->end - row[0])
            return false;
        end = row[0] + row[1];
    }
    return true;
}

/* The stream has so many batches at least. */
static void reach(spmd_ring *ring, int64_t count)
{
    say(ring, false, count);
    raise_to(&ring->there, count);
}

/* ahead: by so many batches what is put lies behind `row` in memory. */
static int batch_put(spmd_ring *ring, int64_t k, int64_t ahead, int64_t pieces, const int64_t *row)
{
    const spmd_fed *fed = ring->fed;
    if (ring->begin == ring->end) {
        if (pieces || k >= atomic_load(&ring->last))
            return SPMD_RANGE;
        reach(ring, k + 1);
        return SPMD_OK;
    }
    int64_t taken = spmd_ring_taken(ring), words = 2 + fed->fields;
    if (k < taken)
        return SPMD_OK;
    if (k >= taken + fed->depth)
        return SPMD_BUSY;
    spmd_batch *batch = &ring->batch[k % fed->depth];
    if (k >= atomic_load(&ring->last) || atomic_load(&batch->number) == k + 1 ||
        !rows_fit(ring, pieces, row))
        return SPMD_RANGE;
    if (pieces > batch->capacity) {
        free(batch->row);
        batch->row = malloc((size_t)(pieces * words) * sizeof *row);
        batch->capacity = batch->row ? pieces : 0;
        if (!batch->row)
            return SPMD_NO_MEMORY;
    }
    if (pieces)
        memcpy(batch->row, row, (size_t)(pieces * words) * sizeof *row);
    for (int64_t p = 0; ahead && p < pieces; p++)
        for (int64_t f = 0; f < fed->fields; f++)
            batch->row[p * words + 2 + f] +=
                ahead * fed->shape[f].extent[0] * fed->shape[f].row_bytes;
    batch->pieces = pieces;
    atomic_store_explicit(&batch->readers, ring->readers, memory_order_relaxed);
    reach(ring, k + 1);
    atomic_store_explicit(&batch->number, k + 1, memory_order_release);
    return SPMD_OK;
}

int spmd_ring_put_many(spmd_ring *ring, int64_t k, int64_t batches, int64_t pieces,
                       const int64_t *row)
{
    int status = SPMD_OK;
    for (int64_t ahead = 0; status == SPMD_OK && ahead < batches; ahead++)
        status = batch_put(ring, k + ahead, ahead, pieces, row);
    readers_ring(ring);
    return status;
}

int spmd_ring_put(spmd_ring *ring, int64_t k, int64_t pieces, const int64_t *row)
{
    return spmd_ring_put_many(ring, k, 1, pieces, row);
}

int spmd_ring_end(spmd_ring *ring, int64_t k)
{
    int64_t last = atomic_load(&ring->last);
    if (k < 0 || (last != ENDLESS && last != k))
        return SPMD_RANGE;
    say(ring, true, k);
    atomic_store_explicit(&ring->last, k, memory_order_release);
    readers_ring(ring);
    return SPMD_OK;
}

int spmd_ring_sent(spmd_ring *ring, int64_t k, void **values)
{
    const spmd_fed *fed = ring->fed;
    const spmd_batch *batch = &ring->batch[k % fed->depth];
    if (k < 0 || atomic_load_explicit(&batch->sent, memory_order_acquire) != k + 1)
        return SPMD_BUSY;
    char *at = batch->values;
    for (int64_t v = 0; v < fed->values; v++) {
        values[v] = at;
        at += fed->shape[fed->fields + v].row_bytes * (ring->end - ring->begin);
    }
    return SPMD_OK;
}

void spmd_ring_let_go(spmd_ring *ring, int64_t k)
{
    pthread_mutex_lock(&ring->lock);
    spmd_batch *batch = &ring->batch[k % ring->fed->depth];
    if (atomic_load(&batch->sent) == k + 1) {
        batch->sending = 0;
        atomic_store_explicit(&batch->sent, 0, memory_order_release);
    }
    pthread_mutex_unlock(&ring->lock);
    readers_ring(ring);
}

/* ---- what is known of them ------------------------------------------------------------------- */

int spmd_job_feed_taken(const spmd_job *job, int64_t feed, int64_t *taken, int64_t *over)
{
    if (!spmd_job_fed(job, feed))
        return SPMD_RANGE;
    *taken = atomic_load(&job->hosted[0].streams[feed].taken);
    *over = job->hosted[0].streams[feed].over;
    for (int64_t k = 1; k < job->count; k++) {
        const spmd_reader *reader = &job->hosted[k].streams[feed];
        if (atomic_load(&reader->taken) != *taken || !reader->over != !*over)
            return SPMD_RANGE;
    }
    return SPMD_OK;
}

int spmd_job_set_feed(const spmd_job *job, int64_t feed, int64_t *taken, int64_t *from)
{
    const spmd_fed *fed = spmd_job_fed(job, feed);
    if (!fed)
        return SPMD_RANGE;
    *taken = fed->set_taken;
    *from = fed->set_from;
    return SPMD_OK;
}

int spmd_job_resume_feed(spmd_job *job, int64_t feed, int64_t taken, int64_t from)
{
    spmd_fed *fed = spmd_job_fed(job, feed);
    if (!fed || from < 0 || from > taken)
        return SPMD_RANGE;
    fed->taken = taken;
    fed->from = from;
    return SPMD_OK;
}
