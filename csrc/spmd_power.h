/* pow and cbrt of floats as plain arithmetic; pow of 0, infinity and NaN by libm (spmd_rare.h).
 *
 * pow: exp(y log(x)), where log(x), found as in spmd_log.h, and the product are sums of two numbers
 * (Dekker 1971): products of parts of 26 bits are exact. float computes in double.
 * cbrt: x = m 8^q; a polynomial of m^(-1/3), a step towards it (the series of (1 - e)^(-1/3)), and
 * Newton's for the root. All within 1 unit of the last place, pow of float within 0.55.
 */
#ifndef SPMD_POWER_H
#define SPMD_POWER_H

#include "spmd_exp.h"
#include "spmd_log.h"
#include "spmd_rare.h"

static inline double spmd_high_f64(double x) /* its first 26 bits */
{
    return spmd_from_bits_f64(spmd_bits_f64(x) & 0xfffffffff8000000ull);
}

/* (log((1 + s) / (1 - s)) / s - 2 - 2/3 z) / z^2, where z = s^2 */
static inline double spmd_log_rest_f64(double z)
{
    double square = z * z;
    return SPMD_FOUR(z, square, 0x1.9999999999b30p-2, 0x1.2492492457c90p-2, 0x1.c71c722d78d2ep-3,
                     0x1.745ce9dccf742p-3)
         + square * square
               * (0x1.3b1eed44479a7p-3 + z * 0x1.0f7fcc0b5afd7p-3 + square * 0x1.0e43c85033715p-3);
}

/* log(x) of a positive normal number; *more is smaller by 2^-26 at least */
static inline double spmd_log_twofold_f64(double x, double *more)
{
    uint64_t e;
    double f = spmd_log_reduced_f64(x, &e), k = spmd_log_whole_f64(e) - 1023;
    /* s = f / (2 + f) */
    double d = 2 + f, one = 1 / d, s = f * one, sh = spmd_high_f64(s), dh = spmd_high_f64(d);
    double dl = (d - dh) + (f - (d - 2)), sl = ((f - sh * dh) - sh * dl) * one;
    /* z = s^2 = zh + zl, cube = s^3 = ch + cl */
    double square = sh * sh, side = (sh + s) * sl, z = square + side, zh = spmd_high_f64(z);
    double zl = (square - zh) + side, first = sh * zh, second = sh * zl + sl * z;
    double ch = spmd_high_f64(first + second), cl = (first - ch) + second;
    /* log(1 + f) = 2 s + s^3 v */
    double part = z * spmd_log_rest_f64(z), v = 0x1.5555555555555p-1 + part;
    double vh = spmd_high_f64(v), vl = ((0x1.5555555555555p-1 - vh) + part) + 0x1.5555555555555p-55;
    double cubic = ch * vh, most = k * 0x1.62e42fefp-1, sum = most + 2 * sh, all = sum + cubic;
    *more = ((most - sum) + 2 * sh) + ((sum - all) + cubic)
          + (2 * sl + (ch * vl + cl * v) + k * 0x1.473de6af278edp-34);
    return all;
}

/* |a|^b; a normal, b below 2^51 */
static inline double spmd_power_f64(double size, double b)
{
    uint64_t k;
    double low, log = spmd_log_twofold_f64(size, &low), high = spmd_high_f64(log);
    double bh = spmd_high_f64(b), part = bh * high;
    double rest = b * ((log - high) + low) + (b - bh) * high, x = part + rest;
    rest = (part - x) + rest;
    uint64_t far = fabs(x) > 745.5;
    x = spmd_select_f64(x < -746, -746, spmd_select_f64(x > 710, 710, x));
    double more, r = spmd_exp_reduced_f64(x, &k, &more);
    rest = spmd_select_f64(far, 0, rest);
    more += rest + rest * (r + more);
    return spmd_times_power_f64(1 + (r + more), k);
}

static inline double spmd_power_f32(double size, double b)
{
    uint64_t e;
    double f = spmd_log_reduced_f64(size, &e), s = f / (2 + f), z = s * s;
    double series = SPMD_FOUR(z, z * z, 0x1.555555561e60ep-1, 0x1.999996a8f087fp-2,
                              0x1.24941216f6c01p-2, 0x1.c62b06509b571p-3)
                  + z * z * z * z * 0x1.91166a73d6661p-3;
    double log2 = spmd_log_whole_f64(e) - 1023 + (2 * s + s * z * series) * 0x1.71547652b82fep0;
    double x = b * log2;
    x = spmd_select_f64(fabs(x) > 300, copysign(300, x), x);
    double sum = x + 0x1.8p52, r = x - (sum - 0x1.8p52), square = r * r;
    double p = SPMD_FOUR(r, square, 0x1.62e42fef7b541p-1, 0x1.ebfbe07ae0105p-3,
                         0x1.c6b08df48ed66p-5, 0x1.3b29f0d5a5ee6p-7)
             + square * square
                   * (0x1.5d8723725347bp-10 + r * 0x1.445e8d6fa7af4p-13
                      + square * 0x1.00f154211806bp-16);
    return (1 + r * p) * spmd_power_of_2_f64(spmd_bits_f64(sum) - spmd_bits_f64(0x1.8p52));
}

#define SPMD_POW(S, T, F, LEAST, MOST)                                                             \
    SPMD_RARE_##S(spmd_rare_pow_##S,                                                               \
                  (((a >= LEAST) & (a <= MOST)) | ((a <= -LEAST) & (a >= -MOST)))                  \
                      & ((b >= -0x1p50##F) & (b <= 0x1p50##F)),                                    \
                  pow##F(a, b))                                                                    \
    /* of a negative base the odd powers are negative, and only whole ones are numbers */          \
    static inline T spmd_pow_##S(T a, T b)                                                         \
    {                                                                                              \
        double y = b, sum = y + 0x1.8p52, power = spmd_power_##S(fabs##F(a), y);                   \
        uint64_t minus = a < 0, whole = sum - 0x1.8p52 == y, odd = minus & spmd_bits_f64(sum);     \
        power = spmd_from_bits_f64(spmd_bits_f64(power) ^ odd << 63);                              \
        return spmd_rare_pow_##S(a, b, (T)spmd_select_f64(minus & (whole ^ 1), NAN, power));       \
    }
SPMD_POW(f32, float, f, 0x1p-149f, 0x1.fffffep127f)
SPMD_POW(f64, double, , 0x1p-1022, 0x1.fffffffffffffp1023)

/* Of a type: its bits; the bits of its mantissa; what is added to exponents; 1.5 * 2^MANTISSA; its
 * least normal number; by what smaller ones are scaled, and a third of the bits of that. */
#define SPMD_CBRT(S, T, U, F, MANTISSA, BIAS, ROUNDS, NORMAL, SCALE, THIRD)                        \
    static inline T spmd_cbrt_##S(T a)                                                             \
    {                                                                                              \
        T size = fabs##F(a);                                                                       \
        U small = size < NORMAL, bits = spmd_bits_##S(spmd_select_##S(small, size * SCALE, size)); \
        T sum = (spmd_log_whole_##S(bits >> MANTISSA) - (BIAS + 1)) * (T)(1 / 3.) + ROUNDS;        \
        U q = spmd_bits_##S(sum) - spmd_bits_##S(ROUNDS);                                          \
        T m = spmd_from_bits_##S(bits - ((2 * q + q) << MANTISSA)), square = m * m;                \
        T root = SPMD_FOUR(m, square, (T)0x1.80a0fcp0, (T)-0x1.86a09ap-1, (T)0x1.57083p-2,         \
                           (T)-0x1.68980ap-4)                                                      \
               + square * square                                                                   \
                     * ((T)0x1.b1fd8fp-7 + m * (T)-0x1.13649fp-10 + square * (T)0x1.1d2d8ep-15);   \
        T e = 1 - m * root * (root * root);                                                        \
        root += root * e * ((T)(1 / 3.) + e * ((T)(2 / 9.) + e * (T)(14 / 81.)));                  \
        T two = root * root, near = m * two;                                                       \
        T result = near + (m - near * near * near) * two * (T)(1 / 3.);                            \
        result *= spmd_power_of_2_##S(q - THIRD * small);                                          \
        result = spmd_select_##S((size < (T)INFINITY) & (size > 0), result, size);                 \
        return copysign##F(result, a);                                                             \
    }
SPMD_CBRT(f32, float, uint32_t, f, 23, 127, 0x1.8p23f, 0x1p-126f, 0x1p24f, 8)
SPMD_CBRT(f64, double, uint64_t, , 52, 1023, 0x1.8p52, 0x1p-1022, 0x1p54, 18)

#endif
