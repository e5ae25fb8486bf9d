/* Memory that all processes of a host see: one anonymous memory file, mapped by each of them, or
 * private memory where one process hosts all ranks. A header, a record per rank, then the memory
 * of every rank: the same capacity for all, so that an address is arithmetic on the index.
 * Nothing has a name; when the last process is gone, so is the memory. */
#define _GNU_SOURCE
#include "parts.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define HUGE_FROM (4 << 20) /* bytes */

static int arena_map(spmd_arena *arena)
{
    int flags = arena->fd < 0 ? MAP_PRIVATE | MAP_ANONYMOUS : MAP_SHARED;
    void *at = mmap(NULL, (size_t)arena->bytes, PROT_READ | PROT_WRITE, flags | MAP_NORESERVE,
                    arena->fd, 0);
    if (at == MAP_FAILED)
        return errno == ENOMEM ? SPMD_NO_MEMORY : SPMD_SYSTEM;
#ifdef MADV_HUGEPAGE
    /* Fewer pages to look up, and prefetching that goes on: NumPy asks for the same from this size
     * on. Memory files have huge pages only where the machine's owner says so. */
    if (arena->fd < 0 && arena->bytes >= HUGE_FROM)
        madvise(at, (size_t)arena->bytes, MADV_HUGEPAGE);
#endif
    arena->header = at;
    return SPMD_OK;
}

/* A sealed memory file cannot shrink under those who mapped it: no late bus error. */
static int arena_file(spmd_arena *arena)
{
    arena->fd = memfd_create("spmd", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (arena->fd < 0)
        return SPMD_SYSTEM;
    if (ftruncate(arena->fd, arena->bytes))
        return errno == ENOSPC || errno == ENOMEM ? SPMD_NO_MEMORY : SPMD_SYSTEM;
    if (fcntl(arena->fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW))
        return SPMD_SYSTEM;
    return SPMD_OK;
}

static spmd_arena *arena_allocate(int64_t bytes)
{
    spmd_arena *arena = calloc(1, sizeof *arena);
    if (arena) {
        arena->bytes = spmd_round_up(bytes, SPMD_PAGE);
        arena->fd = -1;
    }
    return arena;
}

int spmd_arena_new(int64_t bytes, int shared, spmd_arena **made)
{
    if (bytes < SPMD_PAGE || bytes > INT64_MAX - SPMD_PAGE)
        return SPMD_RANGE;
    spmd_arena *arena = arena_allocate(bytes);
    if (!arena)
        return SPMD_NO_MEMORY;
    int status = shared ? arena_file(arena) : SPMD_OK;
    if (status == SPMD_OK)
        status = arena_map(arena);
    if (status == SPMD_OK)
        status = spmd_pages_take((char *)arena->header,
                                 spmd_least(bytes, (int64_t)sizeof(spmd_header)));
    if (status == SPMD_OK) {
        uint64_t nonce;
        if (getrandom(&nonce, sizeof nonce, 0) != sizeof nonce)
            status = SPMD_SYSTEM;
        else {
            arena->header->nonce = nonce;
            arena->header->bytes = arena->bytes;
        }
    }
    if (status != SPMD_OK) {
        int cause = errno;
        spmd_arena_free(arena);
        errno = cause;
        return status;
    }
    *made = arena;
    return SPMD_OK;
}

int spmd_arena_attach(const char *path, int64_t bytes, uint64_t nonce, spmd_arena **made)
{
    struct stat file;

    if (bytes < SPMD_PAGE || bytes > INT64_MAX - SPMD_PAGE)
        return SPMD_RANGE;
    spmd_arena *arena = arena_allocate(bytes);
    if (!arena)
        return SPMD_NO_MEMORY;
    int status = SPMD_SYSTEM;
    arena->fd = open(path, O_RDWR | O_CLOEXEC | O_NONBLOCK | O_NOCTTY);
    if (arena->fd >= 0 && fstat(arena->fd, &file) == 0) {
        /* Measured before it is read: a shorter file would be a bus error. */
        bool fits = S_ISREG(file.st_mode) && file.st_size == arena->bytes;
        status = fits ? arena_map(arena) : SPMD_MISMATCH;
    }
    if (status == SPMD_OK && arena->header->nonce != nonce)
        status = SPMD_MISMATCH;
    if (status != SPMD_OK) {
        int cause = errno;
        spmd_arena_free(arena);
        errno = cause;
        return status;
    }
    *made = arena;
    return SPMD_OK;
}

int spmd_arena_fd(const spmd_arena *arena)
{
    return arena->fd;
}

uint64_t spmd_arena_nonce(const spmd_arena *arena)
{
    return arena->header->nonce;
}

void spmd_arena_close_fd(spmd_arena *arena)
{
    if (arena->fd >= 0)
        close(arena->fd);
    arena->fd = -1;
}

void spmd_arena_free(spmd_arena *arena)
{
    if (!arena)
        return;
    if (arena->header)
        munmap(arena->header, (size_t)arena->bytes);
    spmd_arena_close_fd(arena);
    free(arena);
}

void *spmd_arena_memory(const spmd_arena *arena)
{
    return (char *)arena->header + SPMD_ARENA_HEAD;
}

/* Makes pages exist now, so that no superstep pays for it or fails for want of it. A page that is
 * shared with a neighbouring rank keeps what is in it. */
int spmd_pages_take(char *from, int64_t bytes)
{
    if (bytes <= 0)
        return SPMD_OK;
    uintptr_t begin = (uintptr_t)from / SPMD_PAGE * SPMD_PAGE;
    uintptr_t end = ((uintptr_t)from + (uintptr_t)bytes + SPMD_PAGE - 1) / SPMD_PAGE * SPMD_PAGE;
#ifdef MADV_POPULATE_WRITE
    if (madvise((void *)begin, end - begin, MADV_POPULATE_WRITE) == 0)
        return SPMD_OK;
    if (errno == ENOMEM || errno == EFAULT)
        return SPMD_NO_MEMORY;
#endif
    /* An older kernel: adding nothing, atomically, writes each page and changes none. */
    for (uintptr_t page = begin; page < end; page += SPMD_PAGE)
        atomic_fetch_add_explicit((_Atomic int32_t *)page, 0, memory_order_relaxed);
    return SPMD_OK;
}

spmd_record *spmd_job_record(const spmd_job *job, int64_t rank)
{
    assert(rank >= job->lowest && rank <= job->highest && "a record is a rank's of this arena");
    return (spmd_record *)((char *)job->arena->header + job->records_at +
                           (rank - job->lowest) * job->record_bytes);
}

spmd_site *spmd_job_site(const spmd_job *job, int64_t rank, uint32_t site)
{
    return (spmd_site *)(spmd_job_record(job, rank)->sites + site * job->site_bytes);
}

char *spmd_job_memory(const spmd_job *job, int64_t rank)
{
    assert(rank >= job->lowest && rank <= job->highest && "memory is of a rank of this arena");
    return (char *)job->arena->header + job->memory_at + (rank - job->lowest) * job->rank_bytes;
}
