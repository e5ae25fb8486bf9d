/* What stores into states overwrite is kept, until their run has ended well: see rebind.c. */
#ifndef SPMD_KEPT_H
#define SPMD_KEPT_H

#include "spmd_image.h"

#include <stdbool.h>

/* Lines of memory as they were before the run wrote into them: pieces of one or more, each followed
 * by where it begins and how many bytes it has. A line is kept once, however often it is written:
 * its bit is set in `seen`, which counts lines from where the rank's memory begins. */
typedef struct spmd_kept {
    char *bytes;
    int64_t used, room;
    uint64_t *seen; /* NULL: nothing was ever kept */
    bool lost;      /* there was no memory for a piece */
} spmd_kept;

/* The rank whose step this thread is about to make: what spmd_keep keeps is its. */
void spmd_keeps_for(spmd_rank *rank);
/* A run begins: nothing of it is kept so far. */
void spmd_keeps_nothing(spmd_rank *rank);

#endif
