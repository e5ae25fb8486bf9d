/* spmd_select_TYPE(holds, a, b): a where holds is 1, b where it is 0; both are evaluated.
 *
 * Written with masks, not `? :`: compilers turn a conditional in a loop into masked loads before
 * they vectorise it, and gcc 12 then computes wrong values (-O3 -march=x86-64-v3, inner loops that
 * are unrolled). Images are compiled without that pass; selects of masks vectorise without it.
 */
#ifndef SPMD_SELECT_H
#define SPMD_SELECT_H

#include <complex.h>
#include <stdint.h>
#include <string.h>

#define SPMD_SELECT(S, T, U)                                                                       \
    static inline T spmd_select_##S(U holds, T a, T b)                                             \
    {                                                                                              \
        U mask = (U)((U)0 - holds);                                                                \
        return (T)(((U)a & mask) | ((U)b & (U)~mask));                                             \
    }
SPMD_SELECT(i8, int8_t, uint8_t)
SPMD_SELECT(i16, int16_t, uint16_t)
SPMD_SELECT(i32, int32_t, uint32_t)
SPMD_SELECT(i64, int64_t, uint64_t)
SPMD_SELECT(u8, uint8_t, uint8_t)
SPMD_SELECT(u16, uint16_t, uint16_t)
SPMD_SELECT(u32, uint32_t, uint32_t)
SPMD_SELECT(u64, uint64_t, uint64_t)

#define SPMD_SELECT_FLOAT(S, T, U)                                                                 \
    static inline U spmd_bits_##S(T x)                                                             \
    {                                                                                              \
        U bits;                                                                                    \
        memcpy(&bits, &x, sizeof bits);                                                            \
        return bits;                                                                               \
    }                                                                                              \
    static inline T spmd_from_bits_##S(U bits)                                                     \
    {                                                                                              \
        T x;                                                                                       \
        memcpy(&x, &bits, sizeof x);                                                               \
        return x;                                                                                  \
    }                                                                                              \
    static inline T spmd_select_##S(U holds, T a, T b)                                             \
    {                                                                                              \
        U mask = (U)0 - holds;                                                                     \
        return spmd_from_bits_##S((spmd_bits_##S(a) & mask) | (spmd_bits_##S(b) & ~mask));         \
    }
SPMD_SELECT_FLOAT(f32, float, uint32_t)
SPMD_SELECT_FLOAT(f64, double, uint64_t)

/* Zero, which no compiler knows: it stands in no C. */
extern const uint32_t spmd_zero __attribute__((visibility("hidden")));
__asm__(".pushsection .rodata.spmd_zero, \"a\"\n"
        ".weak spmd_zero\n.hidden spmd_zero\n.balign 4\nspmd_zero: .long 0\n"
        ".popsection");

/* A double rounded to a float, whatever follows. gcc 12 takes a conversion of vectors to floats and
 * one back to doubles for nothing (its precision of a vector type is not that of an element), and
 * drops both; between the two stands an operation that it cannot leave out, and can vectorise. */
static inline float spmd_round_f32(double x)
{
    return spmd_from_bits_f32(spmd_bits_f32((float)x) | spmd_zero);
}

static inline float _Complex spmd_select_c64(uint32_t holds, float _Complex a, float _Complex b)
{
    return __builtin_complex(spmd_select_f32(holds, crealf(a), crealf(b)),
                             spmd_select_f32(holds, cimagf(a), cimagf(b)));
}

static inline double _Complex spmd_select_c128(uint64_t holds, double _Complex a, double _Complex b)
{
    return __builtin_complex(spmd_select_f64(holds, creal(a), creal(b)),
                             spmd_select_f64(holds, cimag(a), cimag(b)));
}

#endif
