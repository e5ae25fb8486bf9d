/* An image's plan functions, evaluated for one rank without any memory for it, and what exchanges
 * do with what arrives: for whoever compares them with what the manifest says. */
#include "parts.h"

#include <string.h>

int spmd_job_probe(const spmd_job *job, int64_t index, const spmd_plan *into)
{
    const spmd_image *image = job->image;
    int64_t rest = index;

    if (index < 0 || index >= job->world.ranks || into->buffers != image->buffers ||
        into->at_loads != image->at_load || into->arrays != image->inputs + image->outputs)
        return SPMD_RANGE;
    spmd_rank rank = {
        .index = index, .world = &job->world, .engine = &job->engine, .at_load = into->at_load};
    for (int axis = SPMD_AXES - 1; axis >= 0; axis--) {
        rank.coord[axis] = rest % job->world.size[axis];
        rest /= job->world.size[axis];
    }
    image->reserve(&job->world, into->bytes);
    image->load(&rank);
    for (uint32_t array = 0; array < image->inputs + image->outputs; array++)
        image->shard(&rank, array, into->offset + array * SPMD_DIMS,
                     into->extent + array * SPMD_DIMS);
    return SPMD_OK;
}

/* The cast, piece by piece, as generated code does it: what is contiguous on both sides. */
static void piece_cast(const spmd_rank *rank, const spmd_piece *piece)
{
    int64_t size = rank->exchange.size, into_size = rank->exchange.into_size;
    size_t same = (size_t)spmd_least(size, into_size);

    for (int64_t row = 0; row < piece->rows; row++)
        for (int64_t k = 0; k < piece->n; k++) {
            char *into = rank->memory + piece->into + row * piece->into_stride + k * into_size;
            const char *from = (const char *)piece->from + row * piece->from_stride + k * size;
            memset(into, 0, (size_t)into_size);
            memcpy(into, from, same);
        }
}

void spmd_take_probe(char *into, const int64_t *into_stride, int64_t into_size, const char *from,
                     const int64_t *from_stride, int64_t from_size, const int64_t *extent,
                     int64_t dims)
{
    spmd_rank rank = {.memory = into};
    spmd_box into_box = {.dims = (int32_t)dims}, from_box = {.dims = (int32_t)dims};

    for (int64_t d = 0; d < dims; d++) {
        into_box.extent[d] = from_box.extent[d] = extent[d];
        into_box.stride[d] = into_stride[d];
        from_box.stride[d] = from_stride[d];
    }
    rank.exchange.size = (uint32_t)from_size;
    rank.exchange.into_size = (uint32_t)into_size;
    rank.exchange.take = piece_cast;
    spmd_box_take(&rank, &rank.exchange, &into_box, from, &from_box);
}
