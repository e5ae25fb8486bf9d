/* How long ranks wait for batches of their feeds, and which one waits for what. They say so
 * themselves (take.c); others look while they run. */
#define _GNU_SOURCE
#include "parts.h"

static void reader_waits(const spmd_hosted *me, int64_t feed, int64_t *waited, int64_t *passed)
{
    const spmd_reader *reader = &me->streams[feed];
    int64_t first = atomic_load(&reader->first), since = atomic_load(&me->starves);
    *waited = first ? atomic_load(&reader->waited) : 0;
    *passed = first ? atomic_load(&reader->last) - first : 0;
    if (first && since && atomic_load(&me->hungry) == feed) {
        int64_t now = spmd_now();
        *waited += now - since;
        *passed = now - first;
    }
}

/* A rank without rows hears of batches with those that hold some, and may wait until these have
 * come so far: that says nothing of who makes the batches. */
static bool is_beside(const spmd_hosted *me, int64_t feed)
{
    return me->streams[feed].idle && me->streams[feed].ring->readers > 0;
}

int spmd_ring_wants(const spmd_ring *ring, int64_t k)
{
    const spmd_job *job = ring->job;
    int wants = 0;
    for (int64_t r = 0; r < job->count; r++) {
        const spmd_hosted *me = &job->hosted[r];
        const spmd_reader *reader = &me->streams[ring->fed->number];
        if (reader->ring != ring || is_beside(me, ring->fed->number))
            continue;
        if (atomic_load(&me->starves) && atomic_load(&me->hungry) == ring->fed->number &&
            atomic_load(&reader->taken) == k) {
            if (atomic_load(&reader->sent) < k)
                return 2;
            wants = 1;
        }
    }
    return wants;
}

void spmd_ring_waits(const spmd_ring *ring, int64_t *waited, int64_t *passed)
{
    const spmd_job *job = ring->job;
    int64_t count = 0;
    *waited = *passed = 0;
    for (int64_t k = 0; k < job->count; k++) {
        int64_t w, p;
        if (job->hosted[k].streams[ring->fed->number].ring != ring ||
            is_beside(&job->hosted[k], ring->fed->number))
            continue;
        reader_waits(&job->hosted[k], ring->fed->number, &w, &p);
        *waited += w;
        *passed += p;
        count++;
    }
    *waited /= count;
    *passed /= count;
}

void spmd_job_feed_waits(const spmd_job *job, int64_t feed, int64_t *waited, int64_t *passed)
{
    *waited = *passed = 0;
    for (int64_t k = 0; spmd_job_fed(job, feed) && k < job->count; k++) {
        int64_t w, p;
        if (is_beside(&job->hosted[k], feed))
            continue;
        reader_waits(&job->hosted[k], feed, &w, &p);
        if (w > *waited || *passed == 0) {
            *waited = w;
            *passed = p;
        }
    }
}

int64_t spmd_job_starves(const spmd_job *job, int64_t *rank, int64_t *feed, int64_t *batch)
{
    int64_t longest = 0, now = spmd_now();
    for (int64_t k = 0; job->feds && k < job->count; k++) {
        const spmd_hosted *me = &job->hosted[k];
        int64_t since = atomic_load(&me->starves);
        if (!since || now - since <= longest || is_beside(me, atomic_load(&me->hungry)))
            continue;
        longest = now - since;
        *rank = job->first + k;
        *feed = atomic_load(&me->hungry);
        *batch = atomic_load(&me->streams[*feed].taken);
    }
    return longest;
}
