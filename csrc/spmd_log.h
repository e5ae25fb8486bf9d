/* log, log2, log10, log1p, asinh, acosh and atanh of floats as plain arithmetic.
 *
 * Reduction: x = 2^k (1 + f), where 1 + f lies between the roots of 1/2 and 2. With
 * s = f / (2 + f), log(1 + f) = 2 s + s R(s^2) = f - (f^2 / 2 - s (f^2 / 2 + R)), as in Sun's
 * fdlibm; R is a polynomial of least relative error (Remez), 2^-29 and 2^-58.5.
 * Within 1 unit of the last place, log1p 1.5, asinh 2, acosh and atanh 2.25.
 */
#ifndef SPMD_LOG_H
#define SPMD_LOG_H

#include "spmd_lanes.h"

/* R / z, where z = s^2 */
#define SPMD_LOG_SERIES_F32(S, T, ...)                                                             \
    static inline T spmd_log_series_##S(T z)                                                       \
    {                                                                                              \
        return 0x1.55557ap-1f + z * (0x1.995eb4p-2f + z * 0x1.31e3a6p-2f);                         \
    }
#define SPMD_LOG_SERIES_F64(S, T, ...)                                                             \
    static inline T spmd_log_series_##S(T z)                                                       \
    {                                                                                              \
        T square = z * z;                                                                          \
        return SPMD_FOUR(z, square, 0x1.5555555555592p-1, 0x1.999999997fd34p-2,                    \
                         0x1.24924941f8f74p-2, 0x1.c71c520298434p-3)                               \
             + square * square                                                                     \
                   * (0x1.7466406085c35p-3 + z * 0x1.39a192d1d58dbp-3                              \
                      + square * 0x1.2f0708dc82834p-3);                                            \
    }
SPMD_LANES_F32(SPMD_LOG_SERIES_F32, )
SPMD_LANES_F64(SPMD_LOG_SERIES_F64, )

/* Of a type: the bits of 1, of sign and exponent, of the root of 1/2; 2^MANTISSA. */
#define SPMD_LOG_REDUCED(S, T, U, H, E, MANTISSA, BIAS, ONE, ENDS, ROOT, WHOLE)                    \
    /* f of a normal number; *e is k + BIAS */                                                     \
    static inline T spmd_log_reduced_##S(T x, U *e)                                                \
    {                                                                                              \
        U bits = spmd_bits_##S(x) + (ONE - ROOT);                                                  \
        *e = bits >> MANTISSA;                                                                     \
        return spmd_from_bits_##S((bits & ~ENDS) + ROOT) - 1;                                      \
    }                                                                                              \
    static inline T spmd_log_whole_##S(U e) /* e as a number, by its bits */                       \
    {                                                                                              \
        return spmd_from_bits_##S(spmd_bits_##S(spmd_all_##S(WHOLE)) | e) - WHOLE;                 \
    }
SPMD_LANES_F32(SPMD_LOG_REDUCED, 0x3f800000u, 0xff800000u, 0x3f3504f3u, 0x1p23f)
SPMD_LANES_F64(SPMD_LOG_REDUCED, 0x3ff0000000000000ull, 0xfff0000000000000ull,
               0x3fe6a09e667f3bcdull, 0x1p52)

/* f and k of any positive number, and of a normal one; what logarithms are at 0, below it, at
 * infinity, and of NaN. */
#define SPMD_LOG_ENDS(S, T, U, H, E, MANTISSA, BIAS, NORMAL, WHOLE)                                \
    static inline T spmd_log_parts_##S(T a, T *k)                                                  \
    {                                                                                              \
        U e, small = a < NORMAL; /* what is subnormal is scaled */                                 \
        T f = spmd_log_reduced_##S(spmd_select_##S(small, a * (4 * WHOLE), a), &e);                \
        *k = spmd_log_whole_##S(e) - spmd_select_##S(small, BIAS + 2 + MANTISSA, BIAS);            \
        return f;                                                                                  \
    }                                                                                              \
    static inline T spmd_log_normal_##S(T a, T *k)                                                 \
    {                                                                                              \
        U e;                                                                                       \
        T f = spmd_log_reduced_##S(a, &e);                                                         \
        *k = spmd_log_whole_##S(e) - BIAS;                                                         \
        return f;                                                                                  \
    }                                                                                              \
    static inline T spmd_log_ends_##S(T a, T result)                                               \
    {                                                                                              \
        T below = spmd_select_##S(a == 0, -(T)INFINITY, (T)NAN);                                   \
        return spmd_select_##S(a > 0, spmd_select_##S(a < (T)INFINITY, result, a), below);         \
    }
SPMD_OF_f32(SPMD_LOG_ENDS, 0x1p-126f, 0x1p23f)
SPMD_OF_f64(SPMD_LOG_ENDS, 0x1p-1022, 0x1p52)

#if SPMD_HAS_LANES
#define SPMD_LOG_ENDS_LANES(S, T, U, H, E, MANTISSA, BIAS, ROOT_OF_2)                              \
    static inline T spmd_log_parts_##S(T a, T *k)                                                  \
    {                                                                                              \
        T e, m = spmd_split_##S(a, &e);                                                            \
        H low = spmd_less_##S(m, spmd_all_##S(ROOT_OF_2));                                         \
        *k = spmd_select_##S(low, e, e + 1);                                                       \
        return spmd_select_##S(low, m, m * (E)0.5) - 1;                                            \
    }                                                                                              \
    static inline T spmd_log_normal_##S(T a, T *k) { return spmd_log_parts_##S(a, k); }            \
    static inline T spmd_log_ends_##S(T a, T result)                                               \
    {                                                                                              \
        return spmd_fixed_##S(result, a, 0x03530411);                                              \
    }
SPMD_OF_e32(SPMD_LOG_ENDS_LANES, 0x1.6a09e6p0f)
SPMD_OF_e64(SPMD_LOG_ENDS_LANES, 0x1.6a09e667f3bcdp0)
#endif

/* Of a type: which bits half a number has; 2^MANTISSA; ln 2, 1 / ln 2, log10(2) and 1 / ln 10, each
 * in two parts. */
#define SPMD_LOG(S, T, U, H, E, MANTISSA, BIAS, HALF, WHOLE, LN2, REST, PER_LN2, PER_LN2_REST,     \
                 LOG2, LOG2_REST, PER_LN10, PER_LN10_REST)                                         \
    static inline T spmd_log_sum_##S(T f, T k)                                                     \
    {                                                                                              \
        T s = f / (2 + f), z = s * s, half = (E)0.5 * f * f;                                       \
        T small = half - (s * (half + z * spmd_log_series_##S(z)) + k * REST);                     \
        return k * LN2 - (small - f);                                                              \
    }                                                                                              \
    static inline T spmd_log_of_##S(T a)                                                           \
    {                                                                                              \
        T k, f = spmd_log_parts_##S(a, &k);                                                        \
        return spmd_log_ends_##S(a, spmd_log_sum_##S(f, k));                                       \
    }                                                                                              \
    /* k * unit + log(1 + f) * scale, each of these numbers in two parts */                        \
    static inline T spmd_log_scaled_##S(T a, E unit, E unit_rest, E scale, E scale_rest)           \
    {                                                                                              \
        T k, f = spmd_log_parts_##S(a, &k);                                                        \
        T s = f / (2 + f), z = s * s, half = (E)0.5 * f * f;                                       \
        T high = spmd_from_bits_##S(spmd_bits_##S(f - half) & HALF);                               \
        T low = ((f - high) - half) + s * (half + z * spmd_log_series_##S(z));                     \
        T most = k * unit, part = high * scale, sum = most + part;                                 \
        T rest = ((low + high) * scale_rest + low * scale) + k * unit_rest;                        \
        return spmd_log_ends_##S(a, sum + (rest + ((most - sum) + part)));                         \
    }                                                                                              \
    static inline T spmd_log2_of_##S(T a)                                                          \
    {                                                                                              \
        return spmd_log_scaled_##S(a, 1, 0, PER_LN2, PER_LN2_REST);                                \
    }                                                                                              \
    static inline T spmd_log10_of_##S(T a)                                                         \
    {                                                                                              \
        return spmd_log_scaled_##S(a, LOG2, LOG2_REST, PER_LN10, PER_LN10_REST);                   \
    }                                                                                              \
    /* What 1 + a loses is added to f (Knuth's sum of two numbers); the sign is that of a. */      \
    static inline T spmd_log1p_##S(T a)                                                            \
    {                                                                                              \
        U e;                                                                                       \
        T u = 1 + a, back = u - 1, lost = (1 - (u - back)) + (a - back);                           \
        T f = spmd_log_reduced_##S(u, &e);                                                         \
        f += lost * spmd_from_bits_##S((2 * BIAS + 1 - e) << MANTISSA) * (E)0.5;                   \
        T result = spmd_log_sum_##S(f, spmd_log_whole_##S(e) - BIAS);                              \
        return spmd_signed_##S(spmd_log_ends_##S(u, result), a);                                   \
    }                                                                                              \
    /* log1p(x + x^2 / (1 + sqrt(1 + x^2))); log(2 x) of what has squares out of range */          \
    static inline T spmd_asinh_##S(T a)                                                            \
    {                                                                                              \
        T size = spmd_size_##S(a), none = spmd_all_##S(0);                                         \
        H far = spmd_less_##S(spmd_all_##S(2 * WHOLE), size);                                      \
        T x = spmd_select_##S(far, spmd_all_##S(1), size), square = x * x;                         \
        T sum = x + square / (1 + spmd_root_##S(1 + square));                                      \
        T result = spmd_log1p_##S(spmd_select_##S(far, size, sum));                                \
        return spmd_signed_##S(result + spmd_select_##S(far, spmd_all_##S(LN2 + REST), none), a);  \
    }                                                                                              \
    static inline T spmd_acosh_##S(T a)                                                            \
    {                                                                                              \
        T x = a - 1, one = spmd_all_##S(1);                                                        \
        H far = spmd_less_##S(spmd_all_##S(2 * WHOLE), a);                                         \
        T y = spmd_select_##S(far, one, x), sum = y + spmd_root_##S(2 * y + y * y);                \
        T result = spmd_log1p_##S(spmd_select_##S(far, a, sum));                                   \
        result += spmd_select_##S(far, spmd_all_##S(LN2 + REST), spmd_all_##S(0));                 \
        return spmd_select_##S(spmd_less_##S(a, one), spmd_all_##S((E)NAN), result);               \
    }                                                                                              \
    static inline T spmd_atanh_##S(T a)                                                            \
    {                                                                                              \
        T size = spmd_size_##S(a);                                                                 \
        return spmd_signed_##S((E)0.5 * spmd_log1p_##S(2 * size / (1 - size)), a);                 \
    }

SPMD_LANES_F32(SPMD_LOG, 0xfffff000u, 0x1p23f, 0x1.62e4p-1f, 0x1.7f7d1cp-20f, 0x1.716p0f,
               -0x1.7135a8p-13f, 0x1.3442p-2f, -0x1.95ec1p-19f, 0x1.bccp-2f, -0x1.09d5b2p-15f)
SPMD_LANES_F64(SPMD_LOG, 0xfffffffff8000000ull, 0x1p52, 0x1.62e42fefp-1, 0x1.473de6af278edp-34,
               0x1.7154768p0, -0x1.6a3e80f444178p-27, 0x1.34413509f78p-2, 0x1.fef311f12b358p-46,
               0x1.bcb7b18p-2, -0x1.6c8d78e6acaa4p-29)

#endif
