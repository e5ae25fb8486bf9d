/* Global arrays in and out. A rank's part of an array is a box of the global array, given by the
 * image, and contiguous row-major memory in the rank's buffer. */
#define _GNU_SOURCE
#include "parts.h"

#include <setjmp.h>
#include <signal.h>
#include <string.h>

typedef struct spmd_shard {
    int64_t dims, elements;
    int64_t offset[SPMD_DIMS], extent[SPMD_DIMS];
    char *memory, *end; /* where it begins, and where the rank's memory ends */
} spmd_shard;

static int shard_find(const spmd_job *job, int64_t array, int64_t rank, spmd_shard *shard)
{
    const spmd_image *image = job->image;
    if (!job->hosted || array < 0 || array >= (int64_t)spmd_image_arrays(image) ||
        rank < job->first || rank >= job->first + job->count)
        return SPMD_RANGE;
    const spmd_rank *record = &job->hosted[rank - job->first].record->rank;
    shard->dims = image->array_dims[array];
    image->shard(record, (uint32_t)array, shard->offset, shard->extent);
    shard->elements = 1;
    for (int64_t d = 0; d < shard->dims; d++)
        shard->elements *= shard->extent[d] > 0 ? shard->extent[d] : 0;
    /* Inputs are put where a run will look for them, outputs are where it has left them. */
    const int64_t *buffer = array < image->inputs ? spmd_rank_home(record) : record->buffer;
    shard->memory = record->memory + buffer[image->array_buffer[array]];
    shard->end = record->memory + job->rank_bytes;
    return SPMD_OK;
}

/* The image and the caller must mean the same array: checked before a byte is copied. */
static int global_check(const spmd_global *global, const spmd_shard *shard)
{
    if (global->dims != shard->dims || global->size <= 0 || global->swap < 0 ||
        (global->swap && global->size % global->swap) ||
        shard->elements > (shard->end - shard->memory) / global->size)
        return SPMD_RANGE;
    for (int64_t d = 0; d < shard->dims; d++)
        if (shard->elements && (shard->offset[d] < 0 || shard->extent[d] < 0 ||
                                shard->offset[d] + shard->extent[d] > global->shape[d]))
            return SPMD_RANGE;
    return SPMD_OK;
}

static int shard_copy(const spmd_shard *shard, const spmd_global *global, bool scatter)
{
    int64_t stride[SPMD_DIMS];
    int64_t next = global->size;
    char *base = global->base;

    for (int64_t d = shard->dims - 1; d >= 0; d--) {
        stride[d] = next;
        next *= shard->extent[d];
        base += shard->offset[d] * global->stride[d];
    }
    if (shard->elements == 0)
        return SPMD_OK;
    if (scatter)
        spmd_array_copy(shard->memory, stride, base, global->stride, shard->extent, shard->dims,
                        global->size, global->swap);
    else
        spmd_array_copy(base, global->stride, shard->memory, stride, shard->extent, shard->dims,
                        global->size, global->swap);
    return SPMD_OK;
}

static int job_copy(spmd_job *job, int64_t array, int64_t rank, const spmd_global *global,
                    bool scatter)
{
    int64_t first = rank == SPMD_EVERY_RANK ? job->first : rank;
    int64_t end = rank == SPMD_EVERY_RANK ? job->first + job->count : rank + 1;
    spmd_shard shard;

    if (spmd_job_runs(job) && (scatter || !spmd_job_aborted(job)))
        return SPMD_BUSY;
    for (int64_t k = first; k < end; k++) {
        int status = shard_find(job, array, k, &shard);
        if (status == SPMD_OK)
            status = global_check(global, &shard);
        if (status == SPMD_OK)
            status = shard_copy(&shard, global, scatter);
        if (status != SPMD_OK)
            return status;
    }
    return SPMD_OK;
}

/* Where this thread goes on when pages of a file that it reads are there no more. */
static _Thread_local sigjmp_buf *reading;

static void page_gone(int number)
{
    if (reading)
        siglongjmp(*reading, 1);
    signal(number, SIG_DFL); /* another thread's: it will happen again, and end the process */
}

/* Arrays may lie in a mapped file, which another process may cut short meanwhile. */
static int parts_scatter(spmd_job *job, const spmd_transfer *part, int64_t parts)
{
    struct sigaction action = {.sa_handler = page_gone, .sa_flags = SA_NODEFER}, before;
    sigjmp_buf here;
    volatile int status = SPMD_OK;

    if (parts == 0)
        return SPMD_OK;
    if (sigaction(SIGBUS, &action, &before))
        return SPMD_SYSTEM;
    reading = &here;
    if (sigsetjmp(here, 1))
        status = SPMD_CUT;
    else
        for (int64_t k = 0; status == SPMD_OK && k < parts; k++)
            status = job_copy(job, part[k].array, part[k].rank, &part[k].global, true);
    reading = NULL;
    sigaction(SIGBUS, &before, NULL);
    return status;
}

int spmd_job_scatter(spmd_job *job, int64_t array, int64_t rank, const spmd_global *from)
{
    const spmd_transfer part = {.array = array, .rank = rank, .global = *from};
    return parts_scatter(job, &part, 1);
}

int spmd_job_gather(spmd_job *job, int64_t array, int64_t rank, const spmd_global *into)
{
    return job_copy(job, array, rank, into, false);
}

int spmd_call_start(spmd_job *job, const spmd_call *call)
{
    int status = spmd_job_set_scalars(job, call->scalar);
    if (status == SPMD_OK)
        status = parts_scatter(job, call->put, call->puts);
    return status == SPMD_OK ? spmd_run_start(job, call->given, call->here != 0) : status;
}

int spmd_call_get(spmd_job *job, const spmd_call *call)
{
    int status = SPMD_OK;
    for (int64_t k = 0; status == SPMD_OK && k < call->gets; k++)
        status = job_copy(job, call->get[k].array, call->get[k].rank, &call->get[k].global, false);
    return status;
}

int spmd_call_finish(spmd_job *job, const spmd_call *call)
{
    int status = spmd_call_get(job, call);
    if (status != SPMD_OK)
        return status;
    spmd_call_commit(job);
    return spmd_job_replace(job, call->pair, call->pairs);
}

/* The last round of SplitMix64 (Steele, Lea and Flood 2014). */
static uint64_t mixed(uint64_t x)
{
    x = (x ^ x >> 30) * 0xbf58476d1ce4e5b9u;
    x = (x ^ x >> 27) * 0x94d049bb133111ebu;
    return x ^ x >> 31;
}

/* Of elements one after the other, where `place` stands for that of the first. */
static inline __attribute__((always_inline)) uint64_t lane_sum_of(
    const char *from, int64_t elements, const size_t size, uint64_t place, uint64_t step)
{
    uint64_t sum = 0;
    for (int64_t k = 0; k < elements; k++, place += step, from += size)
        for (size_t at = 0; at < size; at += 8) {
            uint64_t word = 0;
            memcpy(&word, from + at, size - at < 8 ? size - at : 8);
            sum += mixed((place + at) * 0x9e3779b97f4a7c15u ^ word);
        }
    return sum;
}

static uint64_t lane_sum(const char *from, int64_t elements, int64_t size, uint64_t place,
                         uint64_t step)
{
    switch (size) { /* known to the compiler, they take a tenth of the time */
    case 1:
        return lane_sum_of(from, elements, 1, place, step);
    case 2:
        return lane_sum_of(from, elements, 2, place, step);
    case 4:
        return lane_sum_of(from, elements, 4, place, step);
    case 8:
        return lane_sum_of(from, elements, 8, place, step);
    default:
        return lane_sum_of(from, elements, 16, place, step);
    }
}

int spmd_job_sum(spmd_job *job, int64_t array, int64_t rank, uint64_t *sum)
{
    spmd_shard shard;
    int64_t index[SPMD_DIMS] = {0};
    uint64_t step[SPMD_DIMS];
    int status = shard_find(job, array, rank, &shard);

    *sum = 0;
    if (status != SPMD_OK)
        return status;
    int64_t size = job->image->array_size[array], lanes = 1, last = shard.dims - 1;
    for (int64_t d = 0; d < shard.dims; d++) {
        step[d] = mixed((uint64_t)d + 1) | 1;
        lanes *= d < last ? shard.extent[d] : 1;
    }
    int64_t elements = last < 0 ? 1 : shard.extent[last];
    for (int64_t lane = 0; lane < lanes; lane++) {
        uint64_t place = 0;
        for (int64_t d = 0; d < shard.dims; d++)
            place += (uint64_t)(shard.offset[d] + index[d]) * step[d];
        *sum += lane_sum(shard.memory + lane * elements * size, elements, size, place,
                         last < 0 ? 0 : step[last]);
        for (int64_t d = last - 1; d >= 0 && ++index[d] == shard.extent[d]; d--)
            index[d] = 0;
    }
    return SPMD_OK;
}

int spmd_job_shard(spmd_job *job, int64_t array, int64_t rank, int64_t *offset, int64_t *extent,
                   void **address)
{
    spmd_shard shard;
    int status = shard_find(job, array, rank, &shard);
    if (status != SPMD_OK)
        return status;
    for (int64_t d = 0; d < shard.dims; d++) {
        offset[d] = shard.offset[d];
        extent[d] = shard.extent[d];
    }
    *address = shard.memory;
    return SPMD_OK;
}
