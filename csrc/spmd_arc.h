/* asin, acos, atan and atan2 of floats as plain arithmetic.
 *
 * atan(x) = pi / 2 - atan(1 / x), and asin(x) = pi / 2 - 2 asin(sqrt((1 - x) / 2)): what is left is
 * |x| <= 1 and |x| <= 1 / 2, for polynomials of least relative error (Remez), 2^-28.5 and 2^-31 of
 * float, 2^-55 of double. What pi lacks as a number is added first.
 * Within 2.5 units of the last place (asin), 2 (atan, atan2) and 1.5 (acos).
 */
#ifndef SPMD_ARC_H
#define SPMD_ARC_H

#include "spmd_lanes.h"

/* (atan(x) - x) / x^3 and (asin(x) - x) / x^3, where z = x^2 */
static inline float spmd_atan_series_f32(float z)
{
    float square = z * z, fourth = square * square;
    float low = SPMD_FOUR(z, square, -0x1.55553ep-2f, 0x1.9991fep-3f, -0x1.2421b6p-3f,
                          0x1.c099fep-4f);
    float high = SPMD_FOUR(z, square, -0x1.58348ep-4f, 0x1.dac9dap-5f, -0x1.fed14cp-6f,
                           0x1.65a646p-7f);
    return low + fourth * (high + fourth * -0x1.d62fc8p-10f);
}

static inline double spmd_atan_series_f64(double z)
{
    double square = z * z, fourth = square * square;
    double a = SPMD_FOUR(z, square, -0x1.555555555544cp-2, 0x1.99999999840d2p-3,
                         -0x1.2492491fa171dp-3, 0x1.c71c709dfdebap-4);
    double b = SPMD_FOUR(z, square, -0x1.745d022f82fa9p-4, 0x1.3b12b2dae54d8p-4,
                         -0x1.11089ca6d1209p-4, 0x1.e17813bb9662bp-5);
    double c = SPMD_FOUR(z, square, -0x1.ad32ada79ed63p-5, 0x1.7ee3d30205e31p-5,
                         -0x1.4f44d667024cbp-5, 0x1.17155e0958b73p-5);
    double d = SPMD_FOUR(z, square, -0x1.a72569a2a42bcp-6, 0x1.162b05cef9ceep-6,
                         -0x1.2cf5a4045c1dbp-7, 0x1.f969008affc10p-9);
    double e = -0x1.312781c3c01efp-10 + z * 0x1.d3b633c54028bp-13
             + square * -0x1.53e1cc8255042p-16;
    return a + fourth * (b + fourth * (c + fourth * (d + fourth * e)));
}

static inline float spmd_asin_series_f32(float z)
{
    float square = z * z;
    return SPMD_FOUR(z, square, 0x1.55554cp-3f, 0x1.333892p-4f, 0x1.6cabb4p-5f, 0x1.04ab0ep-5f)
         + square * square * (0x1.d7a718p-7f + z * 0x1.33d76cp-5f);
}

static inline double spmd_asin_series_f64(double z)
{
    double square = z * z, fourth = square * square;
    double a = SPMD_FOUR(z, square, 0x1.5555555555384p-3, 0x1.333333336fddep-4,
                         0x1.6db6db419b937p-5, 0x1.f1c72c7fd994ap-6);
    double b = SPMD_FOUR(z, square, 0x1.6e89edb3acf6dp-6, 0x1.1c6c430970f5dp-6,
                         0x1.c6f65867b7451p-7, 0x1.8ef2fd473304ap-7);
    double c = SPMD_FOUR(z, square, 0x1.aa358fd641ffep-8, 0x1.41098aa505ecdp-6,
                         -0x1.0b807f3ce7cdfp-6, 0x1.05feebc914e5cp-5);
    return a + fourth * (b + fourth * c);
}

/* Of a type: its bits; how many they are; pi, and what it lacks as a part of it. */
#define SPMD_ARC(S, T, U, F, BITS, PI, LACKS)                                                      \
    static inline T spmd_atan_near_##S(T t) /* |t| <= 1 */                                         \
    {                                                                                              \
        T z = t * t;                                                                               \
        return t + t * z * spmd_atan_series_##S(z);                                                \
    }                                                                                              \
    static inline T spmd_atan_##S(T a)                                                             \
    {                                                                                              \
        T size = fabs##F(a);                                                                       \
        U far = size > 1;                                                                          \
        T angle = spmd_atan_near_##S(spmd_select_##S(far, -1 / size, size));                       \
        T turn = spmd_select_##S(far, PI / 2, 0);                                                  \
        return copysign##F(turn + (angle + turn * LACKS), a);                                      \
    }                                                                                              \
    static inline T spmd_atan2_##S(T a, T b)                                                       \
    {                                                                                              \
        T up = fabs##F(a), right = fabs##F(b);                                                     \
        U steep = up > right, left = spmd_bits_##S(b) >> (BITS - 1);                               \
        T less = spmd_select_##S(steep, right, up), more = spmd_select_##S(steep, up, right);      \
        T ratio = less / more;                                                                     \
        ratio = spmd_select_##S(less == more, spmd_select_##S(more > 0, 1, 0), ratio);             \
        T turn = spmd_select_##S(steep, PI / 2, spmd_select_##S(left, PI, 0));                     \
        U angle = spmd_bits_##S(spmd_atan_near_##S(ratio)) ^ (steep ^ left) << (BITS - 1);         \
        return copysign##F(turn + (spmd_from_bits_##S(angle) + turn * LACKS), a);                  \
    }                                                                                              \
    /* half of asin(|a|) from 1/2 on, of its complement */                                         \
    static inline T spmd_asin_near_##S(T size, U far)                                              \
    {                                                                                              \
        T z = spmd_select_##S(far, (T)0.5 * (1 - size), size * size);                              \
        T t = spmd_select_##S(far, sqrt##F(z), size);                                              \
        return t + t * z * spmd_asin_series_##S(z);                                                \
    }                                                                                              \
    static inline T spmd_asin_##S(T a)                                                             \
    {                                                                                              \
        T size = fabs##F(a);                                                                       \
        U far = size > (T)0.5;                                                                     \
        T angle = spmd_asin_near_##S(size, far);                                                   \
        T other = PI / 2 - (2 * angle - PI / 2 * LACKS);                                           \
        return copysign##F(spmd_select_##S(far, other, angle), a);                                 \
    }                                                                                              \
    static inline T spmd_acos_##S(T a)                                                             \
    {                                                                                              \
        T size = fabs##F(a);                                                                       \
        U far = size > (T)0.5;                                                                     \
        T angle = copysign##F(spmd_asin_near_##S(size, far), a);                                   \
        T turn = spmd_select_##S(far, spmd_select_##S(a < 0, PI, 0), PI / 2);                      \
        return turn + (spmd_select_##S(far, 2 * angle, -angle) + turn * LACKS);                    \
    }

SPMD_ARC(f32, float, uint32_t, f, 32, 0x1.921fb6p1f, -0x1.de12cap-26f)
SPMD_ARC(f64, double, uint64_t, , 64, 0x1.921fb54442d18p1, 0x1.678afae35cdd1p-55)

#endif
