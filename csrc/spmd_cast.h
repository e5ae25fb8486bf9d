/* spmd_cast_FROM_TO(x) for every pair of compute types, and TO = b for bool. Included by
 * spmd_support.h.
 *
 * A float beyond an integer's range, or NaN, gives what NumPy gives on x86-64, on every machine.
 */
#ifndef SPMD_CAST_H
#define SPMD_CAST_H

#include "spmd_support.h"

/* The conversions of the hardware: out of range and NaN give the least integer. */
#define SPMD_TRUNCATE(S, T)                                                                        \
    static inline int32_t spmd_truncate_##S##_i32(T x)                                             \
    {                                                                                              \
        int in = (x > (T)-2147483648.0 - (sizeof(T) == 8)) & (x < (T)2147483648.0);                \
        return spmd_select_i32(in, (int32_t)spmd_select_##S(in, x, 0), INT32_MIN);                 \
    }                                                                                              \
    static inline int64_t spmd_truncate_##S##_i64(T x)                                             \
    {                                                                                              \
        int in = (x >= (T)-9223372036854775808.0) & (x < (T)9223372036854775808.0);                \
        return spmd_select_i64(in, (int64_t)spmd_select_##S(in, x, 0), INT64_MIN);                 \
    }                                                                                              \
    static inline int8_t spmd_cast_##S##_i8(T x) { return (int8_t)spmd_truncate_##S##_i32(x); }    \
    static inline int16_t spmd_cast_##S##_i16(T x) { return (int16_t)spmd_truncate_##S##_i32(x); } \
    static inline int32_t spmd_cast_##S##_i32(T x) { return spmd_truncate_##S##_i32(x); }          \
    static inline int64_t spmd_cast_##S##_i64(T x) { return spmd_truncate_##S##_i64(x); }          \
    static inline uint8_t spmd_cast_##S##_u8(T x) { return (uint8_t)spmd_truncate_##S##_i32(x); }  \
    static inline uint16_t spmd_cast_##S##_u16(T x)                                                \
    {                                                                                              \
        return (uint16_t)spmd_truncate_##S##_i32(x);                                               \
    }                                                                                              \
    static inline uint32_t spmd_cast_##S##_u32(T x)                                                \
    {                                                                                              \
        int low = !(x >= (T)2147483648.0);                                                         \
        T within = spmd_select_##S(low, x, x - (T)2147483648.0);                                   \
        uint32_t cut = (uint32_t)spmd_truncate_##S##_i32(within);                                  \
        return cut ^ ((uint32_t)!low << 31);                                                       \
    }                                                                                              \
    static inline uint64_t spmd_cast_##S##_u64(T x)                                                \
    {                                                                                              \
        int low = !(x >= (T)9223372036854775808.0);                                                \
        T within = spmd_select_##S(low, x, x - (T)9223372036854775808.0);                          \
        uint64_t cut = (uint64_t)spmd_truncate_##S##_i64(within);                                  \
        return cut ^ ((uint64_t)!low << 63);                                                       \
    }

SPMD_TRUNCATE(f32, float)
SPMD_TRUNCATE(f64, double)

/* To a float; a double is rounded, whatever follows: see spmd_round_f32. */
#define SPMD_NARROW(x) _Generic((x), double: spmd_round_f32((double)(x)), default: (float)(x))
#define SPMD_CAST(FROM, F, TO, T)                                                                  \
    static inline T spmd_cast_##FROM##_##TO(F x) { return (T)x; }
#define SPMD_CAST_TO_PARTS(FROM, F)                                                                \
    static inline uint8_t spmd_cast_##FROM##_b(F x) { return x != 0; }                             \
    static inline float spmd_cast_##FROM##_f32(F x) { return SPMD_NARROW(x); }                     \
    static inline float _Complex spmd_cast_##FROM##_c64(F x) { return CMPLXF(SPMD_NARROW(x), 0); } \
    SPMD_CAST(FROM, F, f64, double)                                                                \
    SPMD_CAST(FROM, F, c128, double _Complex)
#define SPMD_CAST_INTEGER(FROM, F, U)                                                              \
    SPMD_CAST_TO_PARTS(FROM, F)                                                                    \
    SPMD_CAST(FROM, F, i8, int8_t)                                                                 \
    SPMD_CAST(FROM, F, i16, int16_t)                                                               \
    SPMD_CAST(FROM, F, i32, int32_t)                                                               \
    SPMD_CAST(FROM, F, i64, int64_t)                                                               \
    SPMD_CAST(FROM, F, u8, uint8_t)                                                                \
    SPMD_CAST(FROM, F, u16, uint16_t)                                                              \
    SPMD_CAST(FROM, F, u32, uint32_t)                                                              \
    SPMD_CAST(FROM, F, u64, uint64_t)

SPMD_SIGNED(SPMD_CAST_INTEGER)
SPMD_UNSIGNED(SPMD_CAST_INTEGER)
SPMD_CAST_TO_PARTS(f32, float)
SPMD_CAST_TO_PARTS(f64, double)

/* From complex: the imaginary part is dropped, except that bool asks about both. */
#define SPMD_CAST_REAL_PART(S, C, P, PT, TO, T)                                                    \
    static inline T spmd_cast_##S##_##TO(C x) { return spmd_cast_##P##_##TO(spmd_real_##S(x)); }
#define SPMD_CAST_COMPLEX(S, C, PT, M, P)                                                          \
    static inline uint8_t spmd_cast_##S##_b(C x) { return x != 0; }                                \
    SPMD_CAST_REAL_PART(S, C, P, PT, i8, int8_t)                                                   \
    SPMD_CAST_REAL_PART(S, C, P, PT, i16, int16_t)                                                 \
    SPMD_CAST_REAL_PART(S, C, P, PT, i32, int32_t)                                                 \
    SPMD_CAST_REAL_PART(S, C, P, PT, i64, int64_t)                                                 \
    SPMD_CAST_REAL_PART(S, C, P, PT, u8, uint8_t)                                                  \
    SPMD_CAST_REAL_PART(S, C, P, PT, u16, uint16_t)                                                \
    SPMD_CAST_REAL_PART(S, C, P, PT, u32, uint32_t)                                                \
    SPMD_CAST_REAL_PART(S, C, P, PT, u64, uint64_t)                                                \
    SPMD_CAST_REAL_PART(S, C, P, PT, f32, float)                                                   \
    SPMD_CAST_REAL_PART(S, C, P, PT, f64, double)                                                  \
    static inline float _Complex spmd_cast_##S##_c64(C x)                                          \
    {                                                                                              \
        return CMPLXF(SPMD_NARROW(spmd_real_##S(x)), SPMD_NARROW(spmd_imag_##S(x)));               \
    }                                                                                              \
    SPMD_CAST(S, C, c128, double _Complex)

SPMD_COMPLEXES(SPMD_CAST_COMPLEX)

#endif
