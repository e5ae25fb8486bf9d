/* What few programs call: divisors, the parts of floats, the functions of mathematical physics.
 *
 * Names end as in spmd_support.h, which only images that call one of these include together with
 * this. Results are NumPy's, and scipy.special's, but for the last bits.
 */
#ifndef SPMD_SPECIAL_H
#define SPMD_SPECIAL_H

#include "spmd_support.h"

/* -std=c11 hides what POSIX adds to libm */
extern double lgamma_r(double, int *), j0(double), j1(double), y0(double), y1(double);

/* ---- integers ---- */

#define SPMD_DIVISORS(S, T, U)                                                                     \
    static inline T spmd_gcd_##S(T a, T b)                                                         \
    {                                                                                              \
        U p = (U)spmd_abs_##S(a), q = (U)spmd_abs_##S(b);                                          \
        while (q) {                                                                                \
            U rest = (U)(p % q);                                                                   \
            p = q;                                                                                 \
            q = rest;                                                                              \
        }                                                                                          \
        return (T)p;                                                                               \
    }                                                                                              \
    static inline T spmd_lcm_##S(T a, T b)                                                         \
    {                                                                                              \
        U divisor = (U)spmd_gcd_##S(a, b);                                                         \
        return (T)(divisor ? (U)((U)spmd_abs_##S(a) / divisor * (U)spmd_abs_##S(b)) : 0);          \
    }

SPMD_SIGNED(SPMD_DIVISORS)
SPMD_UNSIGNED(SPMD_DIVISORS)

/* ---- parts of floats ---- */

/* Of a type: its bits; libm's ending; the bits of its mantissa; what is added to exponents; its
 * least normal number; a power of two that makes normal numbers of all, and its exponent; the
 * greatest power of two; one that numbers are made smaller by, and how much.
 * ldexp: three factors, of which the last one alone rounds, as in musl's scalbn. */
#define SPMD_PARTS(S, T, U, I, F, MANTISSA, BIAS, NORMAL, SCALE, SCALED, GREATEST, DOWN, DOWN_BY)  \
    static inline T spmd_nextafter_##S(T a, T b) { return nextafter##F(a, b); }                    \
    /* a times one of the first factors; *n is what is left */                                     \
    static inline T spmd_nearer_##S(T a, I *n)                                                     \
    {                                                                                              \
        U over = *n > BIAS, under = *n < 1 - BIAS;                                                 \
        *n += (I)(((0 - over) & (U)-BIAS) + ((0 - under) & DOWN_BY));                              \
        return a * spmd_select_##S(over, GREATEST, spmd_select_##S(under, DOWN, 1));               \
    }                                                                                              \
    static inline T spmd_ldexp_##S(T a, int64_t b)                                                 \
    {                                                                                              \
        I n = (I)spmd_max(spmd_min(b, 4 * BIAS), -4 * BIAS);                                       \
        a = spmd_nearer_##S(a, &n);                                                                \
        a = spmd_nearer_##S(a, &n);                                                                \
        n = (I)spmd_max(spmd_min(n, BIAS), 1 - BIAS);                                              \
        return a * spmd_from_bits_##S((U)(n + BIAS) << MANTISSA);                                  \
    }                                                                                              \
    /* whether a is 0, infinite or NaN; else its bits, those of a normal number */                 \
    static inline U spmd_special_##S(T a, U *bits, U *small)                                       \
    {                                                                                              \
        T size = fabs##F(a);                                                                       \
        *small = size < NORMAL;                                                                    \
        *bits = spmd_bits_##S(spmd_select_##S(*small, a * SCALE, a));                              \
        return (size == 0) | !(size < (T)INFINITY);                                                \
    }                                                                                              \
    static inline T spmd_mantissa_##S(T a)                                                         \
    {                                                                                              \
        U bits, small, special = spmd_special_##S(a, &bits, &small);                               \
        U ends = (U)(2 * BIAS + 1) << MANTISSA, half = (U)(BIAS - 1) << MANTISSA;                  \
        return spmd_select_##S(special, a, spmd_from_bits_##S((bits & ~ends) | half));             \
    }                                                                                              \
    static inline int32_t spmd_exponent_##S(T a)                                                   \
    {                                                                                              \
        U bits, small, special = spmd_special_##S(a, &bits, &small);                               \
        U exponent = (bits >> MANTISSA & (2 * BIAS + 1)) - (BIAS - 1) - ((0 - small) & SCALED);    \
        return (int32_t)(exponent & (special - 1));                                                \
    }

SPMD_PARTS(f32, float, uint32_t, int32_t, f, 23, 127, 0x1p-126f, 0x1p25f, 25, 0x1p127f, 0x1p-102f,
           102)
SPMD_PARTS(f64, double, uint64_t, int64_t, , 52, 1023, 0x1p-1022, 0x1p54, 54, 0x1p1023, 0x1p-969,
           969)

/* ---- special functions: of floats as of doubles, rounded ---- */

#define SPMD_EULER 0.57721566490153286060651209008240243
#define SPMD_PI 3.14159265358979323846264338327950288

static inline double spmd_gamma_f64(double x)
{
    if (x == 0)
        return copysign(INFINITY, x);
    return x < 0 && (x == floor(x) || isinf(x)) ? NAN : tgamma(x);
}

static inline double spmd_gammaln_f64(double x)
{
    int sign;
    return x == -INFINITY ? x : lgamma_r(x, &sign);
}

/* By the reflection, the recurrence up to 10, and Stirling's series (Abramowitz, Stegun 6.3). */
static inline double spmd_psi_f64(double x)
{
    double below = 0;
    if (x == 0 || x != x || x == INFINITY)
        return x == 0 ? copysign(INFINITY, -x) : x;
    if (x < 0) {
        double part = x - rint(x);
        if (part == 0 || isinf(x))
            return NAN;
        below = SPMD_PI / tan(SPMD_PI * part);
        x = 1 - x;
    }
    if (x <= 10 && x == floor(x)) {
        double sum = -SPMD_EULER;
        for (int k = 1; k < (int)x; k++)
            sum += 1.0 / k;
        return sum - below;
    }
    double sum = 0;
    for (; x < 10; x += 1)
        sum += 1 / x;
    double z = 1 / (x * x);
    double series = z * (1.0 / 12 - z * (1.0 / 120 - z * (1.0 / 252 - z * (1.0 / 240 - z * (
                    1.0 / 132 - z * (691.0 / 32760 - z / 12))))));
    return log(x) - 0.5 / x - series - sum - below;
}

/* Hurwitz' zeta function: the sum of (q + k)^-s over k >= 0. Its first terms, and what is left by
 * the formula of Euler and Maclaurin: Bernoulli numbers over factorials (ibid. 23.2). */
static inline double spmd_zeta_above_0(double s, double q)
{
    static const double factors[] = {
        1.0 / 12, -1.0 / 720, 1.0 / 30240, -1.0 / 1209600, 1.0 / 47900160,
        -691.0 / 1307674368000.0, 1.0 / 74724249600.0, -3617.0 / 10670622842880000.0,
        43867.0 / 5109094217170944000.0, -174611.0 / 802857662698291200000.0,
    };
    if (q > 1e8)
        return (1 / (s - 1) + 1 / (2 * q)) * pow(q, 1 - s);
    double sum = 0, term = pow(q, -s);
    for (; q < 10; q += 1, term = pow(q, -s))
        sum += term;
    double rising = s * term / q; /* s (s + 1) … q^-(s + k) */
    sum += term * q / (s - 1) + term / 2;
    for (int k = 0; k < 10; k++) {
        sum += rising * factors[k];
        rising *= (s + 2 * k + 1) * (s + 2 * k + 2) / (q * q);
    }
    return sum;
}

/* Below 0 for whole s: what is above 0, and what is below it, reflected. */
static inline double spmd_zeta_f64(double s, double q)
{
    if (s != s || q != q || s < 1)
        return NAN;
    if (s == 1 || (q <= 0 && q == floor(q)))
        return INFINITY;
    if (isinf(s))
        return pow(fabs(q), -s);
    if (q > 0)
        return spmd_zeta_above_0(s, q);
    if (s != floor(s))
        return NAN;
    double part = q - floor(q), sign = fmod(s, 2) == 0 ? 1 : -1;
    double below = spmd_zeta_above_0(s, 1 - part) - spmd_zeta_above_0(s, 1 - q);
    return spmd_zeta_above_0(s, part) + sign * below;
}
static inline float spmd_zeta_f32(float s, float q) { return spmd_round_f32(spmd_zeta_f64(s, q)); }

/* exp(-|x|) times the modified Bessel function of order 0 or 1: its series of positive terms, and
 * for large x the asymptotic one, whose terms fall below the last bit (9.7.1 there). */
static inline double spmd_bessel_i(double x, int order)
{
    double a = fabs(x), term = 1, sum = 1;
    if (a != a || a == INFINITY)
        return a != a ? a : 0;
    if (a < 25) {
        term = sum = order ? a / 2 : 1;
        for (int k = 1; term > sum * 1e-17; k++) {
            term *= a * a / (4.0 * k * (k + order));
            sum += term;
        }
        sum *= exp(-a);
    } else {
        for (int k = 1; fabs(term) > 1e-17; k++) {
            term *= ((2.0 * k - 1) * (2.0 * k - 1) - 4 * order) / (8 * k * a);
            sum += term;
        }
        sum /= 4 * sqrt(SPMD_PI / 8 * a); /* 2 pi a may be infinite */
    }
    return order && x < 0 ? -sum : sum;
}

static inline double spmd_i0e_f64(double x) { return spmd_bessel_i(x, 0); }
static inline double spmd_i1e_f64(double x) { return spmd_bessel_i(x, 1); }

/* of infinities NaN: 0 times infinity */
static inline double spmd_from_scaled(double scaled, double x)
{
    double half = exp(fabs(x) / 2); /* exp(|x|) alone may be infinite where the product is not */
    return scaled * half * half;
}

static inline double spmd_i0_f64(double x) { return spmd_from_scaled(spmd_bessel_i(x, 0), x); }
static inline double spmd_i1_f64(double x) { return spmd_from_scaled(spmd_bessel_i(x, 1), x); }

/* of infinities these are NaN, as scipy.special's */
static inline double spmd_j0_f64(double x) { return isinf(x) ? NAN : j0(x); }
static inline double spmd_j1_f64(double x) { return isinf(x) ? NAN : j1(x); }
static inline double spmd_y0_f64(double x) { return x < 0 || isinf(x) ? NAN : y0(x); }
static inline double spmd_y1_f64(double x) { return x < 0 || isinf(x) ? NAN : y1(x); }

/* The x with erfc(x) = y, 0 < y <= 1: a rational start (26.2.22 there), then Halley's steps. */
static inline double spmd_erfc_root(double y)
{
    double t = sqrt(-2 * log(y / 2));
    double x = t - (2.30753 + t * 0.27061) / (1 + t * (0.99229 + t * 0.04481));
    x *= 0.7071067811865476;
    for (int k = 0; k < 3; k++) {
        double slope = -1.1283791670955126 * exp(-x * x), step = (erfc(x) - y) / slope;
        x -= step / (1 + x * step);
    }
    return x;
}

static inline double spmd_erfcinv_f64(double y)
{
    if (!(y > 0 && y < 2))
        return y == 0 ? INFINITY : y == 2 ? -INFINITY : NAN;
    return y <= 1 ? spmd_erfc_root(y) : -spmd_erfc_root(2 - y);
}

static inline double spmd_erfinv_f64(double y)
{
    double a = fabs(y);
    if (!(a < 1))
        return a == 1 ? copysign(INFINITY, y) : NAN;
    if (a > 0.5)
        return copysign(spmd_erfc_root(1 - a), y);
    double x = a * 0.8862269254527580;
    for (int k = 0; k < 4; k++) {
        double slope = 1.1283791670955126 * exp(-x * x), step = (erf(x) - a) / slope;
        x -= step / (1 + x * step);
    }
    return copysign(x, y);
}

static inline double spmd_erf_f64(double x) { return erf(x); }
static inline double spmd_erfc_f64(double x) { return erfc(x); }

#define SPMD_ROUNDED(X)                                                                            \
    X(erf) X(erfc) X(erfinv) X(erfcinv) X(gamma) X(gammaln) X(psi) X(i0) X(i1) X(i0e) X(i1e) X(j0) \
    X(j1) X(y0) X(y1)
#define SPMD_ROUND(name)                                                                           \
    static inline float spmd_##name##_f32(float x) { return spmd_round_f32(spmd_##name##_f64(x)); }

SPMD_ROUNDED(SPMD_ROUND)

#endif
