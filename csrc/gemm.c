/* Products of matrices: by our own tiles where they are faster than the BLAS, else by the BLAS.
 *
 * Images call these under the names and with the arguments of CBLAS, sgemm and dgemm. The limits
 * below were measured beside OpenBLAS 0.3.31, with AVX-512 and with AVX2, by
 * `make figures ARGS=products`.
 */
#include "engine.h"

#define ROW_MAJOR 101 /* as CBLAS numbers them */
#define TRANSPOSED 112

/* Above so many products OpenBLAS, which copies both matrices, is as fast. */
#define MOST_WORK 0x1p27
/* Up to here OpenBLAS has kernels of its own on AVX-512, which copy nothing. */
#define LEAST_WORK_AVX512 1e6
/* With fewer rows of a, the copy of a transposed b takes longer than its products. */
#define LEAST_ROWS_TRANSPOSED 8
#define LEAST_ROWS_TRANSPOSED_SMALL 24

typedef void blas_f32(int, int, int, int, int, int, float, const float *, int, const float *, int,
                      float, float *, int);
typedef void blas_f64(int, int, int, int, int, int, double, const double *, int, const double *,
                      int, double, double *, int);
typedef void tiles_f32(int, int, int64_t, int64_t, int64_t, float, const float *, int64_t,
                       const float *, int64_t, int, float *, int64_t);
typedef void tiles_f64(int, int, int64_t, int64_t, int64_t, double, const double *, int64_t,
                       const double *, int64_t, int, double *, int64_t);

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
tiles_f32 spmd_gemm_f32_avx2, spmd_gemm_f32_avx512;
tiles_f64 spmd_gemm_f64_avx2, spmd_gemm_f64_avx512;
#else
#define spmd_gemm_f32_avx2 NULL
#define spmd_gemm_f64_avx2 NULL
#define spmd_gemm_f32_avx512 NULL
#define spmd_gemm_f64_avx512 NULL
#define __builtin_cpu_supports(feature) 0
#endif

/* Set once, before an image may call. */
static blas_f32 *blas_sgemm;
static blas_f64 *blas_dgemm;
static tiles_f32 *tiles_sgemm;
static tiles_f64 *tiles_dgemm;
static int has_small_kernels;

/* Whether the tiles are faster than the BLAS. */
static int is_faster(int order, int a_is_transposed, int b_is_transposed, int m, int n, int k)
{
    double work = (double)m * n * k;

    if (order != ROW_MAJOR || m < 1 || n < 1 || k < 1 || work > MOST_WORK)
        return 0;
    if (has_small_kernels && work <= LEAST_WORK_AVX512)
        return b_is_transposed && !a_is_transposed && m >= LEAST_ROWS_TRANSPOSED_SMALL;
    return !b_is_transposed || m >= LEAST_ROWS_TRANSPOSED;
}

#define GEMM(name, T)                                                                              \
    static void name(int order, int op_a, int op_b, int m, int n, int k, T alpha, const T *a,      \
                     int lda, const T *b, int ldb, T beta, T *c, int ldc)                          \
    {                                                                                              \
        int trans_a = op_a == TRANSPOSED, trans_b = op_b == TRANSPOSED;                            \
                                                                                                   \
        if ((beta == 0 || beta == 1) && is_faster(order, trans_a, trans_b, m, n, k))               \
            tiles_##name(trans_a, trans_b, m, n, k, alpha, a, lda, b, ldb, beta == 1, c, ldc);     \
        else                                                                                       \
            blas_##name(order, op_a, op_b, m, n, k, alpha, a, lda, b, ldb, beta, c, ldc);          \
    }
GEMM(sgemm, float)
GEMM(dgemm, double)

void *spmd_gemm_beside(void *blas, int bytes)
{
    int avx512 = __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl") &&
                 __builtin_cpu_supports("avx512bw");

    if (!avx512 && !(__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")))
        return blas;
    has_small_kernels = avx512;
    if (bytes == sizeof(float)) {
        blas_sgemm = (blas_f32 *)blas;
        tiles_sgemm = avx512 ? spmd_gemm_f32_avx512 : spmd_gemm_f32_avx2;
        return (void *)sgemm;
    }
    blas_dgemm = (blas_f64 *)blas;
    tiles_dgemm = avx512 ? spmd_gemm_f64_avx512 : spmd_gemm_f64_avx2;
    return (void *)dgemm;
}
