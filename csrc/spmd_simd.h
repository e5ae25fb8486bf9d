/* Reductions of loops whose turns may be taken in any order: what OpenMP has no name for.
 *
 * Of floats, with NaN as NumPy has it. Only images that have such loops include this.
 */
#ifndef SPMD_SIMD_H
#define SPMD_SIMD_H

#include "spmd_support.h"

#define SPMD_PRAGMA(text) _Pragma(#text)
#define SPMD_REDUCTION(name, S, T, start)                                                          \
    SPMD_PRAGMA(omp declare reduction(name : T : omp_out = name##_##S(omp_out, omp_in))            \
                    initializer(omp_priv = start))

SPMD_REDUCTION(spmd_maximum, f32, float, -INFINITY)
SPMD_REDUCTION(spmd_maximum, f64, double, -INFINITY)
SPMD_REDUCTION(spmd_minimum, f32, float, INFINITY)
SPMD_REDUCTION(spmd_minimum, f64, double, INFINITY)
SPMD_REDUCTION(spmd_fmax, f32, float, NAN)
SPMD_REDUCTION(spmd_fmax, f64, double, NAN)
SPMD_REDUCTION(spmd_fmin, f32, float, NAN)
SPMD_REDUCTION(spmd_fmin, f64, double, NAN)

#endif
