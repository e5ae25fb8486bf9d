/* What floor.c is made of on one core: moving memory, with sums on the way, and handing the core
 * over to another thread. */
#define _GNU_SOURCE
#include "measure.h"

#include <linux/futex.h>
#include <sched.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifdef __x86_64__
#include <immintrin.h>
#endif

#define HANDOVERS 1000 /* in each direction, in a turn */

typedef float lanes __attribute__((vector_size(32), aligned(4), may_alias));
#define LANES 8
#define LINE 16
/* Elements: sources are fetched, destinations ours, before they are needed: `bench floor`
 * beyond the sizes of the caches shows what it is worth. */
#define AHEAD 256

typedef void (*store_function)(float *at, const lanes *value);

static inline __attribute__((always_inline)) void store(float *at, const lanes *value)
{
    *(lanes *)at = *value;
}

static inline __attribute__((always_inline)) void part_sum(const spmd_part *part, int64_t intos,
                                                           int64_t froms, store_function put)
{
    float *const *into = part->into, *const *from = part->from;
    int64_t to = part->into_at, of = part->from_at, n = part->elements, j = 0;

    for (; j + LINE <= n; j += LINE, to += LINE, of += LINE) {
        bool ahead = j + AHEAD < n;
        lanes a = *(lanes *)(from[0] + of), b = *(lanes *)(from[0] + of + LANES);
        if (ahead)
            __builtin_prefetch(from[0] + of + AHEAD);
        for (int64_t k = 1; k < froms; k++) {
            if (ahead)
                __builtin_prefetch(from[k] + of + AHEAD);
            a += *(lanes *)(from[k] + of);
            b += *(lanes *)(from[k] + of + LANES);
        }
        for (int64_t k = 0; k < intos; k++) {
            if (ahead && put == store)
                __builtin_prefetch(into[k] + to + AHEAD, 1);
            put(into[k] + to, &a);
            put(into[k] + to + LANES, &b);
        }
    }
    for (; j < n; j++, to++, of++) {
        float sum = from[0][of];
        for (int64_t k = 1; k < froms; k++)
            sum += from[k][of];
        for (int64_t k = 0; k < intos; k++)
            into[k][to] = sum;
    }
}

static inline __attribute__((always_inline)) void part_prefix(const spmd_part *part)
{
    bool below = part->prefix == SPMD_PART_EXSCAN;
    int64_t to = part->into_at, of = part->from_at, n = part->elements, j = 0;

    for (; j + LANES <= n; j += LANES, to += LANES, of += LANES) {
        bool ahead = j % LINE == 0 && j + AHEAD < n;
        lanes sum = {0};
        for (int64_t k = 0; k < part->froms; k++) {
            if (ahead) {
                __builtin_prefetch(part->from[k] + of + AHEAD);
                __builtin_prefetch(part->into[k] + to + AHEAD, 1);
            }
            lanes next = sum + *(lanes *)(part->from[k] + of);
            *(lanes *)(part->into[k] + to) = below ? sum : next;
            sum = next;
        }
    }
    for (; j < n; j++, to++, of++) {
        float sum = 0;
        for (int64_t k = 0; k < part->froms; k++) {
            float next = sum + part->from[k][of];
            part->into[k][to] = below ? sum : next;
            sum = next;
        }
    }
}

/* Loops of a known number of turns where ranks are few. */
static inline __attribute__((always_inline)) void part_move(const spmd_part *part,
                                                            store_function put)
{
    int64_t froms = part->froms, intos = part->intos;
    if (part->prefix != SPMD_PART_SUM)
        part_prefix(part);
    else if (froms == 1 && intos == 1)
        part_sum(part, 1, 1, put);
    else if (froms == 1 && intos == 2)
        part_sum(part, 2, 1, put);
    else if (froms == 2 && intos == 1)
        part_sum(part, 1, 2, put);
    else if (froms == 2 && intos == 2)
        part_sum(part, 2, 2, put);
    else
        part_sum(part, intos, froms, put);
}

#ifdef __x86_64__
#define WIDE __attribute__((target("avx2,prfchw")))

static inline WIDE __attribute__((always_inline)) void stream(float *at, const lanes *value)
{
    _mm256_stream_ps(at, (__m256)*value);
}

static WIDE void move_wide(const spmd_part *part)
{
    part_move(part, store);
}

static WIDE void move_stream(const spmd_part *part)
{
    part_move(part, stream);
    _mm_sfence();
}
#else
#define move_wide move_plain
#define move_stream move_plain
#endif

static void move_plain(const spmd_part *part)
{
    part_move(part, store);
}

bool spmd_part_streams(void)
{
#ifdef __x86_64__
    return __builtin_cpu_supports("avx2");
#else
    return false;
#endif
}

void spmd_part_move(const spmd_part *part, int64_t move)
{
    if (part->froms == 0)
        memset(part->into[0] + part->into_at, 0, (size_t)part->elements * sizeof(float));
    else if (move == SPMD_FLOOR_SYSTEM)
        for (int64_t k = 0; k < part->intos; k++)
            memcpy(part->into[k] + part->into_at, part->from[0] + part->from_at,
                   (size_t)part->elements * sizeof(float));
    else if (part->elements < LINE || !spmd_part_streams())
        move_plain(part);
    else if (move == SPMD_FLOOR_STREAM)
        move_stream(part);
    else
        move_wide(part);
}

/* ---- handing over ---------------------------------------------------------------------------- */

typedef struct switch_pair {
    _Atomic uint32_t turn; /* whose: a futex */
    bool sleeps;           /* else yields */
} switch_pair;

static void take_turns(switch_pair *pair, uint32_t mine)
{
    for (int k = 0; k < HANDOVERS; k++) {
        while (atomic_load_explicit(&pair->turn, memory_order_acquire) != mine) {
            if (pair->sleeps)
                syscall(SYS_futex, &pair->turn, FUTEX_WAIT_PRIVATE, !mine, NULL, NULL, 0);
            else
                sched_yield();
        }
        atomic_store_explicit(&pair->turn, !mine, memory_order_release);
        if (pair->sleeps)
            syscall(SYS_futex, &pair->turn, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
    }
}

static void *switch_partner(void *given)
{
    take_turns(given, 1);
    return NULL;
}

int64_t spmd_switch_time(bool sleeps)
{
    switch_pair pair = {.turn = 1, .sleeps = sleeps}; /* the partner's, once it is there */
    cpu_set_t before, one;
    pthread_t partner;
    int core = sched_getcpu();

    CPU_ZERO(&one);
    CPU_SET(core < 0 ? 0 : core, &one);
    if (sched_getaffinity(0, sizeof before, &before) || sched_setaffinity(0, sizeof one, &one))
        return -1;
    int64_t time = -1, begin = spmd_now();
    if (pthread_create(&partner, NULL, switch_partner, &pair) == 0) { /* on the same core */
        take_turns(&pair, 0);
        pthread_join(partner, NULL);
        time = (spmd_now() - begin) / (2 * HANDOVERS);
    }
    sched_setaffinity(0, sizeof before, &before);
    return time;
}
