/* Random numbers outside of images, once for each instruction set: a file defines SPMD_RANDOM_FILL,
 * the name of its function, and includes this. The text is that of images (spmd_philox.h,
 * spmd_log.h, spmd_trig.h), compiled as they are, so the bits are the same. */
#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#endif
#include "engine.h"
#include "spmd_support.h"

#include "spmd_log.h"
#include "spmd_trig.h"
SPMD_LANES_1(log, f32)
SPMD_LANES_1(log, f64)

#define BLOCK 256 /* numbers whose bits stay in the first-level cache */
#define INLINE static inline __attribute__((always_inline))

/* Both halves of the random bits of some elements, from position `at` on. */
INLINE void block_bits(uint64_t *first, uint64_t *second, int64_t n, uint64_t at, uint64_t stream,
                       uint64_t seed)
{
    for (int64_t k = 0; k < n; k++) {
        uint64_t position = at + (uint64_t)k;
        first[k] = spmd_philox(position, stream, seed, 0);
        second[k] = spmd_philox(position, stream, seed, 1);
    }
}

/* `kept` counts steps of 2^-53, or 2^-24: numbers that a signed integer holds as well. */
#define FRACTIONS(T, KEPT, STEP)                                                                   \
    for (int64_t k = 0; k < n; k++)                                                                \
        ((T *)into)[k] = (T)(int64_t)(KEPT) * (T)STEP

#define NORMALS(S, T, SHIFT, STEP, AROUND)                                                         \
    for (int64_t k = 0; k < n; k++) {                                                              \
        T near = (T)(int64_t)((first[k] >> SHIFT) + 1) * (T)STEP;                                  \
        T turn = (T)AROUND * ((T)(int64_t)(second[k] >> SHIFT) * (T)STEP);                         \
        ((T *)into)[k] = spmd_sqrt_##S((T)-2 * spmd_log_##S(near)) * spmd_cos_##S(turn);           \
    }

INLINE void block_fill(void *into, int64_t n, int what, const uint64_t *first,
                       const uint64_t *second, uint64_t span)
{
    switch (what) {
    case SPMD_RANDOM_BITS:
        memcpy(into, first, (size_t)n * sizeof *first);
        return;
    case SPMD_RANDOM_BELOW:
        for (int64_t k = 0; k < n; k++)
            ((uint64_t *)into)[k] = (uint64_t)((unsigned __int128)first[k] * span >> 64);
        return;
    case SPMD_RANDOM_UNIFORM_F32:
        FRACTIONS(float, first[k] >> 40, 0x1p-24);
        return;
    case SPMD_RANDOM_UNIFORM_F64:
        FRACTIONS(double, first[k] >> 11, 0x1p-53);
        return;
    case SPMD_RANDOM_NORMAL_F32:
        NORMALS(f32, float, 40, 0x1p-24, 6.283185307179586)
        return;
    default:
        NORMALS(f64, double, 11, 0x1p-53, 6.283185307179586)
    }
}

static const uint32_t bytes_of[] = {8, 8, 4, 8, 4, 8};

void SPMD_RANDOM_FILL(void *into, int64_t n, int what, uint64_t seed, uint64_t stream,
                      uint64_t start, uint64_t span)
{
    uint64_t first[BLOCK], second[BLOCK];

    for (int64_t at = 0; at < n; at += BLOCK) {
        int64_t some = n - at < BLOCK ? n - at : BLOCK;
        block_bits(first, second, some, start + (uint64_t)at, stream, seed);
        block_fill((char *)into + at * bytes_of[what], some, what, first, second, span);
    }
}
