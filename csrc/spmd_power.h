/* pow and cbrt of floats as plain arithmetic; pow of 0, infinity and NaN by libm (spmd_rare.h).
 *
 * pow: exp(y log(x)), where log(x), found as in spmd_log.h, and the product are sums of two
 * numbers: what a product loses is exact, by Dekker (1971) or a fused instruction. float computes
 * in double.
 * cbrt: x = m 8^q; a polynomial of m^(-1/3), a step towards it (the series of (1 - e)^(-1/3)), and
 * Newton's for the root. All within 1 unit of the last place, pow of float within 0.55.
 */
#ifndef SPMD_POWER_H
#define SPMD_POWER_H

#include "spmd_exp.h"
#include "spmd_log.h"
#include "spmd_rare.h"

/* what spmd_log_at lacks */
SPMD_TABLE(spmd_log_lost) = {
    0, 0x1.29b616c6f7683p-61, -0x1.14277c58fbc5dp-64, -0x1.060808181de27p-67,
    0x1.02cea50a31ba1p-61, -0x1.5081a0113da3p-64, 0x1.9cf9fe98078b2p-64, -0x1.3d21f072d51adp-63,
    -0x1.540b22fdca7ep-63, 0x1.6ed3ff364414p-63, -0x1.3a7012c9b6956p-61, -0x1.722ec3eee9587p-62,
    -0x1.82adca8660da8p-65, -0x1.83083537bead5p-63, 0x1.5a77e4519718fp-61, 0
};
/* |a|^b; a normal, b below 2^51. */
#define SPMD_POWER(S, T, U, H, E, MANTISSA, BIAS, ROUNDS)                                          \
    /* (log(1 + r) - r + r^2 / 2) / r^3 */                                                         \
    static inline T spmd_log_rest_##S(T r)                                                         \
    {                                                                                              \
        T square = r * r, fourth = square * square;                                                \
        T low = SPMD_FOUR(r, square, 0x1.5555555555555p-2, -0x1.000000000004bp-2,                  \
                          0x1.999999999d521p-3, -0x1.55555554c9e9ap-3);                            \
        T high = SPMD_FOUR(r, square, 0x1.249248f80c79fp-3, -0x1.0000015cbc00cp-3,                 \
                           0x1.c71e1376f4a51p-4, -0x1.99a8231e35a50p-4);                           \
        return low + fourth * (high + fourth * (0x1.720acc40f3eecp-4 + r * -0x1.2253195525b07p-4));\
    }                                                                                              \
    /* log(x) of a positive normal number; *more is smaller by 2^-32 at least */                   \
    static inline T spmd_log_twofold_##S(T x, T *more)                                             \
    {                                                                                              \
        U e;                                                                                       \
        T m = spmd_log_reduced_##S(x, &e), k = spmd_log_whole_##S(e) - BIAS;                       \
        T c = spmd_looked_up_##S(spmd_log_inverse, spmd_bits_##S(m) >> 48);                        \
        T high = spmd_from_bits_##S(spmd_bits_##S(m) & 0xfffffffff8000000);                        \
        T near = high * c - 1, far = (m - high) * c, r = near + far, rl = (near - r) + far;        \
        T half = -0.5 * r, bend = half * r, bl = spmd_lost_##S(half, r, bend) - r * rl;            \
        T known = k * 0x1.62e42fefp-1 + spmd_looked_up_##S(spmd_log_at, spmd_bits_##S(m) >> 48);   \
        T lost = spmd_looked_up_##S(spmd_log_lost, spmd_bits_##S(m) >> 48);                        \
        T most = known + r, all = most + bend;                                                     \
        T rest = (((known - most) + r) + ((most - all) + bend)) + (rl + bl);                       \
        rest += (k * 0x1.473de6af278edp-34 + lost) - r * bend * 2 * spmd_log_rest_##S(r);          \
        T log = all + rest;                                                                        \
        *more = (all - log) + rest;                                                                \
        return log;                                                                                \
    }                                                                                              \
    static inline T spmd_power_##S(T size, T b)                                                    \
    {                                                                                              \
        T low, log = spmd_log_twofold_##S(size, &low), product = b * log;                          \
        T rest = spmd_lost_##S(b, log, product) + b * low, all = product + rest;                   \
        T x = spmd_at_least_##S(spmd_at_most_##S(all, 710), -746);                                 \
        rest = spmd_select_##S(spmd_same_##S(x, all), (product - all) + rest, spmd_all_##S(0));    \
        T sum = x * 0x1.71547652b82fep+4 + ROUNDS;                                                 \
        return spmd_exp_looked_up_##S(spmd_exp_rest_##S(x, sum) + rest, sum);                      \
    }
SPMD_LANES_F64(SPMD_POWER, 0x1.8p52)

/* near 1 / m and log2(m), where 16 intervals from 1 - 1/64 on have such an m in them */
SPMD_TABLE(spmd_powf_inverse) = {
    1, 0x1.e1e1ep-1, 0x1.c71c8p-1, 0x1.af286p-1, 0x1.9999ap-1, 0x1.86186p-1, 0x1.745d2p-1,
    0x1.642c8p-1, 0x1.55556p-1, 0x1.47ae2p-1, 0x1.3b13cp-1, 0x1.2f684p-1, 0x1.24924p-1,
    0x1.1a7bap-1, 0x1.11112p-1, 0x1.08422p-1
};
SPMD_TABLE(spmd_powf_log2) = {
    0, 0x1.663f86c1d8a22p-4, 0x1.5c01474aa1452p-3, 0x1.fbc1bc5aa17d8p-3,
    0x1.49a76da78a81bp-2, 0x1.91bbae57434ccp-2, 0x1.d6751b6343f11p-2, 0x1.0c105b9807741p-1,
    0x1.2b801d5eb0a44p-1, 0x1.49a76ac4e1dbcp-1, 0x1.669fe6448e44cp-1, 0x1.8280ba3680d5fp-1,
    0x1.9d5db6ea48ccbp-1, 0x1.b7492efd6350bp-1, 0x1.d053ce6d24b32p-1, 0x1.e88c3fee420e1p-1
};
/* As a float wants it, of what is one: x = 2^k m (1 + r), where r has no error, and log2(1 + r) is
 * a polynomial; then 2^y as exp finds it. Errors 2^-37 and 2^-29. */
#define SPMD_POWERF(S, T, U, ...)                                                                  \
    static inline T spmd_powerf_##S(T size, T b)                                                   \
    {                                                                                              \
        U bits = spmd_bits_##S(size), at = bits - 0x3fef800000000000;                              \
        U e = (at + 0x3ff0000000000000) >> 52 | 0x4330000000000000;                                \
        T k = spmd_from_bits_##S(e) - 0x1.00000000003ffp52;                                        \
        T m = spmd_from_bits_##S(bits - (at & 0xfff0000000000000));                                \
        T r = m * spmd_looked_up_##S(spmd_powf_inverse, at >> 48) - 1, square = r * r;             \
        T series = SPMD_FOUR(r, square, 0x1.71547652beca9p0, -0x1.71547652fd806p-1,                \
                             0x1.ec709655f3d26p-2, -0x1.715468995ab6dp-2)                          \
                 + square * square * (0x1.27c5fb7c9ab69p-2 - r * 0x1.ed297c2779325p-3);            \
        T y = 16 * b * ((k + spmd_looked_up_##S(spmd_powf_log2, at >> 48)) + r * series);          \
        y = spmd_at_least_##S(spmd_at_most_##S(y, 4800.), -4800.);                                 \
        T sum = y + 0x1.8p52, t = y - (sum - 0x1.8p52), squared = t * t;                           \
        U two = (spmd_bits_##S(sum) + 1023 * 16) << 48 & 0xfff0000000000000;                       \
        T root = spmd_looked_up_##S(spmd_exp_roots, spmd_bits_##S(sum)) * spmd_from_bits_##S(two); \
        T more = t * 0x1.62e42fea352cfp-5                                                          \
               + squared * (0x1.ebfff5cc10d25p-11 + t * 0x1.c6b4a41ec6eb1p-17);                    \
        return root + root * more;                                                                 \
    }
SPMD_LANES_F64(SPMD_POWERF, )

/* Of a type: 1.5 * 2^MANTISSA; where the sign is. */
#define SPMD_POWER_SIGNED(S, T, U, H, E, MANTISSA, BIAS, ROUNDS, SIGN)                             \
    /* of a negative base the odd powers are negative, and only whole ones are numbers */          \
    static inline T spmd_power_signed_##S(T a, T b, T power)                                       \
    {                                                                                              \
        T sum = b + ROUNDS;                                                                        \
        H none = spmd_less_##S(a, spmd_all_##S(0)) & ~spmd_same_##S(sum - ROUNDS, b);              \
        U minus = spmd_bits_##S(spmd_all_##S((E)-0.0));                                            \
        U odd = spmd_bits_##S(a) & (spmd_bits_##S(sum) << SIGN) & minus;                           \
        power = spmd_from_bits_##S(spmd_bits_##S(power) ^ odd);                                    \
        return spmd_select_##S(none, spmd_all_##S((E)NAN), power);                                 \
    }
SPMD_LANES_F32(SPMD_POWER_SIGNED, 0x1.8p23f, 31)
SPMD_LANES_F64(SPMD_POWER_SIGNED, 0x1.8p52, 63)

#if SPMD_HAS_LANES

#define SPMD_POW_LANES(S, T, U, H, E, MANTISSA, BIAS, F, LEAST, MOST, FAR)                         \
    __attribute__((cold, noinline, unused)) static T spmd_pow_libm_##S(T a, T b, T near, H usual)  \
    {                                                                                              \
        E x[64 / sizeof(E)], y[64 / sizeof(E)], out[64 / sizeof(E)];                               \
        memcpy(x, &a, sizeof a), memcpy(y, &b, sizeof b), memcpy(out, &near, sizeof near);         \
        _Pragma("GCC unroll 1") for (unsigned k = 0; k < 64 / sizeof(E); k++)                      \
            if (!(usual >> k & 1)) out[k] = pow##F(x[k], y[k]);                                    \
        memcpy(&near, out, sizeof near);                                                           \
        return near;                                                                               \
    }                                                                                              \
    static inline T spmd_pow_of_##S(T a, T b)                                                      \
    {                                                                                              \
        T near = spmd_pow_near_##S(a, b), size = spmd_size_##S(a), most = spmd_all_##S(MOST);      \
        H usual = (H)~(spmd_less_##S(size, spmd_all_##S(LEAST)) | spmd_less_##S(most, size)        \
                       | spmd_less_##S(spmd_all_##S(FAR), spmd_size_##S(b))                        \
                       | (H)~spmd_same_##S(a, a) | (H)~spmd_same_##S(b, b));                       \
        return usual == (H)-1 ? near : spmd_pow_libm_##S(a, b, near, usual);                       \
    }
static inline spmd_e64 spmd_pow_near_e64(spmd_e64 a, spmd_e64 b)
{
    return spmd_power_signed_e64(a, b, spmd_power_e64(spmd_size_e64(a), b));
}
/* the half of a vector from this element on, in double */
static inline spmd_e64 spmd_wide_e64(spmd_d32 half)
{
    return __builtin_ia32_cvtps2pd512_mask(half, (spmd_e64){0}, (uint8_t)-1, 4);
}
static inline spmd_d32 spmd_narrow_e64(spmd_e64 x)
{
    return __builtin_ia32_cvtpd2ps512_mask(x, (spmd_d32){0}, (uint8_t)-1, 4);
}
#define SPMD_WIDE(x, k)                                                                            \
    spmd_wide_e64(__builtin_shufflevector(x, x, k, k + 1, k + 2, k + 3, k + 4, k + 5, k + 6, k + 7))
static inline spmd_e32 spmd_pow_near_e32(spmd_e32 a, spmd_e32 b)
{
    spmd_e32 size = spmd_size_e32(a);
    spmd_e64 low = spmd_powerf_e64(SPMD_WIDE(size, 0), SPMD_WIDE(b, 0));
    spmd_e64 high = spmd_powerf_e64(SPMD_WIDE(size, 8), SPMD_WIDE(b, 8));
    spmd_d32 first = spmd_narrow_e64(low);
    spmd_d32 last = spmd_narrow_e64(high);
    return spmd_power_signed_e32(a, b, __builtin_shufflevector(first, last, 0, 1, 2, 3, 4, 5, 6, 7,
                                                               8, 9, 10, 11, 12, 13, 14, 15));
}
SPMD_OF_e32(SPMD_POW_LANES, f, 0x1p-149f, 0x1.fffffep127f, 0x1p22f)
SPMD_OF_e64(SPMD_POW_LANES, , 0x1p-1022, 0x1.fffffffffffffp1023, 0x1p50)

#else

/* Whether arithmetic does, of a base from LEAST on. */
#define SPMD_POW_USUAL(a, b, LEAST, MOST, FAR)                                                     \
    ((((a >= LEAST) & (a <= MOST)) | ((a <= -LEAST) & (a >= -MOST)))                               \
     & ((b >= -FAR) & (b <= FAR)))

SPMD_RARE_f32(spmd_rare_pow_f32, SPMD_POW_USUAL(a, b, 0x1p-149f, 0x1.fffffep127f, 0x1p22f),
              powf(a, b))
SPMD_RARE_f64(spmd_rare_pow_f64, SPMD_POW_USUAL(a, b, 0x1p-1022, 0x1.fffffffffffffp1023, 0x1p50),
              pow(a, b))

static inline float spmd_pow_of_f32(float a, float b)
{
    float power = spmd_round_f32(spmd_powerf_f64(fabs((double)a), b));
    return spmd_rare_pow_f32(a, b, spmd_power_signed_f32(a, b, power));
}
static inline double spmd_pow_of_f64(double a, double b)
{
    return spmd_rare_pow_f64(a, b, spmd_power_signed_f64(a, b, spmd_power_f64(fabs(a), b)));
}

#endif

/* Of a type: 1.5 * 2^MANTISSA; its least normal number; by what smaller ones are scaled, and the
 * root of that. */
#define SPMD_CBRT(S, T, U, H, E, MANTISSA, BIAS, ROUNDS, NORMAL, SCALE, ROOT)                      \
    static inline T spmd_cbrt_##S(T a)                                                             \
    {                                                                                              \
        T size = spmd_size_##S(a), none = spmd_all_##S(0);                                         \
        H small = spmd_less_##S(size, spmd_all_##S(NORMAL));                                       \
        U bits = spmd_bits_##S(spmd_select_##S(small, size * SCALE, size));                        \
        T sum = (spmd_log_whole_##S(bits >> MANTISSA) - (BIAS + 1)) * (E)(1 / 3.) + ROUNDS;        \
        U q = spmd_bits_##S(sum) - spmd_bits_##S(spmd_all_##S(ROUNDS));                            \
        T m = spmd_from_bits_##S(bits - ((2 * q + q) << MANTISSA)), square = m * m;                \
        T root = SPMD_FOUR(m, square, (E)0x1.80a0fcp0, (E)-0x1.86a09ap-1, (E)0x1.57083p-2,         \
                           (E)-0x1.68980ap-4)                                                      \
               + square * square                                                                   \
                     * ((E)0x1.b1fd8fp-7 + m * (E)-0x1.13649fp-10 + square * (E)0x1.1d2d8ep-15);   \
        T e = 1 - m * root * (root * root);                                                        \
        root += root * e * ((E)(1 / 3.) + e * ((E)(2 / 9.) + e * (E)(14 / 81.)));                  \
        T two = root * root, near = m * two;                                                       \
        T result = near + (m - near * near * near) * two * (E)(1 / 3.);                            \
        result *= spmd_power_of_2_##S(sum);                                                        \
        result *= spmd_select_##S(small, spmd_all_##S(ROOT), spmd_all_##S(1));                     \
        H usual = spmd_less_##S(size, spmd_all_##S((E)INFINITY)) & spmd_less_##S(none, size);      \
        return spmd_signed_##S(spmd_select_##S(usual, result, size), a);                           \
    }
SPMD_LANES_F32(SPMD_CBRT, 0x1.8p23f, 0x1p-126f, 0x1p24f, 0x1p-8f)
SPMD_LANES_F64(SPMD_CBRT, 0x1.8p52, 0x1p-1022, 0x1p54, 0x1p-18)

#endif
