#include <stdint.h>
#include <sys/syscall.h>
#include <time.h>

static long call(long number, long a, long b)
{
    long result;
    __asm__ volatile("syscall" : "=a"(result) : "a"(number), "D"(a), "S"(b) : "rcx", "r11", "memory");
    return result;
}

void nap(const double *x, double seconds, double *out, int64_t n)
{
    struct timespec left = {.tv_sec = (time_t)seconds, .tv_nsec = (long)(1e9 * (seconds - (double)(time_t)seconds))};
    while (call(SYS_nanosleep, (long)&left, (long)&left))
        ;
    for (int64_t i = 0; i < n; i++)
        out[i] = x[i];
}
