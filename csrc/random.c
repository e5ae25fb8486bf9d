/* Random numbers outside of images: what spmd.random gives on arrays of the host language. */
#define SPMD_RANDOM_FILL spmd_random_fill_any
#include "random.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
void spmd_random_fill_avx2(void *, int64_t, int, uint64_t, uint64_t, uint64_t, uint64_t);
void spmd_random_fill_avx512(void *, int64_t, int, uint64_t, uint64_t, uint64_t, uint64_t);
#else
#define spmd_random_fill_avx2 spmd_random_fill_any
#define spmd_random_fill_avx512 spmd_random_fill_any
#define __builtin_cpu_supports(feature) 0
#endif

void spmd_random_fill(void *into, int64_t n, int what, uint64_t seed, uint64_t stream,
                      uint64_t start, uint64_t span)
{
    if (__builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl"))
        spmd_random_fill_avx512(into, n, what, seed, stream, start, span);
    else if (__builtin_cpu_supports("avx2"))
        spmd_random_fill_avx2(into, n, what, seed, stream, start, span);
    else
        spmd_random_fill_any(into, n, what, seed, stream, start, span);
}
