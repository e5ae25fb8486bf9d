/* See delays.h. Compiled without hooks.h's macros: here are the real operations. */
#define _GNU_SOURCE
#include "delays.h"

#include <linux/futex.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

enum { HOOK_ADD, HOOK_EXCHANGE };
enum { PENDING = 8 }; /* writes that others do not see yet */

typedef struct pending {
    void *at;
    size_t size;
    uint64_t value;
} pending;

static struct {
    uint64_t seed, rate;
    enum delays_defect defect;
    atomic_uint_fast64_t threads;
} all;

static _Thread_local struct {
    uint64_t random; /* 0: not begun */
    pending write[PENDING];
    int writes;
} mine;

void delays_set(uint64_t seed, uint64_t rate, enum delays_defect defect)
{
    all.seed = seed;
    all.rate = rate;
    all.defect = defect;
}

/* splitmix64; every thread has a sequence of its own. */
static uint64_t draw(void)
{
    if (!mine.random)
        mine.random = all.seed + (atomic_fetch_add(&all.threads, 1) + 1) * 0xd1342543de82ef95u;
    uint64_t mixed = mine.random += 0x9e3779b97f4a7c15u;
    mixed = (mixed ^ mixed >> 30) * 0xbf58476d1ce4e5b9u;
    mixed = (mixed ^ mixed >> 27) * 0x94d049bb133111ebu;
    return mixed ^ mixed >> 31;
}

static bool one_in(uint64_t chances)
{
    return draw() % chances == 0;
}

static void spin(uint64_t turns)
{
    for (volatile uint64_t k = 0; k < turns; k++)
        ;
}

/* Mostly short: what others do in that time is a step or two. */
void hook_delay(void)
{
    if (!all.rate || !one_in(all.rate))
        return;
    uint64_t random = draw(), length = random >> 32;
    switch (random % 16) {
    case 0:
        nanosleep(&(struct timespec){.tv_nsec = (long)(length % 300000)}, NULL);
        break;
    case 1:
    case 2:
    case 3:
    case 4:
        sched_yield();
        break;
    case 5:
        spin(length % 20000);
        break;
    default:
        spin(length % 500);
    }
}

static void write_real(void *at, size_t size, uint64_t value)
{
    switch (size) {
    case 8:
        __atomic_store_n((uint64_t *)at, value, __ATOMIC_RELEASE);
        break;
    case 4:
        __atomic_store_n((uint32_t *)at, (uint32_t)value, __ATOMIC_RELEASE);
        break;
    default:
        __atomic_store_n((uint8_t *)at, (uint8_t)value, __ATOMIC_RELEASE);
    }
}

static uint64_t read_real(const void *at, size_t size)
{
    switch (size) {
    case 8:
        return __atomic_load_n((const uint64_t *)at, __ATOMIC_ACQUIRE);
    case 4:
        return __atomic_load_n((const uint32_t *)at, __ATOMIC_ACQUIRE);
    default:
        return __atomic_load_n((const uint8_t *)at, __ATOMIC_ACQUIRE);
    }
}

static void drain_one(void)
{
    pending oldest = mine.write[0];
    memmove(mine.write, mine.write + 1, (size_t)--mine.writes * sizeof *mine.write);
    write_real(oldest.at, oldest.size, oldest.value);
}

void hook_flush(void)
{
    while (mine.writes)
        drain_one();
}

/* What comes next happens after others see all that I have written. They do not yet when it is
 * drained: the processor has a store buffer of its own, where there are delays and where not. */
static void publish(void)
{
    hook_flush();
    __atomic_thread_fence(__ATOMIC_SEQ_CST);
}

static void waste(void)
{
    if (all.defect == DELAYS_ALLOCATES && one_in(100)) {
        void *volatile room = malloc(1);
        free(room);
    }
    if (all.defect == DELAYS_CALLS && one_in(100))
        syscall(SYS_getppid);
}

/* A step: maybe it takes long, maybe an earlier write becomes visible. */
static void step(void)
{
    waste();
    hook_delay();
    if (mine.writes && one_in(4))
        drain_one();
}

uint64_t hook_load(const void *at, size_t size, int order)
{
    (void)order;
    step();
    uint64_t value = read_real(at, size);
    for (int k = 0; k < mine.writes; k++) /* a thread sees its own writes; the last one counts */
        if (mine.write[k].at == at)
            value = mine.write[k].value;
    hook_delay(); /* before it acts on what it has read */
    return value;
}

void hook_store(void *at, size_t size, uint64_t value, int order)
{
    hook_delay();
    if (mine.writes == PENDING)
        drain_one();
    mine.write[mine.writes++] = (pending){at, size, value};
    if (order == __ATOMIC_SEQ_CST)
        publish();
    else if (!all.rate)
        hook_flush();
    step();
}

/* Read-modify-writes are locked instructions: they wait for the store buffer. */
uint64_t hook_change(void *at, size_t size, uint64_t value, int how)
{
    uint64_t before;
    hook_flush();
    hook_delay();
    if (size == 8)
        before = how == HOOK_ADD ? __atomic_fetch_add((uint64_t *)at, value, __ATOMIC_SEQ_CST)
                                 : __atomic_exchange_n((uint64_t *)at, value, __ATOMIC_SEQ_CST);
    else if (size == 4)
        before = how == HOOK_ADD
                     ? __atomic_fetch_add((uint32_t *)at, (uint32_t)value, __ATOMIC_SEQ_CST)
                     : __atomic_exchange_n((uint32_t *)at, (uint32_t)value, __ATOMIC_SEQ_CST);
    else
        before = __atomic_exchange_n((uint8_t *)at, (uint8_t)value, __ATOMIC_SEQ_CST);
    hook_delay();
    return before;
}

int hook_replace(void *at, size_t size, void *expected, uint64_t value)
{
    hook_flush();
    hook_delay();
    if (size == 8)
        return __atomic_compare_exchange_n((uint64_t *)at, (uint64_t *)expected, value, false,
                                           __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    if (size == 4)
        return __atomic_compare_exchange_n((uint32_t *)at, (uint32_t *)expected, (uint32_t)value,
                                           false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
    return __atomic_compare_exchange_n((uint8_t *)at, (uint8_t *)expected, (uint8_t)value, false,
                                       __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
}

void hook_fence(int order)
{
    hook_delay();
    if (order == __ATOMIC_SEQ_CST && all.defect != DELAYS_NO_FENCE)
        publish();
    hook_delay();
}

/* Others may see the first half of the data, and not the second. */
void *hook_copy(void *into, const void *from, size_t bytes)
{
    size_t half = bytes / 2;
    hook_delay();
    memcpy(into, from, half);
    hook_delay();
    if (all.defect == DELAYS_HALF_COPY && one_in(1000))
        return into;
    memcpy((char *)into + half, (const char *)from + half, bytes - half);
    hook_delay();
    return into;
}

/* The bell must be enough: a sleeper that looks up now and then would hide that nobody rang. */
long hook_syscall(long number, ...)
{
    long argument[6];
    va_list list;
    va_start(list, number);
    for (int k = 0; k < 6; k++)
        argument[k] = va_arg(list, long);
    va_end(list);
    int operation = (int)argument[1] & FUTEX_CMD_MASK;
    bool waits = number == SYS_futex &&
                 (operation == FUTEX_WAIT || operation == FUTEX_WAIT_BITSET);
    if (waits)
        argument[3] = 0;
    hook_delay();
    hook_flush(); /* whatever it does, it takes longer than a store buffer */
    if (number == SYS_futex && operation == FUTEX_WAKE && all.defect == DELAYS_LOST_WAKE &&
        one_in(20))
        return 0;
    return syscall(number, argument[0], argument[1], argument[2], argument[3], argument[4],
                   argument[5]);
}
