#include "c_kernels.h"

#include <complex.h>
#include <math.h>
#include <stdbool.h>
#include <stdint.h>

#define SMOOTH(T, NAME)                                                                            \
    void NAME(const T *u, T *out, int64_t rows, int64_t cols)                                      \
    {                                                                                              \
        const int64_t wide = cols + 2;                                                             \
        for (int64_t i = 0; i < rows; i++)                                                         \
            for (int64_t j = 0; j < cols; j++) {                                                   \
                const T *at = u + (i + 1) * wide + j + 1;                                          \
                out[i * cols + j] = at[0] * MIDDLE - (at[-1] + at[1] + at[-wide] + at[wide]);      \
            }                                                                                      \
    }

SMOOTH(float, smooth_float32)
SMOOTH(double, smooth_float64)
SMOOTH(int64_t, smooth_int64)

void part(const double *x, double low, int64_t times, double *above, float *below, int64_t n)
{
    for (int64_t i = 0; i < n; i++) {
        above[i] = x[i] > low ? times * sin(x[i]) : 0;
        below[i] = x[i] > low ? 0 : (float)(times * x[i]);
    }
}

void turned(const double _Complex *z, double _Complex by, bool conjugate, uint8_t added,
            double _Complex *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = (conjugate ? conj(z[i]) : z[i]) * by + added;
}

void placed(const double *u, const int64_t *at, double *out, int64_t rows, int64_t cols)
{
    for (int64_t i = 0; i < rows; i++)
        for (int64_t j = 0; j < cols; j++)
            out[i * cols + j] += u[i * cols + j] + 10 * (at[0] + i) + (at[1] + j);
}

void added(const double *a, const double *b, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = a[i] + b[i];
}

void slopes(const double *u, double scale, double *out, int64_t n)
{
    for (int64_t i = 0; i < n; i++)
        out[i] = scale * (u[i + 2] - u[i]) * u[i + 1];
}

void polynomial(const double *c, int64_t terms, const float *x, int64_t n, double by, float *out,
                int64_t m, int *most)
{
    *most = 0;
    for (int64_t i = 0; i < m && i < n; i++) {
        double total = 0;
        for (int64_t k = terms - 1; k >= 0; k--)
            total = total * x[i] + c[k];
        out[i] = (float)(by * total);
        if (out[i] > out[*most])
            *most = (int)i;
    }
}
