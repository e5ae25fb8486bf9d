/* The one file that calls MPI. The engine is compiled without any MPI: functions and handles come
 * from the library that mpi4py loaded. Handles are integers in one family of MPI and pointers in
 * the other, so every call is written once and instantiated for both. */
#define _GNU_SOURCE
#include "parts.h"

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
