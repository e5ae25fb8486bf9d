/* Philox4x32-10: an element's 128 random bits, in two halves. codegen/philox.py says the same.
 *
 * The counter is position and stream, the key is the seed, lower words first.
 */
#ifndef SPMD_PHILOX_H
#define SPMD_PHILOX_H

#include <stdint.h>

#define SPMD_LOW(x) ((x) & 0xffffffffu)

static inline uint64_t spmd_philox(uint64_t position, uint64_t stream, uint64_t seed, int second)
{
    uint64_t a = SPMD_LOW(position), b = position >> 32, c = SPMD_LOW(stream), d = stream >> 32;
    uint32_t left = (uint32_t)seed, right = (uint32_t)(seed >> 32);
    for (int round = 0; round < 10; round++) {
        uint64_t p = a * 0xd2511f53u, q = c * 0xcd9e8d57u; /* of words: products fit */
        a = (q >> 32) ^ b ^ left;
        b = SPMD_LOW(q);
        c = (p >> 32) ^ d ^ right;
        d = SPMD_LOW(p);
        left += 0x9e3779b9u;
        right += 0xbb67ae85u;
    }
    return second ? c | d << 32 : a | b << 32;
}

static inline uint64_t spmd_philox_first_u64(uint64_t position, uint64_t stream, uint64_t seed)
{
    return spmd_philox(position, stream, seed, 0);
}

static inline uint64_t spmd_philox_second_u64(uint64_t position, uint64_t stream, uint64_t seed)
{
    return spmd_philox(position, stream, seed, 1);
}

#endif
