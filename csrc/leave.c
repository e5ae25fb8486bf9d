/* A process of a launcher that is told to end, by SIGINT or SIGTERM. The launcher makes its own
 * code of ours: of a process that a signal has killed it makes the bare number of the signal, which
 * means something else. So a process ends by a code. In compute phases, and in MPI, nothing but a
 * handler could hear of the signal. */
#define _GNU_SOURCE
#include "parts.h"

#include <signal.h>
#include <string.h>
#include <unistd.h>

#define WORDS_BYTES 8192
#define LATEST_S 5
#define NOT_YET -2 /* the place of a file that spmd_leave_tell will give */

static struct {
    pid_t owner;
    atomic_int told, number, file;
    /* What is said last, and room for what will be: a handler may be reading the former. */
    char words[2][WORDS_BYTES];
    atomic_int chosen;
} leave = {.file = -1};

static void leave_at_once(int unused)
{
    (void)unused;
    _exit(128 + atomic_load(&leave.number));
}

static void leave_pass_on(int file)
{
    const unsigned char byte = (unsigned char)atomic_load(&leave.number);

    if (file != NOT_YET && (file < 0 || write(file, &byte, 1) != 1))
        leave_at_once(byte);
}

static void leave_hear(int number)
{
    if (getpid() != leave.owner) { /* a copy made by fork ends as any program does */
        signal(number, SIG_DFL);
        raise(number);
        return;
    }
    if (atomic_exchange(&leave.told, 1))
        return;
    atomic_store(&leave.number, number);
    spmd_say(leave.words[atomic_load(&leave.chosen)]);
    signal(SIGALRM, leave_at_once); /* unless whoever hears of it ends us before */
    alarm(LATEST_S);
    leave_pass_on(atomic_load(&leave.file));
}

int spmd_leave_begin(int waits)
{
    struct sigaction before, action = {.sa_handler = leave_hear, .sa_flags = SA_RESTART};
    const int numbers[] = {SIGINT, SIGTERM};

    leave.owner = getpid();
    atomic_store(&leave.file, waits ? NOT_YET : -1);
    for (int k = 0; k < 2; k++) {
        if (sigaction(numbers[k], NULL, &before))
            return SPMD_SYSTEM;
        if (before.sa_handler != SIG_IGN && sigaction(numbers[k], &action, NULL))
            return SPMD_SYSTEM;
    }
    return SPMD_OK;
}

int spmd_leave_told(void)
{
    return atomic_load(&leave.number);
}

void spmd_leave_tell(int file)
{
    atomic_store(&leave.file, file);
    if (atomic_load(&leave.number))
        leave_pass_on(file);
}

int spmd_leave_words(const char *words)
{
    int next = 1 - atomic_load(&leave.chosen);

    if (strlen(words) >= WORDS_BYTES)
        return SPMD_RANGE;
    strcpy(leave.words[next], words);
    atomic_store(&leave.chosen, next);
    return SPMD_OK;
}
