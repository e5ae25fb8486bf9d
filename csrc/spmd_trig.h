/* sin, cos and tan of floats as plain arithmetic; of what is far from 0 by libm (spmd_rare.h).
 *
 * Reduction: x = k pi / 2 + r, where pi / 2 is a sum of four numbers and k times each of the first
 * three is exact (Cody and Waite). What each difference loses is kept. float is reduced in double.
 * Then polynomials of sin and cos of least error (Remez) on |r| <= pi / 4, and k chooses.
 * Within 1.6 (float) and 1 (double) units of the last place, tan within 3.5 and 2.5.
 */
#ifndef SPMD_TRIG_H
#define SPMD_TRIG_H

#include "spmd_rare.h"
#include "spmd_lanes.h"

/* x - k pi / 2, and what it lacks */
static inline double spmd_turned_f64(double x, double k, double *more)
{
    double first = k * 0x1.921fb544p0, second = k * 0x1.0b4611a6p-34, third = k * 0x1.3198a2ep-69;
    double a = x - first, b = a - second, c = b - third;
    double lost = (((a - b) - second) + ((b - c) - third)) - k * 0x1.b839a252049c1p-104;
    double r = c + lost;
    *more = (c - r) + lost;
    return r;
}

static inline float spmd_turned_f32(float x, float k)
{
    double turns = (double)k;
    return spmd_round_f32(((double)x - turns * 0x1.921fb544p0) - turns * 0x1.0b4611a626331p-34);
}

/* (sin(r) - r) / r^3 and (cos(r) - 1 + z / 2) / z^2, where z = r^2 */
static inline double spmd_sin_series_f64(double z)
{
    double square = z * z;
    return SPMD_FOUR(z, square, -0x1.5555555555549p-3, 0x1.111111110f874p-7, -0x1.a01a019c10c34p-13,
                     0x1.71de3576f583bp-19)
         + square * square * (-0x1.ae5e659debf05p-26 + z * 0x1.5d92d2145de11p-33);
}

static inline double spmd_cos_series_f64(double z)
{
    double square = z * z;
    return SPMD_FOUR(z, square, 0x1.555555555554cp-5, -0x1.6c16c16c15177p-10, 0x1.a01a019cb10bdp-16,
                     -0x1.27e4f8096a85ap-22)
         + square * square * (0x1.1ee9eb8a6905cp-29 + z * -0x1.8fae699ee2b53p-37);
}

static inline float spmd_sin_series_f32(float z)
{
    return -0x1.555542p-3f + z * (0x1.1105bep-7f + z * -0x1.98c1fap-13f);
}

static inline float spmd_cos_series_f32(float z)
{
    return 0x1.555548p-5f + z * (-0x1.6c0ad2p-10f + z * 0x1.998426p-16f);
}

/* sin and cos of |a| - k pi / 2; the last bits of what it returns are those of k */
static inline uint32_t spmd_turned_waves_f32(float a, float *sine, float *cosine)
{
    float size = fabsf(a), sum = size * 0x1.45f306p-1f + 0x1.8p23f;
    float r = spmd_turned_f32(size, sum - 0x1.8p23f), z = r * r;
    *sine = r + r * z * spmd_sin_series_f32(z);
    *cosine = (1 - 0.5f * z) + z * z * spmd_cos_series_f32(z);
    return spmd_bits_f32(sum);
}

static inline uint64_t spmd_turned_waves_f64(double a, double *sine, double *cosine)
{
    double size = fabs(a), sum = size * 0x1.45f306dc9c883p-1 + 0x1.8p52, more;
    double r = spmd_turned_f64(size, sum - 0x1.8p52, &more), z = r * r, half = 0.5 * z;
    double near = 1 - half;
    *sine = r + (r * z * spmd_sin_series_f64(z) + more * near);
    *cosine = near + (((1 - near) - half) + (z * z * spmd_cos_series_f64(z) - r * more));
    return spmd_bits_f64(sum);
}

/* Of a type: its bits; how many they are; from where on libm. */
#define SPMD_TRIG(S, T, U, F, BITS, FAR)                                                           \
    SPMD_RARE_##S(spmd_rare_sin_##S, (a >= -FAR) & (a <= FAR), sin##F(a))                          \
    SPMD_RARE_##S(spmd_rare_cos_##S, (a >= -FAR) & (a <= FAR), cos##F(a))                          \
    SPMD_RARE_##S(spmd_rare_tan_##S, (a >= -FAR) & (a <= FAR), tan##F(a))                          \
    static inline T spmd_flipped_##S(T x, U sign) /* where the last bit of sign is set */          \
    {                                                                                              \
        return spmd_from_bits_##S(spmd_bits_##S(x) ^ sign << (BITS - 1));                          \
    }                                                                                              \
    static inline T spmd_sin_##S(T a)                                                              \
    {                                                                                              \
        T sine, cosine;                                                                            \
        U k = spmd_turned_waves_##S(a, &sine, &cosine);                                            \
        T wave = spmd_flipped_##S(spmd_select_##S(k & 1, cosine, sine), k >> 1);                   \
        return spmd_rare_sin_##S(a, a, spmd_flipped_##S(wave, spmd_bits_##S(a) >> (BITS - 1)));    \
    }                                                                                              \
    static inline T spmd_cos_##S(T a)                                                              \
    {                                                                                              \
        T sine, cosine;                                                                            \
        U k = spmd_turned_waves_##S(a, &sine, &cosine);                                            \
        T wave = spmd_flipped_##S(spmd_select_##S(k & 1, sine, cosine), (k + 1) >> 1);             \
        return spmd_rare_cos_##S(a, a, wave);                                                      \
    }                                                                                              \
    static inline T spmd_tan_##S(T a)                                                              \
    {                                                                                              \
        T sine, cosine;                                                                            \
        U k = spmd_turned_waves_##S(a, &sine, &cosine), odd = k & 1;                               \
        T ratio = spmd_select_##S(odd, cosine, sine) / spmd_select_##S(odd, sine, cosine);         \
        ratio = spmd_flipped_##S(ratio, k ^ spmd_bits_##S(a) >> (BITS - 1));                       \
        return spmd_rare_tan_##S(a, a, ratio);                                                     \
    }

SPMD_TRIG(f32, float, uint32_t, f, 32, 0x1p18f)
SPMD_TRIG(f64, double, uint64_t, , 64, 0x1p20)

#endif
