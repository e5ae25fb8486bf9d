/* What a loaded job is given between two runs: other scalars, another entry, states' new values. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

/* Buffers would lie elsewhere, or be larger, with the scalars that the tables hold now: what the
 * image reserves is asked for again. */
static int buffers_compare(spmd_job *job)
{
    size_t bytes = ((size_t)job->image->buffers + 1) * sizeof(int64_t);
    int64_t *buffer = calloc(1, bytes), rank_bytes = job->rank_bytes;

    if (!buffer)
        return SPMD_NO_MEMORY;
    int status = spmd_buffers_place(job, buffer);
    bool same = status == SPMD_OK && job->rank_bytes == rank_bytes &&
                memcmp(buffer, job->world.buffer, bytes - sizeof *buffer) == 0;
    job->rank_bytes = rank_bytes;
    free(buffer);
    return same ? SPMD_OK : SPMD_RANGE;
}

/* Whether a job can be given other scalars: not while its ranks run here. It can where those of
 * another process have failed meanwhile: inputs are then put as usual, and the run says why. */
static bool takes_scalars(const spmd_job *job)
{
    return job->hosted && !spmd_job_runs(job);
}

int spmd_job_scalars(spmd_job *job, const int64_t *scalar)
{
    const spmd_image *image = job->image;
    size_t bytes = image->scalars * sizeof *scalar;
    int status;

    if (!takes_scalars(job))
        return SPMD_BUSY;
    if (image->points || image->feeds)
        return SPMD_RANGE;
    int64_t *before = malloc(bytes + 1);
    if (!before)
        return SPMD_NO_MEMORY;
    memcpy(before, job->tables, bytes);
    memcpy(job->tables, scalar, bytes);
    status = buffers_compare(job);
    if (status != SPMD_OK)
        memcpy(job->tables, before, bytes);
    free(before);
    for (int64_t k = 0; status == SPMD_OK && k < job->count; k++) {
        spmd_nears_free(&job->hosted[k], image->sites);
        image->load(&job->hosted[k].record->rank); /* buffers stay: outputs may lie in them */
    }
    return status;
}

int spmd_job_set_scalars(spmd_job *job, const int64_t *scalar)
{
    if (!takes_scalars(job))
        return SPMD_BUSY;
    memcpy(job->tables, scalar, job->image->scalars * sizeof *scalar);
    return SPMD_OK;
}

static void swap(int64_t *a, int64_t *b)
{
    int64_t was = *a;
    *a = *b;
    *b = was;
}

/* What a run has left in the buffer `new`, perhaps in the place of another one, lies in `old` from
 * now on, and the other way round. */
static void places_change(int64_t *home, const spmd_rank *rank, uint32_t buffers, uint32_t old,
                          uint32_t new)
{
    for (uint32_t k = 0; k < buffers && home[new] != rank->buffer[new]; k++)
        if (home[k] == rank->buffer[new])
            swap(&home[k], &home[new]);
    swap(&home[old], &home[new]);
}

int spmd_job_replace(spmd_job *job, const uint32_t *pair, int64_t pairs)
{
    uint32_t buffers = job->image->buffers;

    if (!job->hosted || spmd_job_runs(job))
        return SPMD_BUSY;
    for (int64_t k = 0; k < 2 * pairs; k++)
        if (pair[k] >= buffers)
            return SPMD_RANGE;
    if (pairs && !job->homes) {
        job->homes = malloc((size_t)job->count * buffers * sizeof *job->homes + 1);
        if (!job->homes)
            return SPMD_NO_MEMORY;
        for (int64_t k = 0; k < job->count; k++) {
            job->hosted[k].home = job->homes + k * buffers;
            memcpy(job->hosted[k].home, job->world.buffer, buffers * sizeof *job->homes);
        }
    }
    for (int64_t k = 0; k < job->count; k++) {
        const spmd_rank *rank = &job->hosted[k].record->rank;
        for (int64_t j = 0; j < pairs; j++)
            places_change(job->hosted[k].home, rank, buffers, pair[2 * j], pair[2 * j + 1]);
        spmd_keeps_nothing(&job->hosted[k].record->rank); /* what the run wrote stays */
    }
    return SPMD_OK;
}

/* ---- what runs overwrite ------------------------------------------------------------------- */

static _Thread_local spmd_rank *keeping;

void spmd_keeps_for(spmd_rank *rank)
{
    keeping = rank;
}

typedef struct piece_end {
    char *at;
    int64_t bytes;
} piece_end;

static spmd_kept *kept_of(const spmd_rank *rank)
{
    return &((spmd_hosted *)rank->engine_data)->kept;
}

/* The first line from `at` on that is kept, or with `flip` all ones that is not; `end` for none. */
static int64_t line_find(const uint64_t *seen, int64_t at, int64_t end, uint64_t flip)
{
    while (at < end) {
        uint64_t bits = (seen[at / 64] ^ flip) >> at % 64;
        if (bits)
            return at + __builtin_ctzll(bits) < end ? at + __builtin_ctzll(bits) : end;
        at = (at | 63) + 1;
    }
    return end;
}

static void lines_mark(uint64_t *seen, int64_t at, int64_t end, bool kept)
{
    while (at < end) {
        int64_t stop = (at | 63) + 1 < end ? (at | 63) + 1 : end;
        uint64_t bits = ~UINT64_C(0) >> (64 - (stop - at)) << at % 64;
        seen[at / 64] = kept ? seen[at / 64] | bits : seen[at / 64] & ~bits;
        at = stop;
    }
}

static bool room_make(spmd_kept *kept, int64_t need, int64_t rank_bytes)
{
    if (!kept->seen)
        kept->seen = calloc((size_t)(rank_bytes / SPMD_LINE / 64 + 1), sizeof *kept->seen);
    if (kept->seen && need > kept->room) {
        char *more = realloc(kept->bytes, 2 * (size_t)need);
        if (more) {
            kept->bytes = more;
            kept->room = 2 * need;
        }
    }
    return kept->seen && need <= kept->room;
}

static bool piece_add(spmd_kept *kept, char *at, int64_t bytes, int64_t rank_bytes)
{
    piece_end end = {at, bytes};

    if (!room_make(kept, kept->used + bytes + (int64_t)sizeof end, rank_bytes))
        return false;
    memcpy(kept->bytes + kept->used, at, (size_t)bytes);
    memcpy(kept->bytes + kept->used + bytes, &end, sizeof end);
    kept->used += bytes + (int64_t)sizeof end;
    return true;
}

void spmd_keep(void *at, int64_t bytes)
{
    spmd_kept *kept = kept_of(keeping);
    int64_t rank_bytes = ((spmd_hosted *)keeping->engine_data)->job->rank_bytes;

    if (bytes <= 0)
        return;
    int64_t first = (char *)at - keeping->memory, end = (first + bytes - 1) / SPMD_LINE + 1;
    kept->lost |= !room_make(kept, 0, rank_bytes);
    for (int64_t line = first / SPMD_LINE; !kept->lost; ) {
        line = line_find(kept->seen, line, end, ~UINT64_C(0));
        if (line == end)
            return;
        int64_t stop = line_find(kept->seen, line, end, 0);
        kept->lost = !piece_add(kept, keeping->memory + line * SPMD_LINE,
                                (stop - line) * SPMD_LINE, rank_bytes);
        if (!kept->lost)
            lines_mark(kept->seen, line, stop, true);
        line = stop;
    }
    spmd_rank_fail(keeping, 71, "no memory to keep %lld bytes that the run overwrites",
                   (long long)bytes);
}

/* The latest piece leaves what is kept; false: there is none. */
static bool piece_take(spmd_kept *kept, const char *memory, piece_end *end)
{
    if (!kept->used)
        return false;
    kept->used -= (int64_t)sizeof *end;
    memcpy(end, kept->bytes + kept->used, sizeof *end);
    kept->used -= end->bytes;
    lines_mark(kept->seen, (end->at - memory) / SPMD_LINE,
               (end->at - memory + end->bytes) / SPMD_LINE, false);
    return true;
}

void spmd_keeps_nothing(spmd_rank *rank)
{
    spmd_kept *kept = kept_of(rank);
    piece_end end;

    while (piece_take(kept, rank->memory, &end))
        continue;
    kept->lost = false;
}

int spmd_job_undo(spmd_job *job)
{
    if (job->hosted && spmd_job_runs(job))
        return SPMD_BUSY;
    for (int64_t k = 0; job->hosted && k < job->count; k++) {
        spmd_kept *kept = &job->hosted[k].kept;
        piece_end end;
        if (kept->lost)
            return SPMD_NO_MEMORY;
        while (piece_take(kept, job->hosted[k].record->rank.memory, &end))
            memcpy(end.at, kept->bytes + kept->used, (size_t)end.bytes);
    }
    return SPMD_OK;
}
