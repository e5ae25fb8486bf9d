/* Frames: arrays that programs save in every so many turns of a loop, on their way to the host
 * language. Each hosted rank has a ring of slots for each save; a rank whose ring is full waits. */
#define _GNU_SOURCE
#include "parts.h"

#include <sched.h>
#include <stdlib.h>
#include <string.h>

#define MOST_SLOTS 16
#define CLAIMS 1000

/* A save of a hosted rank. room: slots for frames, of `bytes` each; writes: else another rank has
 * the same part, and writes it. put, written: how many frames went in and out in this run; first:
 * the number of the first. turn: of its loop. frames: all so far; kept: as the last set was kept;
 * from: in the set that the run goes on from. held_since: since when it waits for a slot; 0: it
 * does not. order: by slot, how many frames of all saves the rank had made before. */
typedef struct spmd_saved {
    int64_t every, turn, frames, first, kept, from, slots, bytes, held;
    int64_t order[MOST_SLOTS];
    char *room;
    bool writes;
    _Atomic int64_t put, written, held_since;
} spmd_saved;

static uint32_t array_of(const spmd_image *image, int64_t save)
{
    return spmd_image_arrays(image) - image->saves + (uint32_t)save;
}

static spmd_saved *saved_of(const spmd_job *job, int64_t save, int64_t rank)
{
    bool here = job->hosted && rank >= job->first && rank < job->first + job->count;
    if (!here || save < 0 || save >= (int64_t)job->image->saves ||
        !job->hosted[rank - job->first].saves)
        return NULL;
    return &job->hosted[rank - job->first].saves[save];
}

/* ---- a rank at its save --------------------------------------------------------------------- */

void spmd_rank_turn(spmd_rank *rank, uint32_t save, int begins)
{
    spmd_hosted *me = rank->engine_data;
    if (me->saves)
        me->saves[save].turn = begins ? -1 : me->saves[save].turn + 1;
}

static int held(spmd_hosted *me, spmd_saved *saved)
{
    if (!saved->held_since) {
        atomic_store(&saved->held_since, spmd_now());
        pthread_mutex_lock(&me->job->lock);
        pthread_cond_broadcast(&me->job->news);
        pthread_mutex_unlock(&me->job->lock);
    }
    return 0;
}

int spmd_rank_save(spmd_rank *rank, uint32_t save)
{
    spmd_hosted *me = rank->engine_data;
    spmd_job *job = me->job;
    spmd_saved *saved = me->saves ? &me->saves[save] : NULL;
    bool again = job->keeping.resume >= 0 && !me->turns.resumed; /* an earlier loop */

    if (!saved || saved->every == 0 || again || saved->turn % saved->every != 0)
        return 1;
    if (!saved->writes) { /* another rank has the same part */
        saved->frames++;
        atomic_fetch_add(&me->frames, 1);
        return 1;
    }
    if (saved->put - atomic_load_explicit(&saved->written, memory_order_acquire) == saved->slots)
        return held(me, saved);
    if (saved->held_since) {
        saved->held += spmd_now() - saved->held_since;
        atomic_store(&saved->held_since, 0);
    }
    spmd_piece_of piece = spmd_array_piece(rank, job->image, array_of(job->image, save));
    char *from = rank->memory + rank->buffer[job->image->array_buffer[array_of(job->image, save)]];
    if (piece.bytes > 0)
        spmd_array_copy(saved->room + saved->put % saved->slots * saved->bytes, piece.packed,
                        from + piece.first, piece.stride, piece.extent, piece.dims, piece.size, 0);
    saved->order[saved->put % saved->slots] = me->frames;
    saved->frames++;
    pthread_mutex_lock(&job->lock);
    atomic_store_explicit(&saved->put, saved->put + 1, memory_order_release);
    atomic_fetch_add(&job->frames_wait, 1);
    atomic_fetch_add(&me->frames, 1);
    pthread_cond_broadcast(&job->news);
    pthread_mutex_unlock(&job->lock);
    me->worker->advances++;
    sched_yield(); /* to the thread that takes the frame, if it has to share this core */
    return 1;
}

void spmd_saves_reset(spmd_hosted *me)
{
    atomic_store(&me->frames, 0);
    for (uint32_t k = 0; me->saves && k < me->job->image->saves; k++) {
        spmd_saved *saved = &me->saves[k];
        saved->turn = -1;
        saved->frames = saved->first = saved->kept = saved->held = 0;
        atomic_store(&saved->put, 0);
        atomic_store(&saved->written, 0);
        atomic_store(&saved->held_since, 0);
    }
}

void spmd_saves_keep(spmd_hosted *me)
{
    for (uint32_t k = 0; me->saves && k < me->job->image->saves; k++)
        me->saves[k].kept = me->saves[k].frames;
}

/* Of a save in the loop itself, the turn that begins next; one in another loop is told when that
 * begins. */
void spmd_saves_resume(spmd_hosted *me, int64_t turn)
{
    for (uint32_t k = 0; me->saves && k < me->job->image->saves; k++) {
        spmd_saved *saved = &me->saves[k];
        saved->turn = turn - 1;
        saved->frames = saved->first = saved->from;
    }
}

void spmd_saves_free(spmd_hosted *me)
{
    for (uint32_t k = 0; me->saves && k < me->job->image->saves; k++)
        free(me->saves[k].room);
    free(me->saves);
    me->saves = NULL;
}

bool spmd_frames_wait(const spmd_job *job)
{
    return atomic_load(&job->frames_wait) > 0;
}

/* The run was aborted by a rank of this process that had come to more frames: these were made
 * before what went wrong, and are whole once this one has come to them, too. */
bool spmd_owes_frames(const spmd_hosted *me)
{
    const spmd_job *job = me->job;
    const spmd_header *header = job->arena->header;

    if (!me->saves || atomic_load(&me->record->done))
        return false;
    for (int k = 0; k < CLAIMS && atomic_load(&header->abort) == SPMD_CLAIMED; k++)
        sched_yield(); /* the failure is being written down */
    int64_t rank = atomic_load(&header->abort) == SPMD_SAID ? header->failure.rank : -1;
    if (rank < job->first || rank >= job->first + job->count)
        return false;
    return atomic_load(&me->frames) < atomic_load(&job->hosted[rank - job->first].frames);
}

/* ---- for the host language ------------------------------------------------------------------ */

int spmd_job_save(spmd_job *job, int64_t save, int64_t rank, int64_t every, int writes)
{
    bool here = job->hosted && rank >= job->first && rank < job->first + job->count;
    if (!here || save < 0 || save >= (int64_t)job->image->saves || every < 0)
        return SPMD_RANGE;
    if (spmd_job_runs(job))
        return SPMD_BUSY;
    spmd_hosted *me = &job->hosted[rank - job->first];
    if (!me->saves && every > 0)
        me->saves = calloc(job->image->saves, sizeof *me->saves);
    if (!me->saves)
        return every > 0 ? SPMD_NO_MEMORY : SPMD_OK;
    spmd_saved *saved = &me->saves[save];
    uint32_t array = array_of(job->image, save);
    saved->every = every;
    saved->writes = every > 0 && writes;
    if (!saved->writes)
        return SPMD_OK;
    int64_t piece = spmd_array_piece(&me->record->rank, job->image, array).bytes;
    int64_t bytes = spmd_round_up(piece > 0 ? piece : 1, SPMD_LINE);
    if (saved->room && saved->bytes == bytes)
        return SPMD_OK;
    free(saved->room);
    saved->bytes = bytes;
    saved->slots = spmd_least(MOST_SLOTS, 2 + SPMD_FRAME_BYTES / job->count / saved->bytes);
    saved->room = aligned_alloc(SPMD_LINE, (size_t)(saved->slots * saved->bytes));
    return saved->room ? SPMD_OK : SPMD_NO_MEMORY;
}

int spmd_job_save_from(spmd_job *job, int64_t save, int64_t rank, int64_t frames)
{
    spmd_saved *saved = saved_of(job, save, rank);
    if (!saved)
        return SPMD_RANGE;
    saved->from = frames;
    return SPMD_OK;
}

int spmd_job_frame(const spmd_job *job, int64_t save, int64_t rank, spmd_frame *frame)
{
    const spmd_saved *saved = saved_of(job, save, rank);
    if (!saved || !saved->writes)
        return 0;
    int64_t written = atomic_load(&saved->written);
    if (written == atomic_load_explicit(&saved->put, memory_order_acquire))
        return 0;
    const spmd_rank *record = &job->hosted[rank - job->first].record->rank;
    spmd_piece_of piece = spmd_array_piece(record, job->image, array_of(job->image, save));
    memcpy(frame->offset, piece.offset, sizeof piece.offset);
    memcpy(frame->extent, piece.extent, sizeof piece.extent);
    frame->number = saved->first + written;
    frame->order = saved->order[written % saved->slots];
    frame->bytes = piece.bytes > 0 ? piece.bytes : 0;
    frame->data = saved->room + written % saved->slots * saved->bytes;
    return 1;
}

void spmd_job_frame_written(spmd_job *job, int64_t save, int64_t rank)
{
    spmd_saved *saved = saved_of(job, save, rank);
    if (!saved)
        return;
    pthread_mutex_lock(&job->lock); /* see spmd_set_held */
    atomic_fetch_add_explicit(&saved->written, 1, memory_order_release);
    atomic_fetch_sub(&job->frames_wait, 1);
    job->frames_come = true;
    atomic_fetch_add(&job->advances, 1);
    pthread_mutex_unlock(&job->lock);
    spmd_job_ring(job);
}

int spmd_job_owes_frames(const spmd_job *job)
{
    for (int64_t k = 0; spmd_job_runs(job) && k < job->count; k++)
        if (spmd_owes_frames(&job->hosted[k]))
            return 1;
    return 0;
}

int64_t spmd_job_frames(const spmd_job *job, int64_t save, int64_t rank, int kept)
{
    const spmd_saved *saved = saved_of(job, save, rank);
    return !saved ? 0 : kept ? saved->kept : saved->frames;
}

int64_t spmd_job_save_held(const spmd_job *job, int64_t save)
{
    int64_t most = 0;
    for (int64_t rank = job->first; rank < job->first + job->count; rank++) {
        const spmd_saved *saved = saved_of(job, save, rank);
        int64_t since = saved ? atomic_load(&saved->held_since) : 0;
        int64_t all = !saved ? 0 : saved->held + (since ? spmd_now() - since : 0);
        most = all > most ? all : most;
    }
    return most;
}
