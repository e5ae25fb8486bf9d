/* Products of matrices for processors with AVX-512: see gemm.h. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC optimize("O3")
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
#include <immintrin.h>
#include <stdint.h>

#define ROWS 12

#define T float
#define WORD int32_t
#define LANES 16
#define FMA _mm512_fmadd_ps
#define GEMM spmd_gemm_f32_avx512
#include "gemm.h"

#define T double
#define WORD int64_t
#define LANES 8
#define FMA _mm512_fmadd_pd
#define GEMM spmd_gemm_f64_avx512
#include "gemm.h"
#else
typedef int spmd_no_gemm_avx512; /* a file has something in it */
#endif
