/* What every hosted rank did when, for timelines and profiles: an event for each compute phase and
 * each exchange, up to a number of them, and totals by operation for all of them. Where nothing is
 * recorded, nothing here is called. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

typedef struct spmd_timeline {
    int64_t since, busy; /* of what is under way; since 0: nothing is */
    int64_t progress;    /* when the exchange under way last got further */
    int64_t position;    /* of the rank, when what is under way began */
    int64_t count;       /* events, also those that there was no room for */
    spmd_event *event;
    spmd_total *total; /* by operation */
} spmd_timeline;

/* Bytes that the complete exchange brought to this rank from others, or as a result. */
static int64_t exchange_bytes(const spmd_hosted *me, const spmd_rank *rank)
{
    const spmd_exchange *exchange = &rank->exchange;
    int64_t elements = 0;
    spmd_box from, into;

    if (exchange->kind == SPMD_BARRIER)
        return 0;
    if (exchange->kind == SPMD_PERMUTE && me->source == SPMD_NONE)
        return 0;
    if (exchange->fold && !spmd_member_reads(exchange, exchange->position, 0))
        return 0;
    if (exchange->kind != SPMD_PULL) {
        exchange->pull(rank, exchange->kind == SPMD_PERMUTE ? me->source : 0, &from, &into);
        return spmd_box_elements(&into) * exchange->size;
    }
    for (int64_t member = 0; member < exchange->members; member++)
        if (member != exchange->position &&
            spmd_member_reads(exchange, exchange->position, member)) {
            for (int64_t wrap = 0; wrap < exchange->wraps; wrap++) {
                exchange->pull(rank, spmd_wrap_of(exchange, member, wrap), &from, &into);
                elements += spmd_box_elements(&into);
            }
        }
    return elements * exchange->size;
}

static void keep(spmd_hosted *me, const spmd_event *event)
{
    spmd_timeline *timeline = me->timeline;
    if (timeline->count++ < me->job->events)
        timeline->event[timeline->count - 1] = *event;
}

/* What was under way ends. */
static void end_event(spmd_hosted *me, int64_t now, int64_t busy, int64_t bytes)
{
    spmd_timeline *timeline = me->timeline;
    const spmd_event event = {
        .begin = timeline->since,
        .end = now,
        .busy = busy,
        .bytes = bytes,
        .operation = me->record->rank.operation,
        .position = timeline->position,
    };
    timeline->since = timeline->busy = 0;
    keep(me, &event);
    if (event.operation >= me->job->operations)
        return;
    spmd_total *total = &timeline->total[event.operation];
    int64_t time = event.end - event.begin;
    total->count++;
    total->time += time;
    total->busy += busy;
    total->bytes += bytes;
    total->longest = time > total->longest ? time : total->longest;
}

/* A compute phase ends where the next operation begins. */
static void timed_enter(spmd_rank *rank, uint32_t operation)
{
    spmd_hosted *me = rank->engine_data;
    int64_t now = spmd_now();

    if (me->timeline->since)
        end_event(me, now, now - me->timeline->since, 0);
    rank->operation = operation;
    me->timeline->position = spmd_rank_position(me->job, rank);
    me->timeline->since = me->timeline->progress = now;
}

/* A try that gets the exchange further is work; from the one before it until then, the rank has
 * waited. */
int spmd_timeline_try(spmd_hosted *me, spmd_rank *rank, spmd_exchange *exchange,
                      spmd_advance advance)
{
    spmd_timeline *timeline = me->timeline;
    uint32_t before = rank->stage;
    int64_t begin = before == 0 ? timeline->since : spmd_now();
    int complete = advance(me, rank, exchange);

    if (!complete && rank->stage == before)
        return 0;
    int64_t now = spmd_now();
    if (before != 0) {
        const spmd_event wait = {
            .begin = timeline->progress,
            .end = begin,
            .operation = rank->operation,
            .waits = 1,
            .position = timeline->position,
        };
        keep(me, &wait);
    }
    timeline->progress = now;
    timeline->busy += now - begin;
    if (complete)
        end_event(me, now, timeline->busy, exchange_bytes(me, rank));
    return complete;
}

/* A rank has what it asked its feed for: since it waited (0: it did not) until `begin`, then it
 * copied so many bytes. */
void spmd_timeline_fed(spmd_hosted *me, int64_t since, int64_t begin, int64_t bytes)
{
    spmd_timeline *timeline = me->timeline;
    if (!timeline || !timeline->since)
        return;
    int64_t now = spmd_now(), waited = since ? begin - since : 0;
    if (since) {
        const spmd_event wait = {
            .begin = since,
            .end = begin,
            .operation = me->record->rank.operation,
            .waits = 1,
            .position = timeline->position,
        };
        keep(me, &wait);
    }
    end_event(me, now, now - timeline->since - waited, bytes);
}

/* The rank has done its last phase. */
void spmd_timeline_end(spmd_hosted *me)
{
    if (!me->timeline || !me->timeline->since)
        return;
    int64_t now = spmd_now();
    end_event(me, now, now - me->timeline->since, 0);
}

void spmd_timeline_begin(spmd_hosted *me)
{
    if (!me->timeline)
        return;
    me->timeline->since = me->timeline->busy = me->timeline->count = 0;
    memset(me->timeline->total, 0, (size_t)me->job->operations * sizeof(spmd_total));
}

static bool timeline_new(spmd_hosted *me)
{
    spmd_timeline *timeline = calloc(1, sizeof *timeline);
    size_t events = (size_t)me->job->events * sizeof(spmd_event);

    me->timeline = timeline;
    if (!timeline)
        return false;
    timeline->event = malloc(events + 1);
    timeline->total = calloc((size_t)me->job->operations + 1, sizeof *timeline->total);
    if (!timeline->event || !timeline->total)
        return false;
    memset(timeline->event, 1, events); /* taken now, not while something is timed */
    return true;
}

int spmd_job_timeline(spmd_job *job, int64_t operations, int64_t events)
{
    if (!job->hosted || operations < 0 || events < 0)
        return SPMD_RANGE;
    if (job->engine.enter || spmd_job_runs(job))
        return SPMD_BUSY;
    job->operations = operations;
    job->events = events;
    for (int64_t k = 0; k < job->count; k++)
        if (!timeline_new(&job->hosted[k]))
            return SPMD_NO_MEMORY;
    job->engine.enter = timed_enter;
    return SPMD_OK;
}

void spmd_timeline_free(spmd_hosted *me)
{
    if (!me->timeline)
        return;
    free(me->timeline->event);
    free(me->timeline->total);
    free(me->timeline);
}

int64_t spmd_job_events(const spmd_job *job, int64_t rank, const spmd_event **events,
                        const spmd_total **totals)
{
    int64_t k = rank - job->first;
    if (!job->hosted || k < 0 || k >= job->count || !job->hosted[k].timeline)
        return -1;
    const spmd_timeline *timeline = job->hosted[k].timeline;
    *events = timeline->event;
    *totals = timeline->total;
    return timeline->count;
}
