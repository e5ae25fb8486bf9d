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

#include "spmd_series.h"

/* (exp(r) - 1 - r) / r^2 */
static inline float spmd_exp_series_f32(float r)
{
    float square = r * r;
    return SPMD_FOUR(r, square, 0x1p-1f, 0x1.555556p-3f, 0x1.5554aep-5f, 0x1.11109p-7f)
         + square * square * (0x1.6d7484p-10f + r * 0x1.a1a1cep-13f);
}

static inline double spmd_exp_series_f64(double r)
{
    double square = r * r, fourth = square * square;
    double a = SPMD_FOUR(r, square, 0x1.0000000000005p-1, 0x1.555555555555cp-3,
                         0x1.55555555520f4p-5, 0x1.111111110e6ccp-7);
    double b = SPMD_FOUR(r, square, 0x1.6c16c17f37659p-10, 0x1.a01a01b5da1dbp-13,
                         0x1.a019a685ed28bp-16, 0x1.71ddea02a7dfep-19);
    return a + fourth * (b + fourth * (0x1.28a2ab7291939p-22 + r * 0x1.af76ae814144ap-26));
}

/* (2^r - 1 - r ln 2) / r^2, where |r| <= 1/2 */
static inline float spmd_exp2_series_f32(float r)
{
    float square = r * r;
    return SPMD_FOUR(r, square, 0x1.ebfbep-3f, 0x1.c6aedp-5f, 0x1.3b29aap-7f, 0x1.5f47dcp-10f)
         + square * square * 0x1.44906p-13f;
}

static inline double spmd_exp2_series_f64(double r)
{
    double square = r * r, fourth = square * square;
    double a = SPMD_FOUR(r, square, 0x1.ebfbdff82c5a5p-3, 0x1.c6b08d704a0d7p-5,
                         0x1.3b2ab6fb9ff33p-7, 0x1.5d87fe78a0e2cp-10);
    double b = SPMD_FOUR(r, square, 0x1.4309130f36e39p-13, 0x1.ffcbfc7c47e9bp-17,
                         0x1.62bfc6b915708p-20, 0x1.b524cde8d65f1p-24);
    return a + fourth * (b + fourth * (0x1.e61ccc08ee3e2p-28 + r * 0x1.ea1849ae9faa9p-32));
}

/* Of a type: its bits; the bits of its mantissa, and what is added to exponents; how far right of
 * the sign the bit of a factor is by which small powers are scaled; a number that rounds what it is
 * added to, 1.5 * 2^MANTISSA; 1 / ln 2; ln 2, and in two parts; from where on exp is 0 and infinity
 * for sure; the same of exp2; expm1 is -1, sinh is infinity, tanh is 1, sinh(x) is x. */
#define SPMD_EXP(S, T, U, F, MANTISSA, BIAS, FAR, ROUNDS, PER_LN2, LN2_ONE, LN2, REST, LEAST, MOST,\
                 LEAST2, MOST2, MINUS, MOST_HALF, ONES, TINY)                                      \
    /* 2^k */                                                                                      \
    static inline T spmd_power_of_2_##S(U k)                                                       \
    {                                                                                              \
        return spmd_from_bits_##S((k + BIAS) << MANTISSA);                                         \
    }                                                                                              \
    /* p * 2^k by two powers, as 2^k may be out of range; a result below it is rounded once */     \
    static inline T spmd_times_power_##S(T p, U k)                                                 \
    {                                                                                              \
        U below = (k & (U)1 << (8 * sizeof(U) - 1)) >> FAR;                                        \
        T first = spmd_from_bits_##S(((k + BIAS - 1) << MANTISSA) + below);                        \
        return p * first * spmd_from_bits_##S(((U)(BIAS + 1) << MANTISSA) - below);                \
    }                                                                                              \
    /* k; exp(r) - 1 is what it returns and *more, which is smaller */                             \
    static inline T spmd_exp_reduced_##S(T x, U *k, T *more)                                       \
    {                                                                                              \
        T sum = x * PER_LN2 + ROUNDS, whole = sum - ROUNDS;                                        \
        *k = spmd_bits_##S(sum) - spmd_bits_##S(ROUNDS);                                           \
        T most = x - whole * LN2, rest = whole * REST, r = most - rest;                            \
        *more = ((most - r) - rest) + r * r * spmd_exp_series_##S(r);                              \
        return r;                                                                                  \
    }                                                                                              \
    static inline T spmd_exp_##S(T a)                                                              \
    {                                                                                              \
        U k;                                                                                       \
        T x = spmd_select_##S(a < LEAST, LEAST, spmd_select_##S(a > MOST, MOST, a)), more;         \
        T r = spmd_exp_reduced_##S(x, &k, &more);                                                  \
        return spmd_times_power_##S(1 + (r + more), k);                                            \
    }                                                                                              \
    static inline T spmd_exp2_##S(T a)                                                             \
    {                                                                                              \
        T x = spmd_select_##S(a < LEAST2, LEAST2, spmd_select_##S(a > MOST2, MOST2, a));           \
        T sum = x + ROUNDS, r = x - (sum - ROUNDS);                                                \
        U k = spmd_bits_##S(sum) - spmd_bits_##S(ROUNDS);                                          \
        T less = r * LN2_ONE + r * r * spmd_exp2_series_##S(r);                                    \
        return spmd_times_power_##S(1 + less, k);                                                  \
    }                                                                                              \
    /* (exp(x) - 1) / 2^scaled, where 2^(k - scaled) is in range */                                \
    static inline T spmd_exp_less_1_##S(T x, U scaled)                                             \
    {                                                                                              \
        U k;                                                                                       \
        T more, r = spmd_exp_reduced_##S(x, &k, &more), power = spmd_power_of_2_##S(k - scaled);   \
        return (power * r + (power - spmd_power_of_2_##S(0 - scaled))) + power * more;             \
    }                                                                                              \
    static inline T spmd_expm1_##S(T a)                                                            \
    {                                                                                              \
        T x = spmd_select_##S(a < MINUS, MINUS, spmd_select_##S(a > MOST_HALF, MOST_HALF, a));     \
        return spmd_select_##S(fabs##F(a) < TINY, a, 4 * spmd_exp_less_1_##S(x, 2));               \
    }                                                                                              \
    /* (e + e / (e + 1)) / 2 of e = exp(|a|) - 1 */                                                \
    static inline T spmd_sinh_##S(T a)                                                             \
    {                                                                                              \
        T size = fabs##F(a);                                                                       \
        T e = spmd_exp_less_1_##S(spmd_select_##S(size > MOST_HALF, MOST_HALF, size), 2);          \
        T result = copysign##F(2 * (e + e / (4 * e + 1)), a);                                      \
        return spmd_select_##S(size < TINY, a, result);                                            \
    }                                                                                              \
    static inline T spmd_cosh_##S(T a)                                                             \
    {                                                                                              \
        U k;                                                                                       \
        T size = fabs##F(a), more;                                                                 \
        T r = spmd_exp_reduced_##S(spmd_select_##S(size > MOST_HALF, MOST_HALF, size), &k, &more); \
        T quarter = (1 + (r + more)) * spmd_power_of_2_##S(k - 2);                                 \
        return 2 * quarter + (T)0.125 / quarter;                                                   \
    }                                                                                              \
    /* -d / (2 + d) of d = exp(-2 |a|) - 1 */                                                      \
    static inline T spmd_tanh_##S(T a)                                                             \
    {                                                                                              \
        T size = fabs##F(a);                                                                       \
        U k;                                                                                       \
        T more, r = spmd_exp_reduced_##S(-2 * spmd_select_##S(size > ONES, ONES, size), &k, &more);\
        T power = spmd_power_of_2_##S(k), d = power * (r + more) + (power - 1);                    \
        return copysign##F(-d / (2 + d), a);                                                       \
    }

SPMD_EXP(f32, float, uint32_t, f, 23, 127, 3, 0x1.8p23f, 0x1.715476p+0f, 0x1.62e43p-1f,
         0x1.62e4p-1f, 0x1.7f7d1cp-20f, -104.f, 89.f, -151.f, 129.f, -20.f, 89.42f, 10.f, 0x1p-30f)
SPMD_EXP(f64, double, uint64_t, , 52, 1023, 5, 0x1.8p52, 0x1.71547652b82fep+0,
         0x1.62e42fefa39efp-1, 0x1.62e42fefp-1, 0x1.473de6af278edp-34, -746., 710., -1076., 1025.,
         -45., 710.48, 22., 0x1p-60)

#endif
