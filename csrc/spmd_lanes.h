/* What elementary functions are made of: of one number, and of a vector of 64 bytes with AVX-512.
 *
 * A function is one text with the type as a parameter: f32, f64 or e32, e64. Compilers vectorise
 * loops over the first. SPMD_LANES_1(exp, f64), in an image that uses it, makes spmd_exp_f64: with
 * AVX-512 the symbols that loops call for vectors (vector ABI of x86-64), and a number alone is a
 * vector of which one is wanted; else a function of numbers. Instructions differ, results never.
 */
#ifndef SPMD_LANES_H
#define SPMD_LANES_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "spmd_select.h"

/* a + b x + c x^2 + d x^3: neighbours first, then pairs, so that few wait for another (Estrin) */
#define SPMD_FOUR(x, square, a, b, c, d) (((a) + (x) * (b)) + (square) * ((c) + (x) * (d)))

/* what gcc calls the instructions, and moves elements by, from gcc 12 on */
#if defined(__AVX512F__) && defined(__AVX512DQ__) && !defined(__clang__) && defined(__has_builtin)
#if __has_builtin(__builtin_ia32_scalefpd512_mask) && __has_builtin(__builtin_shufflevector)
#define SPMD_HAS_LANES 1
#endif
#endif
#ifndef SPMD_HAS_LANES
#define SPMD_HAS_LANES 0
#endif

/* Of a type: numbers; their bits; what a comparison gives; an element; the bits of the mantissa;
 * what is added to exponents. */
#define SPMD_OF_f32(X, ...) X(f32, float, uint32_t, uint32_t, float, 23, 127, __VA_ARGS__)
#define SPMD_OF_f64(X, ...) X(f64, double, uint64_t, uint64_t, double, 52, 1023, __VA_ARGS__)

/* F: libm's ending; FAR: how far right of the sign the bit of a factor is by which small powers are
 * scaled; ROUNDS: 1.5 * 2^MANTISSA, which rounds what it is added to */
#define SPMD_ONE_LANE(S, T, U, H, E, MANTISSA, BIAS, F, FAR, ROUNDS)                               \
    static inline T spmd_all_##S(T x) { return x; }                                                \
    static inline T spmd_size_##S(T x) { return fabs##F(x); }                                      \
    static inline T spmd_signed_##S(T x, T sign) { return copysign##F(x, sign); }                  \
    static inline T spmd_root_##S(T x) { return sqrt##F(x); }                                      \
    static inline H spmd_less_##S(T a, T b) { return a < b; }                                      \
    static inline H spmd_same_##S(T a, T b) { return a == b; }                                     \
    /* NaN stays */                                                                                \
    static inline T spmd_at_least_##S(T x, T end) { return spmd_select_##S(x < end, end, x); }     \
    static inline T spmd_at_most_##S(T x, T end) { return spmd_select_##S(x > end, end, x); }      \
    /* p * 2^(sum - ROUNDS) by two powers, as one may be out of range; p is near 1. A result below \
     * the normal ones is rounded once. */                                                         \
    static inline T spmd_scaled_##S(T p, T sum)                                                    \
    {                                                                                              \
        U k = spmd_bits_##S(sum) - spmd_bits_##S(ROUNDS);                                          \
        U below = (k & (U)1 << (8 * sizeof(U) - 1)) >> FAR;                                        \
        T first = spmd_from_bits_##S(((k + BIAS - 1) << MANTISSA) + below);                        \
        return p * first * spmd_from_bits_##S(((U)(BIAS + 1) << MANTISSA) - below);                \
    }
SPMD_OF_f32(SPMD_ONE_LANE, f, 3, 0x1.8p23f)
SPMD_OF_f64(SPMD_ONE_LANE, , 5, 0x1.8p52)

/* a * b - near, exactly: what the product lost */
static inline double spmd_lost_f64(double a, double b, double near)
{
#if defined(__FMA__) || defined(__ARM_FEATURE_FMA)
    return fma(a, b, -near);
#else
    double c = a * 0x1.0000002p27, d = b * 0x1.0000002p27;
    double ah = c - (c - a), al = a - ah, bh = d - (d - b), bl = b - bh;
    return ((ah * bh - near) + ah * bl + al * bh) + al * bl;
#endif
}

/* The element of a table of 16 that the last 4 bits say; tables begin lines of the cache. */
#define SPMD_TABLE(NAME) static const double NAME[16] __attribute__((aligned(64), unused))
static inline double spmd_looked_up_f64(const double *table, uint64_t k) { return table[k & 15]; }

#if !SPMD_HAS_LANES

#define SPMD_LANES_F32(X, ...) SPMD_OF_f32(X, __VA_ARGS__)
#define SPMD_LANES_F64(X, ...) SPMD_OF_f64(X, __VA_ARGS__)
#define SPMD_TYPE_f32 float
#define SPMD_TYPE_f64 double
#define SPMD_LANES_1(NAME, S)                                                                      \
    static inline SPMD_TYPE_##S spmd_##NAME##_##S(SPMD_TYPE_##S a)                                 \
    {                                                                                              \
        return spmd_##NAME##_of_##S(a);                                                            \
    }
#define SPMD_LANES_2(NAME, S)                                                                      \
    static inline SPMD_TYPE_##S spmd_##NAME##_##S(SPMD_TYPE_##S a, SPMD_TYPE_##S b)                \
    {                                                                                              \
        return spmd_##NAME##_of_##S(a, b);                                                         \
    }

#else

typedef float spmd_e32 __attribute__((vector_size(64)));
typedef double spmd_e64 __attribute__((vector_size(64)));
typedef uint32_t spmd_ue32 __attribute__((vector_size(64)));
typedef uint64_t spmd_ue64 __attribute__((vector_size(64)));
typedef int32_t spmd_ie32 __attribute__((vector_size(64)));
typedef long long spmd_ie64 __attribute__((vector_size(64)));
#define SPMD_OF_e32(X, ...) X(e32, spmd_e32, spmd_ue32, uint16_t, float, 23, 127, __VA_ARGS__)
#define SPMD_OF_e64(X, ...) X(e64, spmd_e64, spmd_ue64, uint8_t, double, 52, 1023, __VA_ARGS__)
#define SPMD_LANES_F32(X, ...) SPMD_OF_f32(X, __VA_ARGS__) SPMD_OF_e32(X, __VA_ARGS__)
#define SPMD_LANES_F64(X, ...) SPMD_OF_f64(X, __VA_ARGS__) SPMD_OF_e64(X, __VA_ARGS__)

/* P: what builtins call the type; I: signed bits; KIND of mantissas; 4: rounding as it is */
#define SPMD_MANY_LANES(S, T, U, H, E, MANTISSA, BIAS, P, I, ROUNDS, KIND)                         \
    static inline T spmd_all_##S(E x) { return x - (T){0}; }                                       \
    static inline U spmd_bits_##S(T x) { return (U)x; }                                            \
    static inline T spmd_from_bits_##S(U bits) { return (T)bits; }                                 \
    static inline T spmd_size_##S(T x) { return (T)((U)x & ~(U)spmd_all_##S(-0.0)); }              \
    static inline T spmd_signed_##S(T x, T sign)                                                   \
    {                                                                                              \
        U minus = (U)spmd_all_##S(-0.0);                                                           \
        return (T)(((U)x & ~minus) | ((U)sign & minus));                                           \
    }                                                                                              \
    static inline T spmd_root_##S(T x)                                                             \
    {                                                                                              \
        return __builtin_ia32_sqrt##P##512_mask(x, x, (H)-1, 4);                                   \
    }                                                                                              \
    static inline T spmd_select_##S(H holds, T a, T b)                                             \
    {                                                                                              \
        return __builtin_ia32_blendm##P##_512_mask(b, a, holds);                                   \
    }                                                                                              \
    static inline H spmd_less_##S(T a, T b)                                                        \
    {                                                                                              \
        return (H)__builtin_ia32_cmp##P##512_mask(a, b, 17, (H)-1, 4);                             \
    }                                                                                              \
    static inline H spmd_same_##S(T a, T b)                                                        \
    {                                                                                              \
        return (H)__builtin_ia32_cmp##P##512_mask(a, b, 0, (H)-1, 4);                              \
    }                                                                                              \
    /* the instructions give the second operand where one is NaN */                                \
    static inline T spmd_at_least_##S(T x, E least)                                                \
    {                                                                                              \
        return __builtin_ia32_max##P##512_mask(spmd_all_##S(least), x, x, (H)-1, 4);               \
    }                                                                                              \
    static inline T spmd_at_most_##S(T x, E most)                                                  \
    {                                                                                              \
        return __builtin_ia32_min##P##512_mask(spmd_all_##S(most), x, x, (H)-1, 4);                \
    }                                                                                              \
    static inline T spmd_scaled_##S(T p, T sum)                                                    \
    {                                                                                              \
        return __builtin_ia32_scalef##P##512_mask(p, sum - ROUNDS, p, (H)-1, 4);                   \
    }                                                                                              \
    /* |x| = m 2^e, where 1 <= m < 2; of double 3/4 <= m < 3/2, and |x| = m 2^(e + (m < 1)) */     \
    static inline T spmd_split_##S(T x, T *e)                                                      \
    {                                                                                              \
        *e = __builtin_ia32_getexp##P##512_mask(x, x, (H)-1, 4);                                   \
        return __builtin_ia32_getmant##P##512_mask(x, KIND, x, (H)-1, 4);                          \
    }                                                                                              \
    /* x, or what the kind of `by` says: VFIXUPIMM of Intel's manual, a digit for each kind */     \
    static inline T spmd_fixed_##S(T x, T by, uint32_t kinds)                                      \
    {                                                                                              \
        I table = (I){0} + kinds;                                                                  \
        return __builtin_ia32_fixupimm##P##512_mask(x, by, table, 0, (H)-1, 4);                    \
    }
SPMD_OF_e32(SPMD_MANY_LANES, ps, spmd_ie32, 0x1.8p23f, 8)
SPMD_OF_e64(SPMD_MANY_LANES, pd, spmd_ie64, 0x1.8p52, 11)

/* a * b - near, exactly: what the product lost */
static inline spmd_e64 spmd_lost_e64(spmd_e64 a, spmd_e64 b, spmd_e64 near)
{
    return __builtin_ia32_vfmaddpd512_mask(a, b, -near, (uint8_t)-1, 4);
}

static inline spmd_e64 spmd_looked_up_e64(const double *table, spmd_ue64 k)
{
    spmd_e64 low, high;
    memcpy(&low, table, sizeof low), memcpy(&high, table + 8, sizeof high);
    return __builtin_ia32_vpermt2varpd512_mask((spmd_ie64)k, low, high, (uint8_t)-1);
}

/* The symbols by which loops call NAME for vectors of 64, 32 and 16 bytes, and for one number. */
typedef float spmd_d32 __attribute__((vector_size(32)));
typedef double spmd_d64 __attribute__((vector_size(32)));
typedef float spmd_b32 __attribute__((vector_size(16)));
typedef double spmd_b64 __attribute__((vector_size(16)));
#define SPMD_AS_IS(x) (x)
#define SPMD_ALONE_32(x) ((spmd_e32){x})
#define SPMD_ALONE_64(x) ((spmd_e64){x})
#define SPMD_FIRST(x) ((x)[0])
#define SPMD_HALF_32(x) __builtin_shufflevector(x, x, 0, 1, 2, 3, 4, 5, 6, 7)
#define SPMD_HALF_64(x) __builtin_shufflevector(x, x, 0, 1, 2, 3)
#define SPMD_QUARTER_32(x) __builtin_shufflevector(x, x, 0, 1, 2, 3)
#define SPMD_QUARTER_64(x) __builtin_shufflevector(x, x, 0, 1)
#define SPMD_SYMBOL_1(CORE, SYMBOL, T, WIDE, PART)                                                 \
    static T SYMBOL##_(T) __asm__(#SYMBOL);                                                        \
    __attribute__((used, noinline)) static T SYMBOL##_(T a) { return PART(CORE(WIDE(a))); }
#define SPMD_SYMBOL_2(CORE, SYMBOL, T, WIDE, PART)                                                 \
    static T SYMBOL##_(T, T) __asm__(#SYMBOL);                                                     \
    __attribute__((used, noinline)) static T SYMBOL##_(T a, T b)                                   \
    {                                                                                              \
        return PART(CORE(WIDE(a), WIDE(b)));                                                       \
    }
#define SPMD_SYMBOLS(N, V, NAME, CORE, T, B, P, LANES16, LANES32, LANES64)                         \
    SPMD_SYMBOL_##N(CORE, _ZGVeN##LANES64##V##_##NAME, spmd_e##B, SPMD_AS_IS, SPMD_AS_IS)          \
    SPMD_SYMBOL_##N(_ZGVeN##LANES64##V##_##NAME##_, _ZGVdN##LANES32##V##_##NAME, spmd_d##B,        \
                    __builtin_ia32_##P##512_256##P, SPMD_HALF_##B)                                 \
    SPMD_SYMBOL_##N(_ZGVeN##LANES64##V##_##NAME##_, _ZGVbN##LANES16##V##_##NAME, spmd_b##B,        \
                    __builtin_ia32_##P##512_##P, SPMD_QUARTER_##B)                                 \
    SPMD_SYMBOL_##N(_ZGVeN##LANES64##V##_##NAME##_, NAME, T, SPMD_ALONE_##B, SPMD_FIRST)
#define SPMD_DECLARED __attribute__((simd("notinbranch"), const, visibility("hidden")))
#define SPMD_LANES_1(NAME, S) SPMD_LANES_1_##S(NAME)
#define SPMD_LANES_2(NAME, S) SPMD_LANES_2_##S(NAME)
#define SPMD_LANES_1_f32(NAME)                                                                     \
    SPMD_DECLARED float spmd_##NAME##_f32(float);                                                  \
    SPMD_SYMBOLS(1, v, spmd_##NAME##_f32, spmd_##NAME##_of_e32, float, 32, ps, 4, 8, 16)
#define SPMD_LANES_1_f64(NAME)                                                                     \
    SPMD_DECLARED double spmd_##NAME##_f64(double);                                                \
    SPMD_SYMBOLS(1, v, spmd_##NAME##_f64, spmd_##NAME##_of_e64, double, 64, pd, 2, 4, 8)
#define SPMD_LANES_2_f32(NAME)                                                                     \
    SPMD_DECLARED float spmd_##NAME##_f32(float, float);                                           \
    SPMD_SYMBOLS(2, vv, spmd_##NAME##_f32, spmd_##NAME##_of_e32, float, 32, ps, 4, 8, 16)
#define SPMD_LANES_2_f64(NAME)                                                                     \
    SPMD_DECLARED double spmd_##NAME##_f64(double, double);                                        \
    SPMD_SYMBOLS(2, vv, spmd_##NAME##_f64, spmd_##NAME##_of_e64, double, 64, pd, 2, 4, 8)

#endif

#endif
