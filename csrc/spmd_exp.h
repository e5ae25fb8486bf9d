/* exp, exp2, expm1, sinh, cosh and tanh of floats as plain arithmetic.
 *
 * Reduction: x = k ln 2 + r with |r| <= ln 2 / 2, where ln 2 is a sum of two numbers and k times
 * the first is exact (Cody and Waite, Software Manual for the Elementary Functions, 1980). Then a
 * polynomial of exp(r) - 1 of least relative error (Remez), 2^-32 and 2^-55.6.
 * Within 1 unit of the last place (exp), 1.25 (exp2), 1.5 (expm1, cosh) and 2.5 (sinh, tanh),
 * beside long double at 10^7 points. Bits depend neither on where an element stands in its array,
 * nor on the compiler, nor on the machine: no product is fused with a sum.
 */
#ifndef SPMD_EXP_H
#define SPMD_EXP_H

#include "spmd_lanes.h"

/* (exp(r) - 1 - r) / r^2; (2^r - 1 - r ln 2) / r^2, where |r| <= 1/2 */
#define SPMD_EXP_SERIES_F32(S, T, ...)                                                             \
    static inline T spmd_exp_series_##S(T r)                                                       \
    {                                                                                              \
        T square = r * r;                                                                          \
        return SPMD_FOUR(r, square, 0x1p-1f, 0x1.555556p-3f, 0x1.5554aep-5f, 0x1.11109p-7f)        \
             + square * square * (0x1.6d7484p-10f + r * 0x1.a1a1cep-13f);                          \
    }                                                                                              \
    static inline T spmd_exp2_series_##S(T r)                                                      \
    {                                                                                              \
        T square = r * r;                                                                          \
        return SPMD_FOUR(r, square, 0x1.ebfbep-3f, 0x1.c6aedp-5f, 0x1.3b29aap-7f, 0x1.5f47dcp-10f) \
             + square * square * 0x1.44906p-13f;                                                   \
    }
#define SPMD_EXP_SERIES_F64(S, T, ...)                                                             \
    static inline T spmd_exp_series_##S(T r)                                                       \
    {                                                                                              \
        T square = r * r, fourth = square * square;                                                \
        T a = SPMD_FOUR(r, square, 0x1.0000000000005p-1, 0x1.555555555555cp-3,                     \
                        0x1.55555555520f4p-5, 0x1.111111110e6ccp-7);                               \
        T b = SPMD_FOUR(r, square, 0x1.6c16c17f37659p-10, 0x1.a01a01b5da1dbp-13,                   \
                        0x1.a019a685ed28bp-16, 0x1.71ddea02a7dfep-19);                             \
        return a + fourth * (b + fourth * (0x1.28a2ab7291939p-22 + r * 0x1.af76ae814144ap-26));    \
    }                                                                                              \
    static inline T spmd_exp2_series_##S(T r)                                                      \
    {                                                                                              \
        T square = r * r, fourth = square * square;                                                \
        T a = SPMD_FOUR(r, square, 0x1.ebfbdff82c5a5p-3, 0x1.c6b08d704a0d7p-5,                     \
                        0x1.3b2ab6fb9ff33p-7, 0x1.5d87fe78a0e2cp-10);                              \
        T b = SPMD_FOUR(r, square, 0x1.4309130f36e39p-13, 0x1.ffcbfc7c47e9bp-17,                   \
                        0x1.62bfc6b915708p-20, 0x1.b524cde8d65f1p-24);                             \
        return a + fourth * (b + fourth * (0x1.e61ccc08ee3e2p-28 + r * 0x1.ea1849ae9faa9p-32));    \
    }
SPMD_LANES_F32(SPMD_EXP_SERIES_F32, )
SPMD_LANES_F64(SPMD_EXP_SERIES_F64, )

/* Of a type: a number that rounds what it is added to, 1.5 * 2^MANTISSA; 1 / ln 2; ln 2, and in two
 * parts; from where on exp is 0 and infinity for sure; the same of exp2; expm1 is -1, sinh is
 * infinity, tanh is 1, sinh(x) is x. */
#define SPMD_EXP(S, T, U, H, E, MANTISSA, BIAS, ROUNDS, PER_LN2, LN2_ONE, LN2, REST, LEAST, MOST,  \
                 LEAST2, MOST2, MINUS, MOST_HALF, ONES, TINY)                                      \
    /* 2^k, where sum is ROUNDS + k */                                                             \
    static inline T spmd_power_of_2_##S(T sum)                                                     \
    {                                                                                              \
        return spmd_from_bits_##S((spmd_bits_##S(sum) + BIAS) << MANTISSA);                        \
    }                                                                                              \
    /* ROUNDS + k; exp(r) - 1 is what it returns and *more, which is smaller */                    \
    static inline T spmd_exp_reduced_##S(T x, T *sum, T *more)                                     \
    {                                                                                              \
        *sum = x * PER_LN2 + ROUNDS;                                                               \
        T whole = *sum - ROUNDS, most = x - whole * LN2, rest = whole * REST, r = most - rest;     \
        *more = ((most - r) - rest) + r * r * spmd_exp_series_##S(r);                              \
        return r;                                                                                  \
    }                                                                                              \
    static inline T spmd_exp_of_##S(T a)                                                           \
    {                                                                                              \
        T sum, more, x = spmd_at_least_##S(spmd_at_most_##S(a, MOST), LEAST);                      \
        T r = spmd_exp_reduced_##S(x, &sum, &more);                                                \
        return spmd_scaled_##S(1 + (r + more), sum);                                               \
    }                                                                                              \
    static inline T spmd_exp2_of_##S(T a)                                                          \
    {                                                                                              \
        T x = spmd_at_least_##S(spmd_at_most_##S(a, MOST2), LEAST2);                               \
        T sum = x + ROUNDS, r = x - (sum - ROUNDS);                                                \
        T less = r * LN2_ONE + r * r * spmd_exp2_series_##S(r);                                    \
        return spmd_scaled_##S(1 + less, sum);                                                     \
    }                                                                                              \
    /* (exp(x) - 1) / 4, where 2^(k - 2) is in range */                                            \
    static inline T spmd_exp_less_1_##S(T x)                                                       \
    {                                                                                              \
        T sum, more, r = spmd_exp_reduced_##S(x, &sum, &more);                                     \
        T power = spmd_power_of_2_##S(sum - 2);                                                    \
        return (power * r + (power - (E)0.25)) + power * more;                                     \
    }                                                                                              \
    static inline T spmd_expm1_##S(T a)                                                            \
    {                                                                                              \
        T x = spmd_at_least_##S(spmd_at_most_##S(a, MOST_HALF), MINUS);                            \
        H tiny = spmd_less_##S(spmd_size_##S(a), spmd_all_##S(TINY));                              \
        return spmd_select_##S(tiny, a, 4 * spmd_exp_less_1_##S(x));                               \
    }                                                                                              \
    /* (e + e / (e + 1)) / 2 of e = exp(|a|) - 1 */                                                \
    static inline T spmd_sinh_##S(T a)                                                             \
    {                                                                                              \
        T size = spmd_size_##S(a);                                                                 \
        T e = spmd_exp_less_1_##S(spmd_at_most_##S(size, MOST_HALF));                              \
        T result = spmd_signed_##S(2 * (e + e / (4 * e + 1)), a);                                  \
        return spmd_select_##S(spmd_less_##S(size, spmd_all_##S(TINY)), a, result);                \
    }                                                                                              \
    static inline T spmd_cosh_##S(T a)                                                             \
    {                                                                                              \
        T sum, more, size = spmd_size_##S(a);                                                      \
        T r = spmd_exp_reduced_##S(spmd_at_most_##S(size, MOST_HALF), &sum, &more);                \
        T quarter = (1 + (r + more)) * spmd_power_of_2_##S(sum - 2);                               \
        return 2 * quarter + (E)0.125 / quarter;                                                   \
    }                                                                                              \
    /* -d / (2 + d) of d = exp(-2 |a|) - 1 */                                                      \
    static inline T spmd_tanh_##S(T a)                                                             \
    {                                                                                              \
        T sum, more, x = -2 * spmd_at_most_##S(spmd_size_##S(a), ONES);                            \
        T r = spmd_exp_reduced_##S(x, &sum, &more);                                                \
        T power = spmd_power_of_2_##S(sum), d = power * (r + more) + (power - 1);                  \
        return spmd_signed_##S(-d / (2 + d), a);                                                   \
    }

SPMD_LANES_F32(SPMD_EXP, 0x1.8p23f, 0x1.715476p+0f, 0x1.62e43p-1f, 0x1.62e4p-1f, 0x1.7f7d1cp-20f,
               -104.f, 89.f, -151.f, 129.f, -20.f, 89.42f, 10.f, 0x1p-30f)
SPMD_LANES_F64(SPMD_EXP, 0x1.8p52, 0x1.71547652b82fep+0, 0x1.62e42fefa39efp-1, 0x1.62e42fefp-1,
               0x1.473de6af278edp-34, -746., 710., -1076., 1025., -45., 710.48, 22., 0x1p-60)

#endif
