/* What generated code calls, element by element: static inline, nothing external but libc, libm.
 *
 * A name ends in the type it computes in: i8 … i64 u8 … u64 f32 f64 c64 c128 (bool uses u8).
 * Results are NumPy's; an integer divided by zero gives 0. Loops over these functions vectorise
 * where the machine can: masks instead of branches, no tables, no errno.
 */
#ifndef SPMD_SUPPORT_H
#define SPMD_SUPPORT_H

#include <complex.h>
#include <math.h>
#include <stdint.h>
#include <string.h>

#include "spmd_philox.h"
#include "spmd_select.h"

#ifndef CMPLX /* the C library hides them from clang */
#define CMPLX(re, im) __builtin_complex((double)(re), (double)(im))
#define CMPLXF(re, im) __builtin_complex((float)(re), (float)(im))
#endif

/* X(suffix, type, unsigned type of the same width) */
#define SPMD_SIGNED(X)                                                                             \
    X(i8, int8_t, uint8_t) X(i16, int16_t, uint16_t) X(i32, int32_t, uint32_t)                     \
    X(i64, int64_t, uint64_t)
#define SPMD_UNSIGNED(X)                                                                           \
    X(u8, uint8_t, uint8_t) X(u16, uint16_t, uint16_t) X(u32, uint32_t, uint32_t)                  \
    X(u64, uint64_t, uint64_t)
/* X(suffix, type, libm's ending) */
#define SPMD_FLOATS(X) X(f32, float, f) X(f64, double, )
/* X(suffix, type, part's type, libm's ending, part's suffix) */
#define SPMD_COMPLEXES(X)                                                                          \
    X(c64, float _Complex, float, f, f32) X(c128, double _Complex, double, , f64)

/* A place in this page of room that no access near `other` is taken for: processors compare the low
 * 12 bits of addresses first, and a load waits for the stores just before it that agree in them
 * (on AMD's Zen 4 a stencil takes 1.7 times as long). So a line is always 1280 bytes away. */
static inline void *spmd_apart(void *room, const void *other)
{
    return (char *)room + ((uintptr_t)other + 1280 - (uintptr_t)room) % 4096;
}

/* ---- index arithmetic: what expressions print as ---- */

static inline int64_t spmd_floordiv(int64_t a, int64_t b)
{
    if (b == 0 || b == -1)
        return b == 0 ? 0 : (int64_t)(0 - (uint64_t)a);
    return a / b - ((a % b != 0) & ((a ^ b) < 0));
}

static inline int64_t spmd_mod(int64_t a, int64_t b)
{
    if (b == 0 || b == -1)
        return 0;
    int64_t rest = a % b;
    return rest + (((rest != 0) & ((rest ^ b) < 0)) ? b : 0);
}

/* The next value of a counter that has not reached its stop: none passes the ends of int64_t, where
 * every loop has stopped. */
static inline int64_t spmd_next(int64_t counter, int64_t step)
{
    int64_t next;
    if (!__builtin_add_overflow(counter, step, &next)) return next;
    return step < 0 ? INT64_MIN : INT64_MAX;
}

static inline int64_t spmd_min(int64_t a, int64_t b) { return a < b ? a : b; }
static inline int64_t spmd_max(int64_t a, int64_t b) { return a > b ? a : b; }

/* Constant number k of those that follow; 0 beyond their ends. */
#define spmd_table(k, ...)                                                                         \
    (__extension__({                                                                               \
        static const int64_t values_[] = {__VA_ARGS__};                                            \
        int64_t k_ = (k);                                                                          \
        k_ >= 0 && k_ < (int64_t)(sizeof values_ / sizeof *values_) ? values_[k_] : 0;             \
    }))

/* Where block k begins: each block has so many elements, the first `left` blocks one more. */
static inline int64_t spmd_begins(int64_t k, int64_t each, int64_t left)
{
    return k * each + spmd_min(k, left);
}

/* Where block k of so many balanced blocks begins. */
static inline int64_t spmd_begin(int64_t k, int64_t extent, int64_t blocks)
{
    return spmd_begins(k, spmd_floordiv(extent, blocks), spmd_mod(extent, blocks));
}

/* ---- integers ---- */

#define SPMD_INTEGER(S, T, U)                                                                      \
    static inline T spmd_maximum_##S(T a, T b) { return a > b ? a : b; }                           \
    static inline T spmd_minimum_##S(T a, T b) { return a < b ? a : b; }                           \
    static inline T spmd_shl_##S(T a, T b)                                                         \
    {                                                                                              \
        T shifted = (T)((U)a << ((U)b & (8 * sizeof(T) - 1)));                                     \
        return spmd_select_##S((uint64_t)b < 8 * sizeof(T), shifted, 0);                           \
    }                                                                                              \
    static inline T spmd_shr_##S(T a, T b)                                                         \
    {                                                                                              \
        T last = (T)(a >> (8 * sizeof(T) - 1));                                                    \
        T rest = (T)(sizeof(T) > 0 && (T)-1 > 0 ? 0 : last); /* the sign, for signed types */      \
        T shifted = (T)(a >> ((U)b & (8 * sizeof(T) - 1)));                                        \
        return spmd_select_##S((uint64_t)b < 8 * sizeof(T), shifted, rest);                        \
    }                                                                                              \
    static inline T spmd_power_loop_##S(T a, T b)                                                  \
    {                                                                                              \
        uint64_t result = 1, base = (uint64_t)a;                                                   \
        for (U left = (U)b; left; left = (U)(left >> 1), base *= base)                             \
            result *= left & 1 ? base : 1;                                                         \
        return (T)result;                                                                          \
    }

SPMD_SIGNED(SPMD_INTEGER)
SPMD_UNSIGNED(SPMD_INTEGER)

/* By a positive constant: its inverse is multiplied by. Of what is below 0, the complement. */
#define SPMD_IS_POSITIVE(b) (__builtin_constant_p(b) && (b) > 0)

/* n / d, where 0 <= n and 1 < d are below 2^63: n times 2^(63 + bits) / d, rounded up, of which the
 * upper bits are the quotient (Granlund and Montgomery, 1994). In halves: loops vectorise. */
#ifdef __AVX2__
#define SPMD_DIVIDES_HALVES 1
#else /* a multiplication of whole numbers is faster than a vector of two */
#define SPMD_DIVIDES_HALVES 0
#endif
static inline uint64_t spmd_divided(uint64_t n, int64_t d)
{
    const int bits = 64 - __builtin_clzll((unsigned long long)d - 1); /* d <= 2^bits */
    const uint64_t by = (uint64_t)((((unsigned __int128)1 << (63 + bits)) - 1) / (uint64_t)d + 1);
    const uint64_t low = (uint32_t)by, high = by >> 32, n0 = (uint32_t)n, n1 = n >> 32;
    const uint64_t mid = n1 * low + (n0 * low >> 32), rest = n0 * high + (uint32_t)mid;
    return (n1 * high + (mid >> 32) + (rest >> 32)) >> (bits - 1);
}

#define SPMD_SIGNED_ONLY(S, T, U)                                                                  \
    static inline T spmd_floordiv_##S(T a, T b)                                                    \
    {                                                                                              \
        T below = (T)(a >> (8 * sizeof a - 1));                                                    \
        if (SPMD_IS_POSITIVE(b) && SPMD_DIVIDES_HALVES && sizeof(T) == 8 && b > 1)                 \
            return (T)((T)spmd_divided((uint64_t)(a ^ below), b) ^ below);                         \
        if (SPMD_IS_POSITIVE(b)) return (T)((T)(a ^ below) / b ^ below);                           \
        T d = (b == 0 || b == -1) ? 1 : b; /* neither traps below */                               \
        T quotient = (T)(a / d - ((a % d != 0) & ((a ^ d) < 0)));                                  \
        return b == 0 ? 0 : b == -1 ? (T)((U)0 - (U)a) : quotient;                                 \
    }                                                                                              \
    static inline T spmd_mod_##S(T a, T b)                                                         \
    {                                                                                              \
        if (SPMD_IS_POSITIVE(b)) return (T)((U)a - (U)spmd_floordiv_##S(a, b) * (U)b);             \
        T d = (b == 0 || b == -1) ? 1 : b;                                                         \
        T rest = (T)(a % d);                                                                       \
        return (T)(rest + (((rest != 0) & ((rest ^ d) < 0)) ? d : 0));                             \
    }                                                                                              \
    static inline T spmd_fmod_##S(T a, T b)                                                        \
    {                                                                                              \
        return (T)(a % ((b == 0 || b == -1) ? 1 : b));                                             \
    }                                                                                              \
    static inline T spmd_abs_##S(T a) /* no conditional: loops vectorise */                        \
    {                                                                                              \
        U sign = (U)(a >> (8 * sizeof a - 1));                                                     \
        return (T)(((U)a ^ sign) - sign);                                                          \
    }                                                                                              \
    static inline T spmd_sign_##S(T a) { return (T)((a > 0) - (a < 0)); }                          \
    static inline T spmd_reciprocal_##S(T a) { return (T)(a == 1 || a == -1 ? a : 0); }            \
    static inline T spmd_pow_##S(T a, T b) /* a negative power is 1 / a^-b, cut off */             \
    {                                                                                              \
        if (b < 0)                                                                                 \
            return (T)(a == 1 ? 1 : a == -1 ? (b & 1 ? -1 : 1) : 0);                               \
        return spmd_power_loop_##S(a, b);                                                          \
    }

SPMD_SIGNED(SPMD_SIGNED_ONLY)

#define SPMD_UNSIGNED_ONLY(S, T, U)                                                                \
    static inline T spmd_floordiv_##S(T a, T b) { return (T)(b == 0 ? 0 : a / (b == 0 ? 1 : b)); } \
    static inline T spmd_mod_##S(T a, T b) { return (T)(b == 0 ? 0 : a % (b == 0 ? 1 : b)); }      \
    static inline T spmd_fmod_##S(T a, T b) { return spmd_mod_##S(a, b); }                         \
    static inline T spmd_abs_##S(T a) { return a; }                                                \
    static inline T spmd_sign_##S(T a) { return a > 0; }                                           \
    static inline T spmd_reciprocal_##S(T a) { return a == 1; }                                    \
    static inline T spmd_pow_##S(T a, T b) { return spmd_power_loop_##S(a, b); }

SPMD_UNSIGNED(SPMD_UNSIGNED_ONLY)

/* ---- floating point ---- */

/* With equal operands maximum and minimum give the second one, as the vector instruction does. */
#define SPMD_FLOAT(S, T, F)                                                                        \
    static inline T spmd_maximum_##S(T a, T b)                                                     \
    {                                                                                              \
        return spmd_select_##S((a > b) | (a != a), a, b);                                          \
    }                                                                                              \
    static inline T spmd_minimum_##S(T a, T b)                                                     \
    {                                                                                              \
        return spmd_select_##S((a < b) | (a != a), a, b);                                          \
    }                                                                                              \
    static inline T spmd_fmax_##S(T a, T b)                                                        \
    {                                                                                              \
        return spmd_select_##S((a >= b) | (b != b), a, b);                                         \
    }                                                                                              \
    static inline T spmd_fmin_##S(T a, T b)                                                        \
    {                                                                                              \
        return spmd_select_##S((a <= b) | (b != b), a, b);                                         \
    }                                                                                              \
    static inline T spmd_abs_##S(T a) { return fabs##F(a); }                                       \
    static inline T spmd_sign_##S(T a)                                                             \
    {                                                                                              \
        T sign = (T)((a > 0) - (a < 0));                                                           \
        return spmd_select_##S(a != a, a, sign);                                                   \
    }                                                                                              \
    static inline T spmd_reciprocal_##S(T a) { return 1 / a; }                                     \
    static inline int spmd_isnan_##S(T a) { return a != a; }                                       \
    static inline int spmd_isinf_##S(T a) { return fabs##F(a) == (T)INFINITY; }                    \
    static inline int spmd_isfinite_##S(T a) { return fabs##F(a) < (T)INFINITY; }                  \
    /* not signbit: gcc 12 fails on it in loops over halves */                                     \
    static inline int spmd_signbit_##S(T a) { return copysign##F(1, a) < 0; }                      \
    static inline T spmd_copysign_##S(T a, T b) { return copysign##F(a, b); }                      \
    static inline T spmd_fmod_##S(T a, T b) { return fmod##F(a, b); }                              \
    static inline T spmd_mod_##S(T a, T b)                                                         \
    {                                                                                              \
        T rest = fmod##F(a, b);                                                                    \
        if (b == 0 || rest != rest)                                                                \
            return rest;                                                                           \
        if (rest == 0)                                                                             \
            return copysign##F(0, b);                                                              \
        return (b < 0) != (rest < 0) ? rest + b : rest;                                            \
    }                                                                                              \
    static inline T spmd_floordiv_##S(T a, T b)                                                    \
    {                                                                                              \
        if (b == 0)                                                                                \
            return a / b;                                                                          \
        T rest = fmod##F(a, b), quotient = (a - rest) / b;                                         \
        if (rest != 0 && (b < 0) != (rest < 0))                                                    \
            quotient -= 1;                                                                         \
        if (quotient == 0)                                                                         \
            return copysign##F(0, a / b);                                                          \
        T down = floor##F(quotient);                                                               \
        return quotient - down > (T)0.5 ? down + 1 : down;                                         \
    }                                                                                              \
    static inline T spmd_logaddexp_##S(T a, T b)                                                   \
    {                                                                                              \
        if (a == b) /* also infinities of one sign */                                              \
            return a + (T)0.693147180559945309417232121458176568;                                  \
        T gap = a - b;                                                                             \
        if (gap != gap)                                                                            \
            return gap;                                                                            \
        return gap > 0 ? a + log1p##F(exp##F(-gap)) : b + log1p##F(exp##F(gap));                   \
    }                                                                                              \
    static inline T spmd_conj_##S(T a) { return a; }                                               \
    static inline T spmd_real_##S(T a) { return a; }                                               \
    static inline T spmd_imag_##S(T a) { return a * 0; }

SPMD_FLOATS(SPMD_FLOAT)

/* hypot, also of what has squares out of range: floats in double, doubles scaled by a power of 2.
 * Within 0.51 and 1.25 units of the last place. Infinite if one is, whatever the other. */
static inline float spmd_hypot_f32(float a, float b)
{
    double x = a, y = b;
    uint32_t infinite = (fabsf(a) == INFINITY) | (fabsf(b) == INFINITY);
    return spmd_select_f32(infinite, INFINITY, spmd_round_f32(sqrt(x * x + y * y)));
}

static inline double spmd_hypot_f64(double a, double b)
{
    double x = fabs(a), y = fabs(b), more = spmd_select_f64(x > y, x, y);
    double scale = spmd_select_f64(more < 0x1p-500, 0x1p600, 1);
    scale = spmd_select_f64(more > 0x1p500, 0x1p-600, scale);
    double back = spmd_from_bits_f64(0x7fe0000000000000 - spmd_bits_f64(scale)); /* 1 / scale */
    double u = x * scale, v = y * scale, size = sqrt(u * u + v * v) * back;
    return spmd_select_f64((x == INFINITY) | (y == INFINITY), INFINITY, size);
}

/* Floats as integers in the order of sorting: -0.0 before 0.0, and one NaN behind all numbers. */
#define SPMD_ORDER_KEY(S, T, K, I, U, INFINITE, NOT_A_NUMBER)                                      \
    static inline I spmd_order_key_##S(T a)                                                        \
    {                                                                                              \
        I bits;                                                                                    \
        memcpy(&bits, &a, sizeof bits);                                                            \
        U size = (U)bits & ((U)-1 >> 1), sign = (U)(bits >> (8 * sizeof bits - 1));                \
        return spmd_select_##K(size > INFINITE, NOT_A_NUMBER, bits ^ (I)(sign >> 1));              \
    }                                                                                              \
    static inline T spmd_of_order_key_##K(I key)                                                   \
    {                                                                                              \
        T a;                                                                                       \
        key ^= (I)((U)(key >> (8 * sizeof key - 1)) >> 1);                                         \
        memcpy(&a, &key, sizeof a);                                                                \
        return a;                                                                                  \
    }

SPMD_ORDER_KEY(f32, float, i32, int32_t, uint32_t, 0x7f800000, 0x7fc00000)
SPMD_ORDER_KEY(f64, double, i64, int64_t, uint64_t, 0x7ff0000000000000, 0x7ff8000000000000)

/* What libm has and loops vectorise; elementary functions of floats have headers of their own. */
#define SPMD_LIBM(X) X(floor) X(ceil) X(trunc) X(rint) X(sqrt)
#define SPMD_UNARY(name)                                                                           \
    static inline float spmd_##name##_f32(float a) { return name##f(a); }                          \
    static inline double spmd_##name##_f64(double a) { return name(a); }

SPMD_LIBM(SPMD_UNARY)

/* ---- complex ---- */

static inline float _Complex spmd_make_c64(float re, float im) { return CMPLXF(re, im); }
static inline double _Complex spmd_make_c128(double re, double im) { return CMPLX(re, im); }

/* A product is rounded before it is added: gcc makes one instruction of both in vectorised loops
 * over complex numbers (vfmaddsub), whatever -ffp-contract=off says, and two in what is left. */
#if defined(__has_builtin)
#if __has_builtin(__builtin_assoc_barrier)
#define SPMD_APART(product) __builtin_assoc_barrier(product)
#endif
#endif
#ifndef SPMD_APART
#define SPMD_APART(product) (product)
#endif

/* Products and quotients are written out, because C's own would test for infinities (Annex G) and
 * round otherwise; the quotient scales by the larger part of the divisor (Smith, CACM 5:435). */
#define SPMD_COMPLEX(S, C, T, F, P)                                                                \
    static inline T spmd_real_##S(C a) { return creal##F(a); }                                     \
    static inline T spmd_imag_##S(C a) { return cimag##F(a); }                                     \
    static inline C spmd_with_real_##S(C a, C b)                                                   \
    {                                                                                              \
        return spmd_make_##S(creal##F(b), cimag##F(a));                                            \
    }                                                                                              \
    static inline C spmd_with_imag_##S(C a, C b)                                                   \
    {                                                                                              \
        return spmd_make_##S(creal##F(a), creal##F(b));                                            \
    }                                                                                              \
    static inline C spmd_conj_##S(C a) { return spmd_make_##S(creal##F(a), -cimag##F(a)); }        \
    static inline T spmd_abs_##S(C a) { return spmd_hypot_##P(creal##F(a), cimag##F(a)); }         \
    static inline C spmd_mul_##S(C a, C b)                                                         \
    {                                                                                              \
        T ar = creal##F(a), ai = cimag##F(a), br = creal##F(b), bi = cimag##F(b);                  \
        T re = SPMD_APART(ar * br) - SPMD_APART(ai * bi);                                          \
        T im = SPMD_APART(ar * bi) + SPMD_APART(ai * br);                                          \
        return spmd_make_##S(re, im);                                                              \
    }                                                                                              \
    static inline C spmd_div_##S(C a, C b)                                                         \
    {                                                                                              \
        T ar = creal##F(a), ai = cimag##F(a), br = creal##F(b), bi = cimag##F(b);                  \
        if (fabs##F(br) >= fabs##F(bi)) {                                                          \
            if (br == 0 && bi == 0)                                                                \
                return spmd_make_##S(ar / fabs##F(br), ai / fabs##F(br));                          \
            T ratio = bi / br, scale = 1 / (br + bi * ratio);                                      \
            T re = ar + SPMD_APART(ai * ratio), im = ai - SPMD_APART(ar * ratio);                  \
            return spmd_make_##S(re * scale, im * scale);                                          \
        }                                                                                          \
        T ratio = br / bi, scale = 1 / (bi + br * ratio);                                          \
        T re = SPMD_APART(ar * ratio) + ai, im = SPMD_APART(ai * ratio) - ar;                      \
        return spmd_make_##S(re * scale, im * scale);                                              \
    }                                                                                              \
    static inline C spmd_reciprocal_##S(C a)                                                       \
    {                                                                                              \
        T re = creal##F(a), im = cimag##F(a);                                                      \
        if (fabs##F(im) <= fabs##F(re)) {                                                          \
            T ratio = im / re, d = re + im * ratio;                                                \
            return spmd_make_##S(1 / d, -ratio / d);                                               \
        }                                                                                          \
        T ratio = re / im, d = re * ratio + im;                                                    \
        return spmd_make_##S(ratio / d, -1 / d);                                                   \
    }                                                                                              \
    static inline int spmd_isnan_##S(C a)                                                          \
    {                                                                                              \
        return creal##F(a) != creal##F(a) || cimag##F(a) != cimag##F(a);                           \
    }                                                                                              \
    static inline int spmd_isinf_##S(C a)                                                          \
    {                                                                                              \
        return spmd_isinf_##P(creal##F(a)) | spmd_isinf_##P(cimag##F(a));                          \
    }                                                                                              \
    static inline int spmd_isfinite_##S(C a)                                                       \
    {                                                                                              \
        return spmd_isfinite_##P(creal##F(a)) & spmd_isfinite_##P(cimag##F(a));                    \
    }                                                                                              \
    /* complex numbers are ordered by real part, then imaginary part */                            \
    static inline int spmd_ge_##S(C a, C b)                                                        \
    {                                                                                              \
        T ar = creal##F(a), ai = cimag##F(a), br = creal##F(b), bi = cimag##F(b);                  \
        return (ar > br && ai == ai && bi == bi) || (ar == br && ai >= bi);                        \
    }                                                                                              \
    static inline int spmd_gt_##S(C a, C b)                                                        \
    {                                                                                              \
        T ar = creal##F(a), ai = cimag##F(a), br = creal##F(b), bi = cimag##F(b);                  \
        return (ar > br && ai == ai && bi == bi) || (ar == br && ai > bi);                         \
    }                                                                                              \
    static inline int spmd_le_##S(C a, C b) { return spmd_ge_##S(b, a); }                          \
    static inline int spmd_lt_##S(C a, C b) { return spmd_gt_##S(b, a); }                          \
    static inline C spmd_maximum_##S(C a, C b)                                                     \
    {                                                                                              \
        return spmd_ge_##S(a, b) || spmd_isnan_##S(a) ? a : b;                                     \
    }                                                                                              \
    static inline C spmd_minimum_##S(C a, C b)                                                     \
    {                                                                                              \
        return spmd_le_##S(a, b) || spmd_isnan_##S(a) ? a : b;                                     \
    }                                                                                              \
    static inline C spmd_fmax_##S(C a, C b)                                                        \
    {                                                                                              \
        return spmd_ge_##S(a, b) || spmd_isnan_##S(b) ? a : b;                                     \
    }                                                                                              \
    static inline C spmd_fmin_##S(C a, C b)                                                        \
    {                                                                                              \
        return spmd_le_##S(a, b) || spmd_isnan_##S(b) ? a : b;                                     \
    }                                                                                              \
    static inline C spmd_sign_##S(C a)                                                             \
    {                                                                                              \
        T re = creal##F(a), im = cimag##F(a), size = spmd_hypot_##P(re, im);                       \
        if (spmd_isnan_##S(a) || (spmd_isinf_##P(re) && spmd_isinf_##P(im)))                       \
            return spmd_make_##S((T)NAN, (T)NAN);                                                  \
        if (spmd_isinf_##P(re))                                                                    \
            return spmd_make_##S(re > 0 ? 1 : -1, 0);                                              \
        if (spmd_isinf_##P(im))                                                                    \
            return spmd_make_##S(0, im > 0 ? 1 : -1);                                              \
        return size == 0 ? spmd_make_##S(0, 0) : spmd_make_##S(re / size, im / size);              \
    }                                                                                              \
    static inline C spmd_rint_##S(C a)                                                             \
    {                                                                                              \
        return spmd_make_##S(rint##F(creal##F(a)), rint##F(cimag##F(a)));                          \
    }                                                                                              \
    static inline C spmd_pow_##S(C a, C b)                                                         \
    {                                                                                              \
        T br = creal##F(b), bi = cimag##F(b);                                                      \
        if (br == 0 && bi == 0)                                                                    \
            return spmd_make_##S(1, 0);                                                            \
        if (creal##F(a) == 0 && cimag##F(a) == 0)                                                  \
            return br > 0 ? spmd_make_##S(0, 0) : spmd_make_##S((T)NAN, (T)NAN);                   \
        if (bi != 0 || br != rint##F(br) || fabs##F(br) >= 100)                                    \
            return cpow##F(a, b);                                                                  \
        if (br == 1)                                                                               \
            return a;                                                                              \
        C base = spmd_mul_##S(a, a);                                                               \
        if (br == 2 || br == 3) /* not times 1, which makes NaN of infinities */                   \
            return br == 2 ? base : spmd_mul_##S(a, base);                                         \
        C result = spmd_make_##S(1, 0); /* a small whole power: by squaring */                     \
        base = a;                                                                                  \
        for (int left = (int)fabs##F(br);;) {                                                      \
            if (left & 1)                                                                          \
                result = spmd_mul_##S(result, base);                                               \
            if (!(left >>= 1))                                                                     \
                break;                                                                             \
            base = spmd_mul_##S(base, base);                                                       \
        }                                                                                          \
        return br < 0 ? spmd_div_##S(spmd_make_##S(1, 0), result) : result;                        \
    }                                                                                              \
    static inline C spmd_log_scaled_##S(C a, T scale)                                              \
    {                                                                                              \
        C log = clog##F(a);                                                                        \
        return spmd_make_##S(creal##F(log) * scale, cimag##F(log) * scale);                        \
    }                                                                                              \
    static inline C spmd_log2_##S(C a)                                                             \
    {                                                                                              \
        return spmd_log_scaled_##S(a, (T)1.442695040888963407359924681);                           \
    }                                                                                              \
    static inline C spmd_log10_##S(C a)                                                            \
    {                                                                                              \
        return spmd_log_scaled_##S(a, (T)0.434294481903251827651128918);                           \
    }                                                                                              \
    static inline C spmd_exp2_##S(C a)                                                             \
    {                                                                                              \
        const T ln2 = (T)0.693147180559945309417232121458176568;                                   \
        return cexp##F(spmd_make_##S(creal##F(a) * ln2, cimag##F(a) * ln2));                       \
    }                                                                                              \
    static inline C spmd_expm1_##S(C a)                                                            \
    {                                                                                              \
        T re, im = cimag##F(a), half = sin##F(im / 2);                                             \
        re = expm1##F(creal##F(a)) * cos##F(im) - 2 * half * half;                                 \
        return spmd_make_##S(re, exp##F(creal##F(a)) * sin##F(im));                                \
    }                                                                                              \
    static inline C spmd_log1p_##S(C a)                                                            \
    {                                                                                              \
        T re = creal##F(a) + 1, im = cimag##F(a);                                                  \
        return spmd_make_##S(log##F(spmd_hypot_##P(re, im)), atan2##F(im, re));                    \
    }

SPMD_COMPLEXES(SPMD_COMPLEX)

#define SPMD_COMPLEX_LIBM(X)                                                                       \
    X(sqrt) X(exp) X(log) X(sin) X(cos) X(tan) X(asin) X(acos) X(atan) X(sinh) X(cosh) X(tanh)     \
    X(asinh) X(acosh) X(atanh)
#define SPMD_COMPLEX_UNARY(name)                                                                   \
    static inline float _Complex spmd_##name##_c64(float _Complex a) { return c##name##f(a); }     \
    static inline double _Complex spmd_##name##_c128(double _Complex a) { return c##name(a); }

SPMD_COMPLEX_LIBM(SPMD_COMPLEX_UNARY)

#include "spmd_cast.h"
#include "spmd_half.h"

#endif
