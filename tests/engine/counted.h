/* The table of a program that checks itself: each rank gives the number of its errors, buffer ERRORS.
 * Whoever uses it has the enums SCALARS, BUFFERS, COUNTERS, SITES, and `reserve`. */
#ifndef COUNTED_H
#define COUNTED_H

#include "spmd_image.h"

static void counted_load(spmd_rank *rank)
{
    (void)rank;
}

static void counted_shard(const spmd_rank *rank, uint32_t array, int64_t *offset, int64_t *extent)
{
    (void)array;
    offset[0] = rank->index;
    extent[0] = 1;
}

#define COUNTED_IMAGE(name, step_function)                                                         \
    static const uint32_t array_buffer[] = {ERRORS}, array_dims[] = {1};                           \
    __attribute__((visibility("default"))) const spmd_image name = {                               \
        .interface_version = SPMD_INTERFACE,                                                       \
        .axes = SPMD_AXES,                                                                         \
        .scalars = SCALARS,                                                                        \
        .outputs = 1,                                                                              \
        .buffers = BUFFERS,                                                                        \
        .counters = COUNTERS,                                                                      \
        .sites = SITES,                                                                            \
        .array_buffer = array_buffer,                                                              \
        .array_dims = array_dims,                                                                  \
        .reserve = reserve,                                                                        \
        .load = counted_load,                                                                      \
        .shard = counted_shard,                                                                    \
        .step = step_function,                                                                     \
    }

#endif
