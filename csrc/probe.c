/* An image's plan functions, evaluated for one rank without any memory for it: for whoever compares
 * them with what the manifest says. */
#include "parts.h"

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
