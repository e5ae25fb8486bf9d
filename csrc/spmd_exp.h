/* exp and tanh of floats as plain arithmetic: within 1 and 2.5 units of the last place.
 *
 * Loops over them vectorise, which calls of libm do not; and the bits of a result depend neither on
 * where an element stands in its array, nor on the compiler, nor on the machine.
 * Reduction: x = k ln 2 + r with |r| <= ln 2 / 2, where ln 2 is a sum of two numbers and k times
 * the first is exact (Cody and Waite, Software Manual for the Elementary Functions, 1980).
 * Then Taylor's polynomial of exp(r) - 1, whose rest is below a hundredth of a unit.
 */
#ifndef SPMD_EXP_H
#define SPMD_EXP_H

#include <math.h>
#include <stdint.h>
#include <string.h>

#include "spmd_select.h"

/* (exp(r) - 1 - r) / r^2: neighbours first, then pairs of them, so that few wait for another */
static inline float spmd_exp_series_f32(float r)
{
    float square = r * r;
    float low = (1 / 2.f + r * (1 / 6.f)) + square * (1 / 24.f + r * (1 / 120.f));
    float high = (1 / 720.f + r * (1 / 5040.f)) + square * (1 / 40320.f);
    return low + square * square * high;
}

static inline double spmd_exp_series_f64(double r)
{
    double square = r * r, fourth = square * square;
    double a = (1 / 2. + r * (1 / 6.)) + square * (1 / 24. + r * (1 / 120.));
    double b = (1 / 720. + r * (1 / 5040.)) + square * (1 / 40320. + r * (1 / 362880.));
    double c = (1 / 3628800. + r * (1 / 39916800.))
             + square * (1 / 479001600. + r * (1 / 6227020800.));
    return a + fourth * (b + fourth * c);
}

/* Of a type: its bits; the bits of its mantissa, and what is added to exponents; a number that
 * rounds what it is added to, 1.5 * 2^MANTISSA; 1 / ln 2, and ln 2 in two parts; from where on exp
 * is 0 and infinity for sure, and tanh is 1. */
#define SPMD_EXP(S, T, U, F, MANTISSA, BIAS, ROUNDS, PER_LN2, LN2, REST, LEAST, MOST, ONES)        \
    /* 2^k */                                                                                      \
    static inline T spmd_power_of_2_##S(U k)                                                       \
    {                                                                                              \
        U bits = (k + BIAS) << MANTISSA;                                                           \
        T power;                                                                                   \
        memcpy(&power, &bits, sizeof power);                                                       \
        return power;                                                                              \
    }                                                                                              \
    /* k, and exp(r) - 1 */                                                                        \
    static inline T spmd_exp_reduced_##S(T x, U *k)                                                \
    {                                                                                              \
        T rounds = ROUNDS, sum = x * PER_LN2 + rounds, whole = sum - rounds;                       \
        U bits, none;                                                                              \
        memcpy(&bits, &sum, sizeof bits);                                                          \
        memcpy(&none, &rounds, sizeof none);                                                       \
        *k = bits - none;                                                                          \
        T most = x - whole * LN2, rest = whole * REST;                                             \
        T r = most - rest, lost = (most - r) - rest;                                               \
        return r + (lost + r * r * spmd_exp_series_##S(r));                                        \
    }                                                                                              \
    /* By two powers: 2^k may be out of range. Results below it are rounded once. */               \
    static inline T spmd_exp_##S(T a)                                                              \
    {                                                                                              \
        U k;                                                                                       \
        T x = spmd_select_##S(a < LEAST, LEAST, spmd_select_##S(a > MOST, MOST, a));               \
        T power = 1 + spmd_exp_reduced_##S(x, &k);                                                 \
        U half = ((k + 2 * BIAS) >> 1) - BIAS;                                                     \
        return power * spmd_power_of_2_##S(half) * spmd_power_of_2_##S(k - half);                  \
    }                                                                                              \
    /* -d / (2 + d) of d = exp(-2 |a|) - 1 */                                                      \
    static inline T spmd_tanh_##S(T a)                                                             \
    {                                                                                              \
        U k;                                                                                       \
        T size = fabs##F(a);                                                                       \
        T part = spmd_exp_reduced_##S(-2 * spmd_select_##S(size > ONES, ONES, size), &k);          \
        T power = spmd_power_of_2_##S(k), d = power * part + (power - 1);                          \
        return copysign##F(-d / (2 + d), a);                                                       \
    }

SPMD_EXP(f32, float, uint32_t, f, 23, 127, 0x1.8p23f, 0x1.715476p+0f, 0x1.62e4p-1f,
         0x1.7f7d1cp-20f, -104.f, 89.f, 10.f)
SPMD_EXP(f64, double, uint64_t, , 52, 1023, 0x1.8p52, 0x1.71547652b82fep+0, 0x1.62e42fefp-1,
         0x1.473de6af278edp-34, -746., 710., 22.)

#endif
