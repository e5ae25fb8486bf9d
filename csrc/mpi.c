/* The one file that calls MPI. The engine is compiled without any MPI: functions and handles come
 * from the library that mpi4py loaded. Handles are integers in one family of MPI and pointers in
 * the other, so every call is written once and instantiated for both. */
#define _GNU_SOURCE
#include "bench/measure.h"

#include <string.h>

#define STATUS_BYTES 256 /* of an MPI_Status; 20 to 32 in the families there are */
#define MPI_TEXT_BYTES 1024 /* MPI_MAX_ERROR_STRING, or more */

#define INSTANTIATE(family, handle, field)                                                         \
    static int family##_send(const spmd_mpi *mpi, bool synchronous, const void *from, int bytes,   \
                             int to, int tag, spmd_handle *request)                                \
    {                                                                                              \
        int (*call)(const void *, int, handle, int, int, handle, handle *) =                       \
            synchronous ? mpi->issend : mpi->isend;                                                \
        return call(from, bytes, (handle)mpi->byte, to, tag, (handle)mpi->comm, &request->field);  \
    }                                                                                              \
    static int family##_receive(const spmd_mpi *mpi, void *into, int bytes, int from, int tag,     \
                                spmd_handle *request)                                              \
    {                                                                                              \
        int (*call)(void *, int, handle, int, int, handle, handle *) = mpi->irecv;                 \
        return call(into, bytes, (handle)mpi->byte, from, tag, (handle)mpi->comm,                  \
                    &request->field);                                                              \
    }                                                                                              \
    static int family##_test(const spmd_mpi *mpi, spmd_handle *request, int *flag, void *status)   \
    {                                                                                              \
        int (*call)(handle *, int *, void *) = mpi->test;                                          \
        return call(&request->field, flag, status);                                                \
    }

INSTANTIATE(number, int, number)
INSTANTIATE(pointer, void *, pointer)

static bool is_pointer(const spmd_job *job)
{
    return job->mpi.handle_bytes == (int64_t)sizeof(void *);
}

/* mpi4py has MPI return errors instead of ending the program: every code is looked at. */
static bool succeeded(const spmd_job *job, int code, spmd_mpi_error *error)
{
    char text[MPI_TEXT_BYTES] = "";
    int length = 0;
    int (*error_string)(int, char *, int *) = job->mpi.error_string;

    if (code == 0)
        return true;
    error_string(code, text, &length);
    size_t kept = strnlen(text, sizeof error->text - 1);
    memcpy(error->text, text, kept);
    error->text[kept] = 0;
    return false;
}

#define CALL(job, name, ...)                                                                       \
    (is_pointer(job) ? pointer_##name(&(job)->mpi, __VA_ARGS__)                                    \
                     : number_##name(&(job)->mpi, __VA_ARGS__))

bool spmd_mpi_send(spmd_job *job, bool synchronous, const void *from, int bytes, int to, int tag,
                   spmd_handle *request, spmd_mpi_error *error)
{
    return succeeded(job, CALL(job, send, synchronous, from, bytes, to, tag, request), error);
}

bool spmd_mpi_receive(spmd_job *job, void *into, int bytes, int from, int tag,
                      spmd_handle *request, spmd_mpi_error *error)
{
    return succeeded(job, CALL(job, receive, into, bytes, from, tag, request), error);
}

bool spmd_mpi_test(spmd_job *job, spmd_handle *request, bool *complete, spmd_mpi_error *error)
{
    _Alignas(16) char status[STATUS_BYTES];
    int flag = 0;
    int code = CALL(job, test, request, &flag, status);
    *complete = flag != 0;
    return succeeded(job, code, error);
}

/* ---- MPI's collectives, timed ---------------------------------------------------------------- */

#define INSTANTIATE_TURN(family, handle)                                                           \
    static int family##_turn(const spmd_mpi_turns *m)                                              \
    {                                                                                              \
        typedef handle h;                                                                          \
        h type = (h)m->type, op = (h)m->op, comm = (h)m->comm;                                     \
        const spmd_turns *t = &m->turns;                                                           \
        int n = (int)t->count, ranks = (int)t->ranks, next = (int)((t->rank + 1) % ranks);         \
        int before = (int)((t->rank + ranks - 1) % ranks);                                         \
        void *call = m->collective, *from = t->from, *into = t->into;                              \
        switch (t->kind) {                                                                         \
        case SPMD_MPI_BARRIER:                                                                     \
            return ((int (*)(h))call)(comm);                                                       \
        case SPMD_MPI_BCAST:                                                                       \
            return ((int (*)(void *, int, h, int, h))call)(into, n, type, 0, comm);                \
        case SPMD_MPI_REDUCE:                                                                      \
            return ((int (*)(void *, void *, int, h, h, int, h))call)(from, into, n, type, op, 0,  \
                                                                      comm);                       \
        case SPMD_MPI_ALLREDUCE:                                                                   \
        case SPMD_MPI_SCAN:                                                                        \
        case SPMD_MPI_EXSCAN:                                                                      \
            return ((int (*)(void *, void *, int, h, h, h))call)(from, into, n, type, op, comm);   \
        case SPMD_MPI_REDUCE_SCATTER:                                                              \
            return ((int (*)(void *, void *, int, h, h, h))call)(from, into, n / ranks, type, op,  \
                                                                 comm);                            \
        case SPMD_MPI_ALLGATHER:                                                                   \
        case SPMD_MPI_ALLTOALL:                                                                    \
            return ((int (*)(void *, int, h, void *, int, h, h))call)(from, n, type, into, n,      \
                                                                      type, comm);                 \
        case SPMD_MPI_GATHER:                                                                      \
        case SPMD_MPI_SCATTER:                                                                     \
            return ((int (*)(void *, int, h, void *, int, h, int, h))call)(from, n, type, into, n, \
                                                                           type, 0, comm);         \
        case SPMD_MPI_SENDRECV:                                                                    \
            return ((int (*)(void *, int, h, int, int, void *, int, h, int, int, h, void *))call)( \
                from, n, type, next, 0, into, n, type, before, 0, comm,                            \
                (_Alignas(16) char[STATUS_BYTES]){0});                                             \
        default:                                                                                   \
            return -1;                                                                             \
        }                                                                                          \
    }                                                                                              \
    static int family##_barrier(const spmd_mpi_turns *m)                                           \
    {                                                                                              \
        return ((int (*)(handle))m->barrier)((handle)m->comm);                                     \
    }

INSTANTIATE_TURN(number, int)
INSTANTIATE_TURN(pointer, void *)

int64_t spmd_mpi_measure(const spmd_mpi_turns *m, int64_t count, int64_t *nanoseconds)
{
    bool pointers = m->handle_bytes == (int64_t)sizeof(void *);
    spmd_turns turns = m->turns;
    int64_t wrong = 0;

    if (turns.kind == SPMD_MPI_BCAST)
        turns.from = turns.into;
    for (int64_t turn = 0; turn < count; turn++) {
        spmd_turn_give(&turns, turn);
        if (pointers ? pointer_barrier(m) : number_barrier(m))
            return -1;
        int64_t begin = spmd_now();
        if (pointers ? pointer_turn(m) : number_turn(m))
            return -1;
        nanoseconds[turn] = spmd_now() - begin;
        if (pointers ? pointer_barrier(m) : number_barrier(m))
            return -1;
        wrong += spmd_turn_wrong(&turns, turn);
    }
    return wrong;
}
