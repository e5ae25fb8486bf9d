/* The hooks of the stress test. Between any two steps of the engine a thread may be held up: it
 * spins, yields or sleeps, at random. What it writes becomes visible to others late, but in order,
 * as behind the store buffer of an x86 processor, so that a missing fence shows. Nobody who sleeps
 * is woken by a time limit. */
#ifndef SPMD_DELAYS_H
#define SPMD_DELAYS_H

#include <stdint.h>

/* A defect made on purpose, to see that the tests find it. */
enum delays_defect {
    DELAYS_NO_DEFECT = 0,
    DELAYS_NO_FENCE = 1,   /* fences do nothing */
    DELAYS_LOST_WAKE = 2,  /* some bells are not heard */
    DELAYS_HALF_COPY = 3,  /* some copies end in the middle */
    DELAYS_ALLOCATES = 4,  /* some steps take memory, and give it back */
    DELAYS_CALLS = 5,      /* some steps call the system */
};

/* For all threads of this process that begin afterwards. One step in `rate` is held up; 0: none. */
void delays_set(uint64_t seed, uint64_t rate, enum delays_defect defect);

#endif
