/* What the threads of the engine ask of the system in the steady state of an exchange: every system
 * call of a worker is trapped (seccomp), counted, and made; every allocation goes through the
 * functions below. Runs each program of images.c, and mixed.c, with a core for each of two ranks:
 * two threads, or two processes. A line for each; exit code 1 where a worker asked for anything but
 * to wait. With "sleeps" one rank naps now and then, so that the other one falls asleep.
 * Arguments: "all" or "sleeps"; where the engine was built with hooks, a defect of delays.h. */
#define _GNU_SOURCE
#include <errno.h>
#include <linux/filter.h>
#include <linux/futex.h>
#include <linux/seccomp.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/ucontext.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine.h"
#include "images.h"

#ifdef SPMD_HOOKS_H
#include "delays.h"
#endif

DECLARE(print)

static const struct {
    const char *name;
    const spmd_image *image;
} program[] = {EXCHANGING(ROW) ROW(print)};
enum { PROGRAMS = sizeof program / sizeof *program, RANKS = 2 };
enum { WARM = 100, TURNS = 2000, FEW_TURNS = 200, ENOUGH_SECONDS = 12 };
enum { NAP_EVERY = 200, NAP_NS = 2000000 };

/* What one rank's thread asked for in the exchanges after the first WARM. */
typedef struct tally {
    int64_t turns, waits, wakes, yields, moves, others, last_other, allocations, errors, ends;
} tally;

static tally *tallies;            /* by rank; all processes see them */
static _Thread_local tally *mine; /* NULL: nothing is counted */
static bool naps;
static int64_t turns = TURNS; /* exchanges that are counted */

/* ---- allocations ---------------------------------------------------------------------------- */

extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t), *__libc_realloc(void *, size_t);
extern void *__libc_memalign(size_t, size_t), __libc_free(void *);

static void allocates(void)
{
    if (mine)
        mine->allocations++;
}

void *malloc(size_t bytes)
{
    allocates();
    return __libc_malloc(bytes);
}

void *calloc(size_t count, size_t bytes)
{
    allocates();
    return __libc_calloc(count, bytes);
}

void *realloc(void *old, size_t bytes)
{
    allocates();
    return __libc_realloc(old, bytes);
}

void *aligned_alloc(size_t line, size_t bytes)
{
    allocates();
    return __libc_memalign(line, bytes);
}

int posix_memalign(void **into, size_t line, size_t bytes)
{
    *into = aligned_alloc(line, bytes);
    return *into ? 0 : ENOMEM;
}

void free(void *old)
{
    __libc_free(old);
}

/* ---- system calls --------------------------------------------------------------------------- */

/* The one place from which system calls are not trapped. */
long steady_call(long number, long a, long b, long c, long d, long e, long f);
extern const char steady_back[];
__asm__(".text\n"
        "steady_call:\n"
        "  mov %rdi, %rax\n"
        "  mov %rsi, %rdi\n"
        "  mov %rdx, %rsi\n"
        "  mov %rcx, %rdx\n"
        "  mov %r8, %r10\n"
        "  mov %r9, %r8\n"
        "  mov 8(%rsp), %r9\n"
        "  syscall\n"
        "steady_back:\n"
        "  ret\n");

static void count_call(long number, long operation)
{
    if (!mine)
        return;
    int futex = (int)operation & FUTEX_CMD_MASK;
    if (number == SYS_futex && (futex == FUTEX_WAIT || futex == FUTEX_WAIT_BITSET))
        mine->waits++;
    else if (number == SYS_restart_syscall)
        ; /* a wait goes on, of a process that was stopped for a while */
    else if (number == SYS_futex && futex == FUTEX_WAKE)
        mine->wakes++;
    else if (number == SYS_sched_yield)
        mine->yields++;
    else if (number == SYS_sched_getaffinity || number == SYS_sched_setaffinity)
        mine->moves++; /* to another core */
    else {
        mine->others++;
        mine->last_other = number;
    }
}

static void on_call(int signal, siginfo_t *info, void *context)
{
    greg_t *word = ((ucontext_t *)context)->uc_mcontext.gregs;
    (void)signal;
    count_call(info->si_syscall, word[REG_RSI]);
    word[REG_RAX] = steady_call(info->si_syscall, word[REG_RDI], word[REG_RSI], word[REG_RDX],
                                word[REG_R10], word[REG_R8], word[REG_R9]);
}

static void must(bool holds, const char *doing)
{
    if (holds)
        return;
    perror(doing);
    _exit(2);
}

/* From now on all system calls of this thread are trapped. */
static void trap_calls(void)
{
    uint64_t back = (uint64_t)(uintptr_t)steady_back;
    struct sock_filter filter[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_rt_sigreturn, 4, 0),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)back, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, instruction_pointer) + 4),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, (uint32_t)(back >> 32), 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
    };
    struct sock_fprog whole = {sizeof filter / sizeof *filter, filter};
    struct sigaction action = {.sa_sigaction = on_call, .sa_flags = SA_SIGINFO};
    sigset_t set;

    sigemptyset(&set);
    sigaddset(&set, SIGSYS);
    must(sigaction(SIGSYS, &action, NULL) == 0, "sigaction");
    must(pthread_sigmask(SIG_UNBLOCK, &set, NULL) == 0, "pthread_sigmask");
    must(prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0, "no new privileges");
    must(syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &whole) == 0, "seccomp");
}

/* ---- images, watched from inside ------------------------------------------------------------ */

static _Thread_local bool trapped;
static const spmd_image *original;
static const spmd_engine *real;
static spmd_engine watching;

/* Called by the program for each exchange, often; counts `turns` of them. */
static int exchange_watched(spmd_rank *rank)
{
    uint64_t turn = rank->superstep;
    if (turn >= WARM && !trapped) {
        trapped = true;
        trap_calls();
        mine = &tallies[rank->index];
    }
    if (mine)
        mine->turns = (int64_t)turn - WARM;
    if ((int64_t)turn >= WARM + turns)
        mine = NULL;
    int complete = real->exchange(rank);
    if (complete && naps && mine && rank->index == 1 && turn % NAP_EVERY == 0) {
        struct timespec nap = {.tv_nsec = NAP_NS};
        steady_call(SYS_nanosleep, (long)&nap, 0, 0, 0, 0, 0);
    }
    return complete;
}

static void print_nothing(spmd_rank *rank, const char *text, int64_t length)
{
    (void)rank, (void)text, (void)length;
}

static void load_watched(spmd_rank *rank)
{
    original->load(rank);
    real = rank->engine;
    watching = *real;
    watching.exchange = exchange_watched;
    watching.print = print_nothing;
    rank->engine = &watching;
}

/* ---- runs ----------------------------------------------------------------------------------- */

static spmd_job *job_make(const spmd_image *image, const int64_t *scalar, int64_t processes,
                          int64_t process, int64_t algorithm)
{
    static const int64_t size[SPMD_AXES] = {RANKS, 1, 1};
    spmd_settings settings = {
        .image = image, .ranks = RANKS, .size = size, .scalar = scalar, .scalars = 3,
        .first = process, .count = RANKS / processes, .threads = RANKS / processes,
        .cores = RANKS, .algorithm = algorithm,
    };
    spmd_job *job;
    must(spmd_job_new(&settings, &job) == SPMD_OK, "new");
    return job;
}

static void process_main(const spmd_image *image, const int64_t *scalar, int64_t processes,
                         int64_t process, int64_t algorithm, spmd_arena *arena)
{
    int64_t error[RANKS] = {0}, ranks = RANKS, stride = sizeof *error;
    spmd_global global = {.base = (char *)error, .dims = 1, .shape = &ranks, .stride = &stride,
                          .size = sizeof *error};
    spmd_job *job = job_make(image, scalar, processes, process, algorithm);

    prctl(PR_SET_PDEATHSIG, SIGKILL);
    must(spmd_job_load(job, arena) == SPMD_OK, "load");
    __atomic_fetch_add(&tallies[RANKS].ends, 1, __ATOMIC_SEQ_CST);
    while (__atomic_load_n(&tallies[RANKS].ends, __ATOMIC_SEQ_CST) < processes)
        sched_yield(); /* as the host language meets before a run */
    must(spmd_job_start(job, NULL) == SPMD_OK, "start");
    while (spmd_job_wait(job, 1000) == SPMD_RUNNING)
        ;
    must(spmd_job_gather(job, 0, SPMD_EVERY_RANK, &global) == SPMD_OK, "gather");
    for (int64_t k = process; k < process + RANKS / processes; k++) {
        tallies[k].errors = error[k];
        tallies[k].ends = 1;
    }
    _exit(0);
}

/* The tallies of both ranks together; ends: how many ranks came to their end. */
static tally run(int which, int64_t processes, int64_t elements, int64_t algorithm)
{
    bool mixed = which == 0; /* it leaves steps out; the others would sleep with a seed */
    const int64_t scalar[] = {elements, (WARM + turns + 1) * (mixed ? 4 : 1), mixed ? elements : 0};
    tally total = {0};
    spmd_arena *arena;
    int status;

    original = program[which].image;
    spmd_image image = *original;
    image.load = load_watched;
    memset(tallies, 0, (RANKS + 1) * sizeof *tallies);
    spmd_job *whole = job_make(&image, scalar, processes, 0, algorithm);
    must(spmd_arena_new(spmd_job_bytes(whole), 1, &arena) == SPMD_OK, "arena");
    spmd_job_free(whole);
    for (int64_t k = 0; k < processes; k++)
        if (fork() == 0)
            process_main(&image, scalar, processes, k, algorithm, arena);
    while (wait(&status) > 0)
        must(WIFEXITED(status) && WEXITSTATUS(status) == 0, "a process ended");
    spmd_arena_free(arena);
    for (tally *one = tallies; one < tallies + RANKS; one++) {
        total.turns += one->turns;
        total.waits += one->waits;
        total.wakes += one->wakes;
        total.yields += one->yields;
        total.moves += one->moves;
        total.others += one->others;
        total.last_other = one->others ? one->last_other : total.last_other;
        total.allocations += one->allocations;
        total.errors += one->errors;
        total.ends += one->ends;
    }
    return total;
}

static bool report(int which, int64_t processes, int64_t elements, int64_t algorithm)
{
    tally seen = run(which, processes, elements, algorithm);
    bool fine = seen.others == 0 && seen.allocations == 0 && seen.errors == 0 &&
                seen.turns == RANKS * turns && seen.ends == RANKS;
    printf("%s processes %lld elements %lld algorithm %lld exchanges %lld waits %lld wakes %lld "
           "yields %lld moves %lld others %lld call %lld allocations %lld wrong %lld fine %d\n",
           program[which].name, (long long)processes, (long long)elements, (long long)algorithm,
           (long long)seen.turns, (long long)seen.waits, (long long)seen.wakes,
           (long long)seen.yields, (long long)seen.moves, (long long)seen.others,
           (long long)seen.last_other, (long long)seen.allocations, (long long)seen.errors, fine);
    fflush(stdout);
    return fine;
}

/* Short, a few lines, long; an all-reduce with each of its algorithms. */
static bool report_all(int which, int64_t processes)
{
    static const int64_t elements[] = {1, 40, 2000};
    bool square = strcmp(program[which].name, "halo") == 0, fine = true;
    bool reduces = strcmp(program[which].name, "reduce") == 0;

    for (int e = 0; e < (naps ? 1 : 3); e++)
        for (int64_t algorithm = SPMD_AUTO; algorithm <= (reduces && e ? SPMD_RING : 0);
             algorithm++)
            fine &= report(which, processes, square && e == 2 ? 60 : elements[e], algorithm);
    return fine;
}

int main(int count, char **argument)
{
    bool fine = true;
    time_t begin = time(NULL);

    tallies = mmap(NULL, (RANKS + 1) * sizeof *tallies, PROT_READ | PROT_WRITE,
                   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    must(tallies != MAP_FAILED, "shared memory");
    naps = count > 1 && strcmp(argument[1], "sleeps") == 0;
#ifdef SPMD_HOOKS_H
    delays_set(1, 0, count > 2 ? (enum delays_defect)atoi(argument[2]) : DELAYS_NO_DEFECT);
#endif
    for (int which = 0; which < PROGRAMS; which++) {
        for (int64_t processes = 1; processes <= RANKS; processes++)
            fine &= report_all(which, processes);
        if (time(NULL) - begin >= ENOUGH_SECONDS)
            turns = FEW_TURNS; /* the cores have other work, and two ranks wait for each other */
    }
    return !fine;
}
