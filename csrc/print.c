/* Lines of text on their way from programs to the host language. The queue is taken at load; only
 * when the host language falls far behind does it grow, because no line may be lost. */
#define _GNU_SOURCE
#include "parts.h"

#include <stdlib.h>
#include <string.h>

#define TEXT_BYTES (64 * 1024)
#define PACE_NS 100000000 /* between texts that are not wanted each time */

int spmd_text_open(spmd_text *text)
{
    text->bytes = malloc(TEXT_BYTES);
    text->capacity = TEXT_BYTES;
    text->begin = text->end = 0;
    if (!text->bytes)
        return SPMD_NO_MEMORY;
    pthread_mutex_init(&text->lock, NULL);
    return SPMD_OK;
}

void spmd_text_close(spmd_text *text)
{
    if (!text->bytes)
        return;
    free(text->bytes);
    text->bytes = NULL;
    pthread_mutex_destroy(&text->lock);
}

/* Room for `length` more bytes behind `end`; called with the lock held. */
static bool text_reserve(spmd_text *text, int64_t length)
{
    int64_t used = text->end - text->begin;
    if (text->end + length <= text->capacity)
        return true;
    memmove(text->bytes, text->bytes + text->begin, (size_t)used);
    text->begin = 0;
    text->end = used;
    if (used + length <= text->capacity)
        return true;
    int64_t capacity = 2 * (used + length);
    char *bytes = realloc(text->bytes, (size_t)capacity);
    if (!bytes)
        return false;
    text->bytes = bytes;
    text->capacity = capacity;
    return true;
}

void spmd_rank_print(spmd_rank *rank, const char *line, int64_t length)
{
    spmd_job *job = ((spmd_hosted *)rank->engine_data)->job;
    spmd_text *text = &job->text;

    pthread_mutex_lock(&text->lock);
    bool room = text_reserve(text, length + 1);
    bool first = text->begin == text->end;
    if (room) {
        memcpy(text->bytes + text->end, line, (size_t)length);
        text->end += length;
        text->bytes[text->end++] = '\n';
    }
    pthread_mutex_unlock(&text->lock);
    if (!room)
        spmd_rank_fail(rank, 69, "no memory for %lld bytes of printed text", (long long)length);
    else if (first) {
        pthread_mutex_lock(&job->lock);
        pthread_cond_broadcast(&job->news);
        pthread_mutex_unlock(&job->lock);
    }
}

int spmd_rank_due(spmd_rank *rank)
{
    spmd_text *text = &((spmd_hosted *)rank->engine_data)->job->text;
    int64_t now = spmd_now();
    if (now < text->due)
        return 0;
    text->due = now + PACE_NS;
    return 1;
}

bool spmd_text_waits(spmd_text *text)
{
    pthread_mutex_lock(&text->lock);
    bool waits = text->begin < text->end;
    pthread_mutex_unlock(&text->lock);
    return waits;
}

int64_t spmd_job_text(spmd_job *job, char *into, int64_t capacity)
{
    spmd_text *text = &job->text;
    if (!text->bytes || capacity <= 0)
        return 0;
    pthread_mutex_lock(&text->lock);
    int64_t bytes = text->end - text->begin;
    if (bytes > capacity) {
        const char *last = memrchr(text->bytes + text->begin, '\n', (size_t)capacity);
        /* A line longer than the caller's room is handed over in pieces. */
        bytes = last ? last + 1 - (text->bytes + text->begin) : capacity;
    }
    memcpy(into, text->bytes + text->begin, (size_t)bytes);
    text->begin += bytes;
    if (text->begin == text->end)
        text->begin = text->end = 0;
    pthread_mutex_unlock(&text->lock);
    return bytes;
}
