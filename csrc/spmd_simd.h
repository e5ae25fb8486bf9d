/* Reductions of loops whose turns may be taken in any order: what OpenMP has no name for.
 *
 * Of floats, with NaN as NumPy has it. Only images that have such loops include this.
 */
#ifndef SPMD_SIMD_H
#define SPMD_SIMD_H

#include "spmd_support.h"

#define SPMD_PRAGMA(text) _Pragma(#text)
#define SPMD_REDUCTION(name, S, T, start)                                                          \
    SPMD_PRAGMA(omp declare reduction(name : T : omp_out = name##_join_##S(omp_out, omp_in))       \
                    initializer(omp_priv = start))

/* Lanes are joined one after the other once a loop is done: by a conditional, which takes two
 * instructions; the selection by bits, which vectorises, takes ten of them. */
#define SPMD_JOINS(S, T)                                                                           \
    static inline T spmd_maximum_join_##S(T a, T b) { return (a > b) | (a != a) ? a : b; }         \
    static inline T spmd_minimum_join_##S(T a, T b) { return (a < b) | (a != a) ? a : b; }         \
    static inline T spmd_fmax_join_##S(T a, T b) { return (a >= b) | (b != b) ? a : b; }           \
    static inline T spmd_fmin_join_##S(T a, T b) { return (a <= b) | (b != b) ? a : b; }

SPMD_JOINS(f32, float)
SPMD_JOINS(f64, double)

SPMD_REDUCTION(spmd_maximum, f32, float, -INFINITY)
SPMD_REDUCTION(spmd_maximum, f64, double, -INFINITY)
SPMD_REDUCTION(spmd_minimum, f32, float, INFINITY)
SPMD_REDUCTION(spmd_minimum, f64, double, INFINITY)
SPMD_REDUCTION(spmd_fmax, f32, float, NAN)
SPMD_REDUCTION(spmd_fmax, f64, double, NAN)
SPMD_REDUCTION(spmd_fmin, f32, float, NAN)
SPMD_REDUCTION(spmd_fmin, f64, double, NAN)

#endif
