/* exp, exp2, expm1, sinh, cosh and tanh of floats as arithmetic; exp and exp2 of double by a table.
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
    }
SPMD_LANES_F32(SPMD_EXP_SERIES_F32, )
SPMD_LANES_F64(SPMD_EXP_SERIES_F64, )

/* Of a type: a number that rounds what it is added to, 1.5 * 2^MANTISSA; 1 / ln 2; ln 2, and in two
 * parts; from where on expm1 is -1, sinh is
 * infinity, tanh is 1, sinh(x) is x. */
#define SPMD_EXP(S, T, U, H, E, MANTISSA, BIAS, ROUNDS, PER_LN2, LN2_ONE, LN2, REST,               \
                 MINUS, MOST_HALF, ONES, TINY)                                                     \
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
               -20.f, 89.42f, 10.f, 0x1p-30f)
SPMD_LANES_F64(SPMD_EXP, 0x1.8p52, 0x1.71547652b82fep+0, 0x1.62e42fefa39efp-1, 0x1.62e42fefp-1,
               0x1.473de6af278edp-34, -45., 710.48, 22., 0x1p-60)

/* exp and exp2 end in what they are surely 0 and infinity from: -104, 89, -151, 129 of float. */
#define SPMD_EXP_OF_F32(S, T, ...)                                                                 \
    static inline T spmd_exp_of_##S(T a)                                                           \
    {                                                                                              \
        T sum, more, x = spmd_at_least_##S(spmd_at_most_##S(a, 89.f), -104.f);                     \
        T r = spmd_exp_reduced_##S(x, &sum, &more);                                                \
        return spmd_scaled_##S(1 + (r + more), sum);                                               \
    }                                                                                              \
    static inline T spmd_exp2_of_##S(T a)                                                          \
    {                                                                                              \
        T x = spmd_at_least_##S(spmd_at_most_##S(a, 129.f), -151.f);                               \
        T sum = x + 0x1.8p23f, r = x - (sum - 0x1.8p23f);                                          \
        T less = r * 0x1.62e43p-1f + r * r * spmd_exp2_series_##S(r);                              \
        return spmd_scaled_##S(1 + less, sum);                                                     \
    }
SPMD_LANES_F32(SPMD_EXP_OF_F32, )

/* 2^(k / 16); by which parts of it these numbers are too small */
SPMD_TABLE(spmd_exp_roots) = {
    1, 0x1.0b5586cf9890fp0, 0x1.172b83c7d517bp0, 0x1.2387a6e756238p0,
    0x1.306fe0a31b715p0, 0x1.3dea64c123422p0, 0x1.4bfdad5362a27p0, 0x1.5ab07dd485429p0,
    0x1.6a09e667f3bcdp0, 0x1.7a11473eb0187p0, 0x1.8ace5422aa0dbp0, 0x1.9c49182a3f090p0,
    0x1.ae89f995ad3adp0, 0x1.c199bdd85529cp0, 0x1.d5818dcfba487p0, 0x1.ea4afa2a490dap0
};
SPMD_TABLE(spmd_exp_lost) = {
    0, 0x1.79aa65d837b6cp-54, -0x1.01b15eaa59348p-55,
    0x1.68efde3a8a893p-54, 0x1.34d754db0abb6p-55, 0x1.59f48a72a4c6cp-55,
    0x1.690cebb7aafb0p-56, 0x1.063e1e21c5409p-54, -0x1.3b3efbf5e2229p-54,
    -0x1.b32dcb94da51dp-56, 0x1.db72fc1f0eab4p-55, 0x1.1affc2b91ce27p-56,
    0x1.c1a7792cb3386p-55, 0x1.36eae30af0cb3p-56, 0x1.4a385a63d07a7p-56,
    -0x1.ff7128fd391f1p-55
};

/* exp and exp2 of double: x = k ln 2 / 16 + r, and a polynomial of |r| <= ln 2 / 32, 2^-56.3. */
static inline double spmd_scaled_16_f64(double p, double sum)
{
    uint64_t k = spmd_bits_f64(sum) - spmd_bits_f64(0x1.8p52);
    uint64_t below = (k & (uint64_t)1 << 63) >> 5;
    uint64_t first = ((k + 1022 * 16) << 48 & 0xfff0000000000000) + below;
    return p * spmd_from_bits_f64(first) * spmd_from_bits_f64(((uint64_t)1024 << 52) - below);
}
#if SPMD_HAS_LANES
static inline spmd_e64 spmd_scaled_16_e64(spmd_e64 p, spmd_e64 sum)
{
    return __builtin_ia32_scalefpd512_mask(p, (sum - 0x1.8p52) * 0.0625, p, (uint8_t)-1, 4);
}
#endif
#define SPMD_EXP_OF_F64(S, T, U, ...)                                                              \
    /* 2^(k / 16) exp(r), where sum is 1.5 * 2^52 + k */                                           \
    static inline T spmd_exp_looked_up_##S(T r, T sum)                                             \
    {                                                                                              \
        T square = r * r, root = spmd_looked_up_##S(spmd_exp_roots, spmd_bits_##S(sum));           \
        T lost = spmd_looked_up_##S(spmd_exp_lost, spmd_bits_##S(sum));                            \
        T series = (0x1.0000000000005p-1 + r * 0x1.555555548f729p-3)                               \
                 + square * ((0x1.555555545e93dp-5 + r * 0x1.11123abefac68p-7)                     \
                             + square * 0x1.6c185e05b7a2bp-10);                                    \
        return spmd_scaled_16_##S(root + root * (r + (lost + square * series)), sum);              \
    }                                                                                              \
    /* x - k ln 2 / 16 */                                                                          \
    static inline T spmd_exp_rest_##S(T x, T sum)                                                  \
    {                                                                                              \
        T k = sum - 0x1.8p52;                                                                      \
        return (x - k * 0x1.62e42fefp-5) - k * 0x1.473de6af278edp-38;                              \
    }                                                                                              \
    static inline T spmd_exp_of_##S(T a)                                                           \
    {                                                                                              \
        T x = spmd_at_least_##S(spmd_at_most_##S(a, 710.), -746.);                                 \
        T sum = x * 0x1.71547652b82fep+4 + 0x1.8p52;                                               \
        return spmd_exp_looked_up_##S(spmd_exp_rest_##S(x, sum), sum);                             \
    }                                                                                              \
    static inline T spmd_exp2_of_##S(T a)                                                          \
    {                                                                                              \
        T x = spmd_at_least_##S(spmd_at_most_##S(a, 1025.), -1076.), sum = x * 16 + 0x1.8p52;      \
        T r = x - (sum - 0x1.8p52) * 0.0625;                                                       \
        return spmd_exp_looked_up_##S(r * 0x1.62e42fefa39efp-1, sum);                              \
    }
SPMD_LANES_F64(SPMD_EXP_OF_F64, )

#endif
