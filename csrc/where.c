/* Where a process is, asked by another one while it may be anywhere, also inside MPI for ever: a
 * signal that does nothing by default makes its main thread write the addresses that it will return
 * to. Whoever asked looks them up in /proc/PID/maps. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define DEEPEST 64

static int answers = -1;

static void where_answer(int number)
{
    void *place[DEEPEST + 1];
    int before = errno;

    (void)number;
    memset(place, 0, sizeof place);
    int count = backtrace(place, DEEPEST);
    place[count] = NULL; /* the last word: the answer is whole */
    if (write(answers, place, sizeof place) < 0)
        place[0] = NULL; /* nobody is told */
    errno = before;
}

int spmd_where_begin(int file)
{
    void *place[2];
    struct sigaction action = {.sa_handler = where_answer, .sa_flags = SA_RESTART};

    answers = file;
    backtrace(place, 2); /* the first call loads a library, which no handler may do */
    return sigaction(SIGURG, &action, NULL) == 0 ? SPMD_OK : SPMD_SYSTEM;
}

int64_t spmd_where_bytes(void)
{
    return (DEEPEST + 1) * (int64_t)sizeof(void *);
}

int spmd_where_ask(int64_t process)
{
    bool sent = syscall(SYS_tgkill, (pid_t)process, (pid_t)process, SIGURG) == 0;
    return sent ? SPMD_OK : SPMD_SYSTEM;
}
