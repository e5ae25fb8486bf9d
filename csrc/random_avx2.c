/* Random numbers for processors with AVX2: see random.h. */
#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#pragma GCC target("avx2")
#define SPMD_RANDOM_FILL spmd_random_fill_avx2
#include "random.h"
#else
typedef int spmd_no_avx2; /* a file has something in it */
#endif
