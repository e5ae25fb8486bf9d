/* log, log2, log10, log1p, asinh, acosh and atanh of floats as plain arithmetic.
 *
 * Reduction of float: x = 2^k (1 + f), where 1 + f lies between the roots of 1/2 and 2. With
 * s = f / (2 + f), log(1 + f) = 2 s + s R(s^2) = f - (f^2 / 2 - s (f^2 / 2 + R)), as in Sun's
 * fdlibm. Of double: x = 2^k m, 3/4 <= m < 3/2, and for each 16th of the mantissas there are a
 * number c of 26 bits near 1 / m, and T = -log(c), whose bits from 2^-43 to 2^-59 are 0 (Gal, An
 * accurate elementary mathematical library, 1991); log(m) = T + log(1 + r), where r = m c - 1 is
 * between -1/32 and 1/16. Polynomials have least relative error (Remez), 2^-29 and 2^-56.6.
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
SPMD_LANES_F32(SPMD_LOG_SERIES_F32, )

/* log(1 + r) - r */
#define SPMD_LOG_SERIES_F64(S, T, ...)                                                             \
    static inline T spmd_log_bend_##S(T r)                                                         \
    {                                                                                              \
        T square = r * r, fourth = square * square;                                                \
        T low = SPMD_FOUR(r, square, -0x1.0000000000003p-1, 0x1.5555555555f5ep-2,                  \
                          -0x1.fffffffff1c34p-3, 0x1.99999980a7adfp-3);                            \
        T high = SPMD_FOUR(r, square, -0x1.555554b502b12p-3, 0x1.2492d815f4014p-3,                 \
                           -0x1.0009b7ada911bp-3, 0x1.c575fbeaa1199p-4);                           \
        return square * (low + fourth * (high + fourth * -0x1.6604571905e74p-4));                  \
    }
SPMD_LANES_F64(SPMD_LOG_SERIES_F64, )

/* c and T by the first four bits of the mantissa: of log, log2 and log10 */
SPMD_TABLE(spmd_log_inverse) = {
    1, 0x1.d76198p-1, 0x1.bdf518p-1, 0x1.a8c4dfp-1, 0x1.8fb8dep-1, 0x1.7d8e2dp-1, 0x1.6cad56p-1,
    0x1.5d1382p-1, 0x1.4b435p0, 0x1.40e7d38p0, 0x1.34ae518p0, 0x1.2989ad8p0, 0x1.1fd1e78p0,
    0x1.16fca38p0, 0x1.0dc1528p0, 1
};
SPMD_TABLE(spmd_log_at) = {
    0, 0x1.5290a192c4p-4, 0x1.1ad4cd28eap-3, 0x1.7e8606271p-3, 0x1.fafe1a646p-3,
    0x1.2d20541fe7p-2, 0x1.5b74b19131p-2, 0x1.883a2a3ab1p-2, -0x1.07ebaeb2a5p-2,
    -0x1.cec9140da4p-3, -0x1.7f3e63336ep-3, -0x1.33f1f5738ap-3, -0x1.dfe0ad10d4p-4,
    -0x1.603431467p-4, -0x1.acbf49d9dp-5, 0
};
SPMD_TABLE(spmd_log2_inverse) = {
    1, 0x1.d95594p-1, 0x1.b9680fp-1, 0x1.a5d769p-1, 0x1.8ddd19p-1, 0x1.7d6b04p-1, 0x1.692ffdp-1,
    0x1.599b1bp-1, 0x1.4c2487p0, 0x1.41a1b08p0, 0x1.35821cp0, 0x1.2931f5p0, 0x1.1e3f258p0,
    0x1.16cb5f8p0, 0x1.0d9aafp0, 1
};
SPMD_TABLE(spmd_log2_at) = {
    0, 0x1.d0034602a4p-4, 0x1.b6588247c6p-3, 0x1.1e264bd29p-2, 0x1.749a400f2cp-2,
    0x1.b2f71bb68fp-2, 0x1.01bd1fccb5p-1, 0x1.224fed4a97p-1, -0x1.80acd6f168p-2,
    -0x1.512aef3282p-2, -0x1.1867f1267p-2, -0x1.b8ddc43f1p-3, -0x1.49f6b3e5cap-3,
    -0x1.f80b915e4cp-4, -0x1.31f7ee88f4p-4, 0
};
SPMD_TABLE(spmd_log10_inverse) = {
    1, 0x1.d912abp-1, 0x1.bc15c5p-1, 0x1.a7bd35p-1, 0x1.93786cp-1, 0x1.7afd9fp-1, 0x1.6f2ecdp-1,
    0x1.5a6a0ep-1, 0x1.4e3c32p0, 0x1.4090338p0, 0x1.359729p0, 0x1.28f5538p0, 0x1.1f423p0,
    0x1.16a15dp0, 0x1.0c24988p0, 1
};
SPMD_TABLE(spmd_log10_at) = {
    0, 0x1.19541f82p-5, 0x1.fa4c0172b8p-5, 0x1.5092fdaa3p-4, 0x1.a7c3dfba68p-4,
    0x1.0b8db7d292p-3, 0x1.27b4b16886p-3, 0x1.5b7e22df4cp-3, -0x1.da5dd48c4p-4,
    -0x1.90126b4394p-4, -0x1.521d734a38p-4, -0x1.0802807328p-4, -0x1.99dec97c9p-5,
    -0x1.2d5ee6d36p-5, -0x1.49c053dbfp-6, 0
};

/* Of a type: the bits of 1, of sign and exponent, of the least m; 2^MANTISSA. */
#define SPMD_LOG_REDUCED(S, T, U, H, E, MANTISSA, BIAS, ONE, ENDS, LEAST, WHOLE)                   \
    /* m of a normal number; *e is k + BIAS */                                                     \
    static inline T spmd_log_reduced_##S(T x, U *e)                                                \
    {                                                                                              \
        U bits = spmd_bits_##S(x) + (ONE - LEAST);                                                 \
        *e = bits >> MANTISSA;                                                                     \
        return spmd_from_bits_##S((bits & ~ENDS) + LEAST);                                         \
    }                                                                                              \
    static inline T spmd_log_whole_##S(U e) /* e as a number, by its bits */                       \
    {                                                                                              \
        return spmd_from_bits_##S(spmd_bits_##S(spmd_all_##S(WHOLE)) | e) - WHOLE;                 \
    }
SPMD_LANES_F32(SPMD_LOG_REDUCED, 0x3f800000u, 0xff800000u, 0x3f3504f3u, 0x1p23f)
SPMD_LANES_F64(SPMD_LOG_REDUCED, 0x3ff0000000000000ull, 0xfff0000000000000ull,
               0x3fe8000000000000ull, 0x1p52)

/* m and k of any positive number; what logarithms are at 0, below it, at infinity, and of NaN. */
#define SPMD_LOG_ENDS(S, T, U, H, E, MANTISSA, BIAS, NORMAL, WHOLE)                                \
    static inline T spmd_log_parts_##S(T a, T *k)                                                  \
    {                                                                                              \
        U e, small = a < NORMAL; /* what is subnormal is scaled */                                 \
        T m = spmd_log_reduced_##S(spmd_select_##S(small, a * (4 * WHOLE), a), &e);                \
        *k = spmd_log_whole_##S(e) - spmd_select_##S(small, BIAS + 2 + MANTISSA, BIAS);            \
        return m;                                                                                  \
    }                                                                                              \
    static inline T spmd_log_ends_##S(T a, T result)                                               \
    {                                                                                              \
        T below = spmd_select_##S(a == 0, -(T)INFINITY, (T)NAN);                                   \
        return spmd_select_##S(a > 0, spmd_select_##S(a < (T)INFINITY, result, a), below);         \
    }
SPMD_OF_f32(SPMD_LOG_ENDS, 0x1p-126f, 0x1p23f)
SPMD_OF_f64(SPMD_LOG_ENDS, 0x1p-1022, 0x1p52)

/* m c - 1, which is rounded once, as c has 26 bits; 1 for c of float */
static inline float spmd_log_near_f32(float m, const double *table, float *c)
{
    (void)table, *c = 1;
    return m - 1;
}
static inline double spmd_log_near_f64(double m, const double *table, double *c)
{
    double high = spmd_from_bits_f64(spmd_bits_f64(m) & 0xfffffffff8000000);
    *c = spmd_looked_up_f64(table, spmd_bits_f64(m) >> 48);
    return (high * *c - 1) + (m - high) * *c;
}

#if SPMD_HAS_LANES
static inline spmd_e32 spmd_log_parts_e32(spmd_e32 a, spmd_e32 *k)
{
    spmd_e32 e, m = spmd_split_e32(a, &e);
    uint16_t low = spmd_less_e32(m, spmd_all_e32(0x1.6a09e6p0f));
    *k = spmd_select_e32(low, e, e + 1);
    return spmd_select_e32(low, m, m * 0.5f);
}
static inline spmd_e64 spmd_log_parts_e64(spmd_e64 a, spmd_e64 *k)
{
    spmd_e64 e, m = spmd_split_e64(a, &e);
    *k = spmd_select_e64(spmd_less_e64(m, spmd_all_e64(1)), e + 1, e);
    return m;
}
static inline spmd_e32 spmd_log_ends_e32(spmd_e32 a, spmd_e32 result)
{
    return spmd_fixed_e32(result, a, 0x03530411);
}
static inline spmd_e64 spmd_log_ends_e64(spmd_e64 a, spmd_e64 result)
{
    return spmd_fixed_e64(result, a, 0x03530411);
}

static inline spmd_e32 spmd_log_near_e32(spmd_e32 m, const double *table, spmd_e32 *c)
{
    (void)table, *c = spmd_all_e32(1);
    return m - 1;
}
static inline spmd_e64 spmd_log_near_e64(spmd_e64 m, const double *table, spmd_e64 *c)
{
    *c = spmd_looked_up_e64(table, spmd_bits_e64(m) >> 48);
    return spmd_lost_e64(m, *c, spmd_all_e64(1));
}
#endif

/* k ln 2 + log(m) */
#define SPMD_LOG_SUM_F32(S, T, ...)                                                                \
    static inline T spmd_log_sum_##S(T m, T f, T k)                                                \
    {                                                                                              \
        T s = f / (2 + f), z = s * s, half = 0.5f * f * f;                                         \
        T small = half - (s * (half + z * spmd_log_series_##S(z)) + k * 0x1.7f7d1cp-20f);          \
        (void)m;                                                                                   \
        return k * 0x1.62e4p-1f - (small - f);                                                     \
    }
SPMD_LANES_F32(SPMD_LOG_SUM_F32, )

#define SPMD_LOG_SUM_F64(S, T, ...)                                                                \
    static inline T spmd_log_sum_##S(T m, T r, T k)                                                \
    {                                                                                              \
        T known = spmd_looked_up_##S(spmd_log_at, spmd_bits_##S(m) >> 48);                         \
        T most = k * 0x1.62e42fefp-1 + known, sum = most + r;                                      \
        T bend = spmd_log_bend_##S(r) + k * 0x1.473de6af278edp-34;                                 \
        return sum + (((most - sum) + r) + bend);                                                  \
    }
SPMD_LANES_F64(SPMD_LOG_SUM_F64, )

/* k UNIT + log(m) SCALE, these numbers in two parts: k times UNIT is exact, the sum of that and T,
 * and SCALE times a number of half as many bits. */
#define SPMD_LOG_SCALED_F32(S, T, U, H, E, MANTISSA, BIAS, NAME, UNIT, UNIT_REST, SCALE, REST)     \
    static inline T spmd_##NAME##_of_##S(T a)                                                      \
    {                                                                                              \
        T k, f = spmd_log_parts_##S(a, &k) - 1;                                                    \
        T s = f / (2 + f), z = s * s, half = 0.5f * f * f;                                         \
        T high = spmd_from_bits_##S(spmd_bits_##S(f - half) & 0xfffff000);                         \
        T low = ((f - high) - half) + s * (half + z * spmd_log_series_##S(z));                     \
        T most = k * UNIT, part = high * SCALE, sum = most + part;                                 \
        T rest = ((low + high) * REST + low * SCALE) + k * UNIT_REST;                              \
        return spmd_log_ends_##S(a, sum + (rest + ((most - sum) + part)));                         \
    }
SPMD_LANES_F32(SPMD_LOG_SCALED_F32, log2, 1, 0, 0x1.716p0f, -0x1.7135a8p-13f)
SPMD_LANES_F32(SPMD_LOG_SCALED_F32, log10, 0x1.3442p-2f, -0x1.95ec1p-19f, 0x1.bccp-2f,
               -0x1.09d5b2p-15f)

#define SPMD_LOG_SCALED_F64(S, T, U, H, E, MANTISSA, BIAS, NAME, UNIT, UNIT_REST, SCALE, REST)     \
    static inline T spmd_##NAME##_of_##S(T a)                                                      \
    {                                                                                              \
        T k, c, m = spmd_log_parts_##S(a, &k), r = spmd_log_near_##S(m, spmd_##NAME##_inverse, &c);\
        T high = spmd_from_bits_##S(spmd_bits_##S(r) & 0xfffffffff8000000);                        \
        T low = (r - high) + spmd_log_bend_##S(r);                                                 \
        T known = spmd_looked_up_##S(spmd_##NAME##_at, spmd_bits_##S(m) >> 48);                    \
        T most = k * UNIT + known, part = high * SCALE, sum = most + part;                         \
        T rest = low * (SCALE + REST) + (high * REST + k * UNIT_REST);                             \
        return spmd_log_ends_##S(a, sum + (((most - sum) + part) + rest));                         \
    }
SPMD_LANES_F64(SPMD_LOG_SCALED_F64, log2, 1, -0., 0x1.7154768p0, -0x1.6a3e80f444178p-27)
SPMD_LANES_F64(SPMD_LOG_SCALED_F64, log10, 0x1.344135098p-2, 0x1.de7fbcc47c4adp-36, 0x1.bcb7b18p-2,
               -0x1.6c8d78e6acaa4p-29)

/* Of a type: 2^MANTISSA; ln 2 in two parts. */
#define SPMD_LOG(S, T, U, H, E, MANTISSA, BIAS, WHOLE, LN2, REST)                                  \
    static inline T spmd_log_of_##S(T a)                                                           \
    {                                                                                              \
        T k, c, m = spmd_log_parts_##S(a, &k), r = spmd_log_near_##S(m, spmd_log_inverse, &c);     \
        return spmd_log_ends_##S(a, spmd_log_sum_##S(m, r, k));                                    \
    }                                                                                              \
    /* What 1 + a loses is added to r (Knuth's sum of two numbers); the sign is that of a. */      \
    static inline T spmd_log1p_of_##S(T a)                                                         \
    {                                                                                              \
        U e;                                                                                       \
        T u = 1 + a, back = u - 1, lost = (1 - (u - back)) + (a - back);                           \
        T c, m = spmd_log_reduced_##S(u, &e), r = spmd_log_near_##S(m, spmd_log_inverse, &c);      \
        lost *= spmd_from_bits_##S((2 * BIAS + 1 - e) << MANTISSA) * (E)0.5;                       \
        T result = spmd_log_sum_##S(m, r + lost * c, spmd_log_whole_##S(e) - BIAS);                \
        return spmd_signed_##S(spmd_log_ends_##S(u, result), a);                                   \
    }                                                                                              \
    /* log1p(x + x^2 / (1 + sqrt(1 + x^2))); log(2 x) of what has squares out of range */          \
    static inline T spmd_asinh_of_##S(T a)                                                         \
    {                                                                                              \
        T size = spmd_size_##S(a), none = spmd_all_##S(0);                                         \
        H far = spmd_less_##S(spmd_all_##S(2 * WHOLE), size);                                      \
        T x = spmd_select_##S(far, spmd_all_##S(1), size), square = x * x;                         \
        T sum = x + square / (1 + spmd_root_##S(1 + square));                                      \
        T result = spmd_log1p_of_##S(spmd_select_##S(far, size, sum));                             \
        return spmd_signed_##S(result + spmd_select_##S(far, spmd_all_##S(LN2 + REST), none), a);  \
    }                                                                                              \
    static inline T spmd_acosh_of_##S(T a)                                                         \
    {                                                                                              \
        T x = a - 1, one = spmd_all_##S(1);                                                        \
        H far = spmd_less_##S(spmd_all_##S(2 * WHOLE), a);                                         \
        T y = spmd_select_##S(far, one, x), sum = y + spmd_root_##S(2 * y + y * y);                \
        T result = spmd_log1p_of_##S(spmd_select_##S(far, a, sum));                                \
        result += spmd_select_##S(far, spmd_all_##S(LN2 + REST), spmd_all_##S(0));                 \
        return spmd_select_##S(spmd_less_##S(a, one), spmd_all_##S((E)NAN), result);               \
    }                                                                                              \
    static inline T spmd_atanh_of_##S(T a)                                                         \
    {                                                                                              \
        T size = spmd_size_##S(a);                                                                 \
        return spmd_signed_##S((E)0.5 * spmd_log1p_of_##S(2 * size / (1 - size)), a);              \
    }
SPMD_LANES_F32(SPMD_LOG, 0x1p23f, 0x1.62e4p-1f, 0x1.7f7d1cp-20f)
SPMD_LANES_F64(SPMD_LOG, 0x1p52, 0x1.62e42fefp-1, 0x1.473de6af278edp-34)

#endif
