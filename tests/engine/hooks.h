/* Included before every file of the engine in a test build (cc -include), and only there: each
 * access to a shared word, each fence, each copy and each system call goes through a function of
 * the test. So a new place in csrc/ needs no mark of its own, and the product is compiled without
 * any of this. Whoever links defines the hooks: delays.c, or steady.c. */
#ifndef SPMD_HOOKS_H
#define SPMD_HOOKS_H

#define _GNU_SOURCE /* as the files that include this would have it */
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { HOOK_ADD, HOOK_EXCHANGE }; /* what a read-modify-write does */

uint64_t hook_load(const void *at, size_t size, int order);
void hook_store(void *at, size_t size, uint64_t value, int order);
uint64_t hook_change(void *at, size_t size, uint64_t value, int how); /* returns what was there */
int hook_replace(void *at, size_t size, void *expected, uint64_t value);
void hook_fence(int order);
void *hook_copy(void *into, const void *from, size_t bytes);
long hook_syscall(long number, ...);
/* This thread is about to wait, to let another one go on, or to be another's. */
void hook_flush(void);

/* A delay in code of the tests, between two steps of an exchange. */
void hook_delay(void);
#define SPMD_DELAY() hook_delay()

/* Without the qualifier, as an rvalue has it. */
#define HOOK_TYPE(at) __typeof__((void)0, *(at))
#define HOOK_LOAD(at, order) ((HOOK_TYPE(at))hook_load((const void *)(at), sizeof *(at), order))
#define HOOK_STORE(at, value, order)                                                               \
    hook_store((void *)(at), sizeof *(at), (uint64_t)(value), order)
#define HOOK_CHANGE(at, value, how)                                                                \
    ((HOOK_TYPE(at))hook_change((void *)(at), sizeof *(at), (uint64_t)(value), how))
#define HOOK_REPLACE(at, expected, value)                                                          \
    hook_replace((void *)(at), sizeof *(at), expected, (uint64_t)(value))

#pragma GCC diagnostic ignored "-Wunused-value" /* of a change whose result nobody wants */

#undef atomic_load
#undef atomic_load_explicit
#undef atomic_store
#undef atomic_store_explicit
#undef atomic_fetch_add
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub
#undef atomic_fetch_sub_explicit
#undef atomic_exchange
#undef atomic_exchange_explicit
#undef atomic_compare_exchange_strong
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak
#undef atomic_compare_exchange_weak_explicit
#undef atomic_thread_fence
#define atomic_load(at) HOOK_LOAD(at, __ATOMIC_SEQ_CST)
#define atomic_load_explicit(at, order) HOOK_LOAD(at, order)
#define atomic_store(at, value) HOOK_STORE(at, value, __ATOMIC_SEQ_CST)
#define atomic_store_explicit(at, value, order) HOOK_STORE(at, value, order)
#define atomic_fetch_add(at, value) HOOK_CHANGE(at, value, HOOK_ADD)
#define atomic_fetch_add_explicit(at, value, order) HOOK_CHANGE(at, value, HOOK_ADD)
#define atomic_fetch_sub(at, value) HOOK_CHANGE(at, -(uint64_t)(value), HOOK_ADD)
#define atomic_fetch_sub_explicit(at, value, order) HOOK_CHANGE(at, -(uint64_t)(value), HOOK_ADD)
#define atomic_exchange(at, value) HOOK_CHANGE(at, value, HOOK_EXCHANGE)
#define atomic_exchange_explicit(at, value, order) HOOK_CHANGE(at, value, HOOK_EXCHANGE)
#define atomic_compare_exchange_strong(at, expected, value) HOOK_REPLACE(at, expected, value)
#define atomic_compare_exchange_strong_explicit(at, expected, value, success, failure)             \
    HOOK_REPLACE(at, expected, value)
#define atomic_compare_exchange_weak(at, expected, value) HOOK_REPLACE(at, expected, value)
#define atomic_compare_exchange_weak_explicit(at, expected, value, success, failure)               \
    HOOK_REPLACE(at, expected, value)
#define atomic_thread_fence(order) hook_fence(order)

#undef memcpy
#define memcpy(into, from, bytes)                                                                  \
    (__builtin_constant_p(bytes) ? __builtin_memcpy(into, from, bytes)                             \
                                 : hook_copy(into, from, bytes))
#define syscall(...) hook_syscall(__VA_ARGS__)
#define pthread_mutex_lock(mutex) (hook_flush(), pthread_mutex_lock(mutex))
#define pthread_mutex_unlock(mutex) (hook_flush(), pthread_mutex_unlock(mutex))
#define pthread_cond_wait(news, mutex) (hook_flush(), pthread_cond_wait(news, mutex))
#define pthread_create(...) (hook_flush(), pthread_create(__VA_ARGS__))
#define pthread_join(thread, result) (hook_flush(), pthread_join(thread, result))
#define sched_yield() (hook_flush(), sched_yield())
#define nanosleep(time, left) (hook_flush(), nanosleep(time, left))

#endif
