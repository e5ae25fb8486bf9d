/* What stores into states overwrite is kept, until their run has ended well: see rebind.c. */
#ifndef SPMD_KEPT_H
#define SPMD_KEPT_H

#include "spmd_image.h"

#include <stdbool.h>

/* Pieces of memory as they were, one after the other: each is followed by where it begins and how
 * many bytes it has. */
typedef struct spmd_kept {
    char *bytes;
    int64_t used, room;
    bool lost; /* there was no memory for a piece */
} spmd_kept;

/* The rank whose step this thread is about to make: what spmd_keep keeps is its. */
void spmd_keeps_for(spmd_rank *rank);

#endif
