/* Products of matrices for processors with AVX2: see gemm.h. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#pragma GCC target("avx2,fma")
#include <immintrin.h>
#include <stdint.h>

#define ROWS 6

#define T float
#define WORD int32_t
#define LANES 8
#define FMA _mm256_fmadd_ps
#define GEMM spmd_gemm_f32_avx2
#include "gemm.h"

#define T double
#define WORD int64_t
#define LANES 4
#define FMA _mm256_fmadd_pd
#define GEMM spmd_gemm_f64_avx2
#include "gemm.h"
#else
typedef int spmd_no_gemm_avx2; /* a file has something in it */
#endif
