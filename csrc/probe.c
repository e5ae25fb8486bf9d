/* An image's plan functions, evaluated for one rank without any memory for it: for whoever compares
 * them with what the manifest says. */
#include "parts.h"

int spmd_job_probe(const spmd_job *job, int64_t index, int64_t *bytes, int64_t *at_load,
                   int64_t *offset, int64_t *extent)
{
    const spmd_image *image = job->image;
    int64_t rest = index;

    if (index < 0 || index >= job->world.ranks)
        return SPMD_RANGE;
    spmd_rank rank = {
        .index = index, .world = &job->world, .engine = &job->engine, .at_load = at_load};
    for (int axis = SPMD_AXES - 1; axis >= 0; axis--) {
        rank.coord[axis] = rest % job->world.size[axis];
        rest /= job->world.size[axis];
    }
    image->reserve(&job->world, bytes);
    image->load(&rank);
    for (uint32_t array = 0; array < image->inputs + image->outputs; array++)
        image->shard(&rank, array, offset + array * SPMD_DIMS, extent + array * SPMD_DIMS);
    return SPMD_OK;
}
