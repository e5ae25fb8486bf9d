/* Random numbers for processors with AVX-512: see random.h. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx512f,avx512dq,avx512vl,avx512bw,prefer-vector-width=512")
#define SPMD_RANDOM_FILL spmd_random_fill_avx512
#include "random.h"
#else
typedef int spmd_no_avx512; /* a file has something in it */
#endif
