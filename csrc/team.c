/* Who hosts whom: ranks to processes to arenas; and for every exchange the members of its group
 * that share this arena, or are near a rank. Where one arena has all ranks, teams cost nothing. */
#include "parts.h"

#include <stdlib.h>
#include <string.h>

/* The ranks of this process's arena lie between `lowest` and `highest`; memory is reserved for all
 * between them, and taken only for those that are here. */
static void arena_span(spmd_job *job)
{
    const spmd_processes *processes = &job->processes;
    int64_t mine = processes->arena[processes->number];

    job->lowest = job->world.ranks;
    job->highest = 0;
    for (int64_t p = 0; p < processes->count; p++) {
        int64_t hosted = processes->first[p + 1] - processes->first[p];
        job->widest = hosted > job->widest ? hosted : job->widest;
        job->parted |= processes->arena[p] != mine;
        if (processes->arena[p] != mine)
            continue;
        job->lowest = processes->first[p] < job->lowest ? processes->first[p] : job->lowest;
        job->highest = processes->first[p + 1] - 1;
    }
}

static bool processes_fit(const spmd_job *job, const spmd_processes *given)
{
    if (given->count < 1 || given->number < 0 || given->number >= given->count ||
        given->first[0] != 0 || given->first[given->count] != job->world.ranks)
        return false;
    for (int64_t p = 0; p < given->count; p++)
        if (given->first[p] >= given->first[p + 1] || given->arena[p] < 0 ||
            given->arena[p] >= given->count || given->host[p] < 0 || given->host[p] >= given->count)
            return false;
    return given->first[given->number] == job->first &&
           given->first[given->number + 1] == job->first + job->count;
}

int spmd_processes_take(spmd_job *job, const spmd_settings *settings)
{
    const spmd_processes *given = settings->processes;

    job->lowest = 0;
    job->highest = settings->ranks - 1;
    if (!given)
        return SPMD_OK;
    if (!processes_fit(job, given))
        return SPMD_RANGE;
    size_t words = (size_t)given->count + 1;
    int64_t *tables = calloc(3 * words, sizeof *tables);
    if (!tables)
        return SPMD_NO_MEMORY;
    memcpy(tables, given->first, words * sizeof *tables);
    memcpy(tables + words, given->arena, (words - 1) * sizeof *tables);
    memcpy(tables + 2 * words, given->host, (words - 1) * sizeof *tables);
    job->processes = (spmd_processes){.count = given->count,
                                      .number = given->number,
                                      .first = tables,
                                      .arena = tables + words,
                                      .host = tables + 2 * words};
    arena_span(job);
    if (given->mpi)
        job->mpi = *given->mpi;
    return job->parted && !given->mpi ? SPMD_RANGE : SPMD_OK;
}

/* The process whose first rank is the last one not above `rank`. */
int64_t spmd_rank_process(const spmd_job *job, int64_t rank)
{
    const int64_t *first = job->processes.first;
    int64_t low = 0, high = job->processes.count;

    while (high - low > 1) {
        int64_t middle = low + (high - low) / 2;
        if (first[middle] <= rank)
            low = middle;
        else
            high = middle;
    }
    return low;
}

static int64_t rank_arena(const spmd_job *job, int64_t rank)
{
    return job->processes.arena[spmd_rank_process(job, rank)];
}

bool spmd_process_here(const spmd_job *job, int64_t process)
{
    return job->processes.host[process] == job->processes.host[job->processes.number];
}

bool spmd_rank_near(const spmd_job *job, int64_t rank)
{
    return !job->parted || rank_arena(job, rank) == job->processes.arena[job->processes.number];
}

/* One pass over the members: those of my arena, and the first of every arena. */
static bool team_fill(spmd_team *team, const spmd_job *job, const spmd_exchange *exchange)
{
    int64_t mine = job->processes.arena[job->processes.number];
    int64_t *leader_of = malloc((size_t)job->processes.count * sizeof *leader_of);

    team->member = malloc((size_t)exchange->members * sizeof *team->member);
    team->leader = malloc((size_t)job->processes.count * sizeof *team->leader);
    if (leader_of && team->member && team->leader) {
        memset(leader_of, 0, (size_t)job->processes.count * sizeof *leader_of);
        for (int64_t member = 0; member < exchange->members; member++) {
            int64_t arena = rank_arena(job, spmd_member_rank(exchange, member));
            if (!leader_of[arena]) {
                leader_of[arena] = 1;
                if (arena == mine)
                    team->arena = team->arenas;
                team->leader[team->arenas++] = member;
            }
            if (member == exchange->position)
                team->position = team->count;
            if (arena == mine)
                team->member[team->count++] = member;
        }
    }
    free(leader_of);
    return team->count > 0;
}

/* Sets me->team. false: the rank has failed. */
bool spmd_team_find(spmd_hosted *me, const spmd_exchange *exchange)
{
    spmd_job *job = me->job;

    if (!job->parted) {
        me->whole.count = exchange->members;
        me->whole.position = exchange->position;
        me->team = &me->whole;
        return true;
    }
    spmd_team **team = &me->teams[exchange->site];
    if (!*team) {
        *team = calloc(1, sizeof **team);
        if (!*team || !team_fill(*team, job, exchange)) {
            spmd_rank_fail(&me->record->rank, 69, "no memory for a group of %lld ranks",
                           (long long)exchange->members);
            return false;
        }
    }
    me->team = *team;
    return true;
}

spmd_span spmd_team_search(const spmd_team *team, int64_t begin, int64_t end)
{
    spmd_span span = spmd_span_of(0, 0);
    while (span.begin < team->count && team->member[span.begin] < begin)
        span.begin++;
    for (span.end = span.begin; span.end < team->count && team->member[span.end] < end;)
        span.end++;
    return span;
}

/* ---- neighbours ----------------------------------------------------------------------------- */

/* Of the members along an axis, how many are in a range. */
static int64_t range_extent(spmd_range range, int64_t count)
{
    return range.end > range.begin ? spmd_least(range.end - range.begin, count) : 0;
}

static int64_t ranges_product(const spmd_exchange *exchange, const spmd_range *range)
{
    int64_t product = 1;
    for (int axis = 0; axis < SPMD_AXES; axis++)
        product *= range_extent(range[axis], exchange->count[axis]);
    return product;
}

/* Places of the members in a product of ranges, in this arena: me first, if wanted. */
static spmd_span near_list(const spmd_team *team, const spmd_exchange *exchange,
                           const spmd_range *range, bool wants_me, int64_t *list)
{
    int64_t count = 0, found = ranges_product(exchange, range);
    for (int64_t k = 0; k < found; k++) {
        int64_t member = 0, left = k, weight = 1;
        for (int axis = SPMD_AXES - 1; axis >= 0; axis--) {
            int64_t along = exchange->count[axis], extent = range_extent(range[axis], along);
            int64_t at = (range[axis].begin + left % extent) % along;
            member += (at < 0 ? at + along : at) * weight;
            left /= extent;
            weight *= along;
        }
        spmd_span place = spmd_team_span(team, member, member + 1);
        bool me = member == exchange->position;
        if (place.begin == place.end || (me && !wants_me))
            continue;
        list[count++] = me ? list[0] : place.begin;
        if (me)
            list[0] = place.begin;
    }
    return (spmd_span){.end = (int32_t)count, .list = list};
}

/* Leaves out of a list those between whom and me nothing moves, and says which wraps of the others
 * matter. */
static void near_wraps(const spmd_hosted *me, const spmd_exchange *exchange, bool sources,
                        spmd_span *span, int64_t *list, uint64_t *wraps)
{
    const spmd_rank *rank = &me->record->rank;
    bool known = exchange->constant && exchange->wraps <= SPMD_WRAPS;
    int64_t count = 0;

    for (int64_t k = 0; k < span->end; k++) {
        uint64_t found = known ? 0 : UINT64_MAX;
        for (int64_t wrap = 0; known && wrap < exchange->wraps; wrap++) {
            int64_t box = spmd_wrap_of(exchange, spmd_team_member(me->team, list[k]), wrap);
            spmd_box from, into;
            if (sources)
                exchange->pull(rank, box, &from, &into);
            else
                exchange->send(rank, box, &from);
            found |= (uint64_t)(spmd_box_elements(&from) > 0) << wrap;
        }
        if (found) {
            wraps[count] = found;
            list[count++] = list[k];
        }
    }
    span->end = (int32_t)count;
}

static spmd_span near_both(const spmd_near *near, int64_t own, int64_t *list)
{
    int64_t count = 0;
    for (int64_t k = 0; k < near->readers.end; k++)
        list[count++] = near->readers.list[k];
    for (int64_t k = 0; k < near->sources.end; k++) {
        int64_t place = near->sources.list[k], r = 0;
        while (r < near->readers.end && list[r] != place)
            r++;
        if (r == near->readers.end && place != own)
            list[count++] = place;
    }
    return (spmd_span){.end = (int32_t)count, .list = list};
}

/* What I read of another arena, or what is read of me there, at these distances. */
static void near_distances(spmd_near *near, const spmd_hosted *me, const spmd_exchange *exchange)
{
    int64_t members = exchange->members, own = exchange->position;
    for (int64_t distance = 1; me->job->parted && distance < members; distance++) {
        int64_t to = (own + distance) % members, from = (own + members - distance) % members;
        if ((spmd_member_reads(exchange, to, own) && spmd_member_far(me, exchange, to)) ||
            (spmd_member_reads(exchange, own, from) && spmd_member_far(me, exchange, from)))
            near->distance[near->distances++] = distance;
    }
}

/* Sets me->near. false: the rank has failed. */
bool spmd_near_find(spmd_hosted *me, const spmd_exchange *exchange)
{
    if (!me->nears)
        me->nears = calloc((size_t)me->job->image->sites, sizeof *me->nears);
    spmd_near *near = me->nears ? me->nears[exchange->site] : NULL;
    if (me->nears && !near) {
        int64_t sources = ranges_product(exchange, exchange->sources);
        int64_t both = sources + ranges_product(exchange, exchange->readers);
        near = calloc(1, sizeof *near + 4 * (size_t)both * sizeof *near->list);
        if (near) {
            near->sources = near_list(me->team, exchange, exchange->sources, true, near->list);
            near->readers = near_list(me->team, exchange, exchange->readers, false,
                                      near->list + sources);
            near->source_wraps = (uint64_t *)(near->list + 3 * both);
            near->reader_wraps = near->source_wraps + sources;
            near_wraps(me, exchange, true, &near->sources, near->list, near->source_wraps);
            near_wraps(me, exchange, false, &near->readers, near->list + sources,
                        near->reader_wraps);
            near->both = near_both(near, me->team->position, near->list + both);
            near->distance = near->list + 2 * both;
            near_distances(near, me, exchange);
        }
        me->nears[exchange->site] = near;
    }
    if (!near)
        spmd_rank_fail(&me->record->rank, 69, "no memory for a list of neighbours");
    me->near = near;
    return near;
}

/* Neighbours are found again: what moves between them may have changed. */
void spmd_nears_free(spmd_hosted *hosted, uint32_t sites)
{
    for (uint32_t site = 0; hosted->nears && site < sites; site++)
        free(hosted->nears[site]);
    free(hosted->nears);
    hosted->nears = NULL;
}

void spmd_teams_free(spmd_hosted *hosted, uint32_t sites)
{
    for (uint32_t site = 0; hosted->teams && site < sites; site++)
        if (hosted->teams[site]) {
            free(hosted->teams[site]->member);
            free(hosted->teams[site]->leader);
            free(hosted->teams[site]);
        }
    free(hosted->teams);
    spmd_nears_free(hosted, sites);
}
