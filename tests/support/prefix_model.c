#include "prefix_model.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

enum { PAGE = KV_PAGE_TOKENS };

void model_init(struct model *m, const struct prefix_options *o, size_t n_pages)
{
    ASSERT(n_pages <= MODEL_PAGES_MAX);
    *m = (struct model){.options = *o, .n_pages = n_pages};
}

void model_fini(struct model *m)
{
    free(m->past);
}

static size_t count_equal(const int32_t *a, const int32_t *b, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != b[i])
            return i;
    return n;
}

static bool starts_with(const struct model_entry *entry, int salt, const int32_t *tokens,
                        size_t n)
{
    return entry->is_there && entry->salt == salt && entry->n >= n &&
           count_equal(entry->tokens, tokens, n) == n;
}

static size_t block_of(const struct model_entry *entry)
{
    return (entry->n - 1) / PAGE;
}

static bool is_idle(const struct model *m, const struct model_entry *entry)
{
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++)
        for (size_t k = 0; k < m->jobs[i].n_pages; k++)
            if (m->jobs[i].pages[k] == entry)
                return false;
    return entry->is_there;
}

static size_t count_idle(const struct model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < MODEL_PAGES_MAX; i++)
        n += is_idle(m, &m->entries[i]);
    return n;
}

static size_t count_free(const struct model *m)
{
    size_t n = 0;
    for (size_t i = 0; i < MODEL_PAGES_MAX; i++)
        n += m->entries[i].is_there;
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++)
        for (size_t k = 0; k < m->jobs[i].n_pages; k++)
            n += m->jobs[i].pages[k] == NULL;
    ASSERT(n <= m->n_pages);
    return m->n_pages - n;
}

size_t model_available(const struct model *m)
{
    return count_free(m) + count_idle(m);
}

static bool wants(const struct model_job *job, const struct model_entry *entry)
{
    return job->state == MODEL_WANTED && entry->n % PAGE == 0 && job->n_prompt >= entry->n &&
           starts_with(entry, job->salt, job->tokens, entry->n);
}

static bool is_sooner(const struct model_job *a, const struct model_job *b)
{
    return a->is_next != b->is_next ? a->is_next : a->number < b->number;
}

/* The first of those that want it, or NULL. */
static const struct model_job *wanted_by(const struct model *m, const struct model_entry *entry)
{
    const struct model_job *first = NULL;
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++)
        if (wants(&m->jobs[i], entry) && (!first || is_sooner(&m->jobs[i], first)))
            first = &m->jobs[i];
    return first;
}

static bool has_child(const struct model *m, const struct model_entry *entry)
{
    for (size_t i = 0; i < MODEL_PAGES_MAX; i++)
        if (m->entries[i].n > entry->n && entry->n % PAGE == 0 &&
            starts_with(&m->entries[i], entry->salt, entry->tokens, entry->n))
            return true;
    return false;
}

static bool goes_before(const struct model *m, const struct model_entry *a,
                        const struct model_entry *b)
{
    const struct model_job *a_first = m->options.evicts_by_demand ? wanted_by(m, a) : NULL;
    const struct model_job *b_first = m->options.evicts_by_demand ? wanted_by(m, b) : NULL;
    if (a_first == b_first)
        return a->used < b->used;
    if (!a_first || !b_first)
        return b_first != NULL;
    return is_sooner(b_first, a_first);
}

static struct model_entry *find_victim(struct model *m, const struct model_entry *spared)
{
    struct model_entry *victim = NULL;
    for (size_t i = 0; i < MODEL_PAGES_MAX; i++) {
        struct model_entry *entry = &m->entries[i];
        if (entry != spared && is_idle(m, entry) && !has_child(m, entry) &&
            (!victim || goes_before(m, entry, victim)))
            victim = entry;
    }
    return victim;
}

static void remember(struct model *m, const struct model_entry *entry, size_t from,
                     enum prefix_miss fate)
{
    if (m->n_past == m->past_capacity) {
        m->past_capacity = m->past_capacity ? 2 * m->past_capacity : 64;
        m->past = realloc(m->past, m->past_capacity * sizeof m->past[0]);
        ASSERT(m->past);
    }
    struct model_past *past = &m->past[m->n_past++];
    *past =
        (struct model_past){.salt = entry->salt, .from = from, .to = entry->n, .fate = fate};
    memcpy(past->tokens, entry->tokens, sizeof past->tokens);
}

static void evict(struct model *m, struct model_entry *entry)
{
    const bool wanted = wanted_by(m, entry) != NULL;
    remember(m, entry, block_of(entry) * PAGE,
             wanted ? PREFIX_MISS_EVICTED : PREFIX_MISS_WINDOW);
    entry->is_there = false;
    m->counters.pages_evicted++;
    m->counters.pages_evicted_wanted += wanted;
}

static bool make_room(struct model *m, const struct model_entry *spared)
{
    if (count_free(m) > 0)
        return true;
    struct model_entry *victim = find_victim(m, spared);
    if (!victim)
        return false;
    evict(m, victim);
    return true;
}

bool model_acquire_page(struct model *m, struct model_job *job)
{
    if (!make_room(m, NULL))
        return false;
    job->pages[job->n_pages++] = NULL;
    return true;
}

static struct model_entry *find_full(struct model *m, int salt, const int32_t *tokens, size_t n)
{
    for (size_t i = 0; i < MODEL_PAGES_MAX; i++)
        if (m->entries[i].n == n && starts_with(&m->entries[i], salt, tokens, n))
            return &m->entries[i];
    return NULL;
}

/* Of the pages behind the shared ones: the one that has most of what comes, the whole block
 * before others, the latest used before others. */
static struct model_entry *find_source(struct model *m, const struct model_job *job,
                                       size_t n_shared, size_t n_tokens, size_t *n_found)
{
    struct model_entry *best = NULL;
    *n_found = n_shared * PAGE;
    for (size_t i = 0; i < MODEL_PAGES_MAX; i++) {
        struct model_entry *entry = &m->entries[i];
        if (!entry->is_there || entry->salt != job->salt || block_of(entry) != n_shared)
            continue;
        const size_t n_equal =
            count_equal(entry->tokens, job->tokens, entry->n < n_tokens ? entry->n : n_tokens);
        const size_t n = n_equal < n_tokens - 1 ? n_equal : n_tokens - 1;
        const bool is_whole =
            entry->n == n_tokens && entry->n % PAGE == 0 && n_equal == entry->n;
        if (n <= n_shared * PAGE || n < *n_found)
            continue;
        if (n > *n_found || !best || is_whole ||
            (entry->used > best->used &&
             !(best->n == n_tokens && best->n % PAGE == 0 &&
               count_equal(best->tokens, job->tokens, n_tokens) == n_tokens))) {
            best = entry;
            *n_found = n;
        }
    }
    return best;
}

static size_t find_all(struct model *m, const struct model_job *job, size_t n_tokens,
                       size_t *n_shared, struct model_entry **source)
{
    *n_shared = 0;
    *source = NULL;
    if (!m->options.enabled)
        return 0;
    for (size_t k = 1; k * PAGE < n_tokens; k++)
        if (find_full(m, job->salt, job->tokens, k * PAGE))
            *n_shared = k;
    size_t n_found;
    *source = find_source(m, job, *n_shared, n_tokens, &n_found);
    return n_found;
}

static bool is_coming(const struct model *m, const struct model_job *job, size_t block)
{
    const size_t n = (block + 1) * PAGE;
    for (size_t i = 0; i < MODEL_JOBS_MAX; i++) {
        const struct model_job *other = &m->jobs[i];
        if (other->state == MODEL_HELD && other->salt == job->salt && other->n_prompt >= n &&
            other->n_committed <= block && count_equal(other->tokens, job->tokens, n) == n)
            return true;
    }
    return false;
}

static enum prefix_miss explain(const struct model *m, const struct model_job *job, size_t at)
{
    enum prefix_miss own = PREFIX_MISS_NONE;
    bool own_seen = false, other_seen = false, continued = false;
    for (size_t i = 0; i < m->n_past; i++) {
        const struct model_past *past = &m->past[i];
        if (at < past->from || at >= past->to ||
            count_equal(past->tokens, job->tokens, at) != at)
            continue;
        const bool same_token = past->tokens[at] == job->tokens[at];
        if (past->salt != job->salt) {
            other_seen |= same_token;
            continue;
        }
        continued |= at > 0;
        if (same_token) {
            own_seen = true;
            own = past->fate;
        }
    }
    if (own_seen && own != PREFIX_MISS_NONE)
        return own;
    if (!own_seen && other_seen)
        return PREFIX_MISS_SALT;
    return continued ? PREFIX_MISS_DIFFERS : PREFIX_MISS_COLD;
}

void model_find(const struct model *m, const struct model_job *job, size_t n_tokens,
                struct prefix_hit *hit)
{
    struct model_entry *source;
    size_t n_shared;
    const size_t n_found = find_all((struct model *)m, job, n_tokens, &n_shared, &source);
    *hit = (struct prefix_hit){
        .n_tokens = n_found, .n_pages_shared = n_shared, .miss_at = n_found};
    if (!m->options.enabled) {
        hit->miss = PREFIX_MISS_OFF;
        return;
    }
    if (n_found > 0 && n_found < m->options.tokens_min) {
        hit->miss = PREFIX_MISS_SHORT;
        hit->n_tokens = hit->n_pages_shared = 0;
    } else if (n_found < n_tokens - 1) {
        hit->miss = explain(m, job, n_found);
    }
    size_t end = n_shared * PAGE;
    while (end + PAGE <= n_tokens && is_coming(m, job, end / PAGE))
        end += PAGE;
    end = end < n_tokens ? end : n_tokens - 1;
    if (end > n_found && end >= m->options.tokens_min)
        hit->n_coming = end - hit->n_tokens;
}

bool model_start(struct model *m, struct model_job *job, size_t n_tokens, size_t n_spare,
                 struct prefix_hit *hit)
{
    struct model_entry *source;
    size_t n_shared;
    struct prefix_hit found;
    find_all(m, job, n_tokens, &n_shared, &source);
    model_find(m, job, n_tokens, &found);
    if (found.miss == PREFIX_MISS_SHORT) {
        n_shared = 0;
        source = NULL;
    }
    size_t n_needed = n_spare + (n_tokens + PAGE - 1) / PAGE - n_shared;
    for (size_t k = 0; k < n_shared; k++)
        n_needed += is_idle(m, find_full(m, job->salt, job->tokens, (k + 1) * PAGE));
    if (n_needed > model_available(m))
        return false;
    *hit = found;
    m->clock++;
    job->state = MODEL_HELD;
    job->n_committed = n_shared;
    while (job->n_pages < n_shared) {
        struct model_entry *entry =
            find_full(m, job->salt, job->tokens, (job->n_pages + 1) * PAGE);
        entry->used = m->clock;
        job->pages[job->n_pages++] = entry;
    }
    const size_t n_new = (n_tokens + PAGE - 1) / PAGE - n_shared;
    for (size_t i = 0; i < n_new; i++) {
        const bool is_copy = source && i == n_new - 1;
        if (!make_room(m, source)) {
            ASSERT(is_copy);
            evict(m, source);
        } else if (is_copy) {
            source->used = m->clock;
            m->counters.pages_copied++;
        }
        job->pages[job->n_pages++] = NULL;
    }
    return true;
}

static struct model_entry *add_entry(struct model *m, const struct model_job *job)
{
    struct model_entry *entry = m->entries;
    while (entry->is_there)
        entry++;
    ASSERT(entry < m->entries + MODEL_PAGES_MAX);
    *entry = (struct model_entry){.is_there = true, .salt = job->salt};
    m->counters.pages_published++;
    return entry;
}

/* The entry has the job's first n tokens now. */
static void fill(struct model *m, struct model_entry *entry, const struct model_job *job,
                 size_t n)
{
    const size_t from = entry->n ? entry->n : (n - 1) / PAGE * PAGE;
    memcpy(entry->tokens, job->tokens, sizeof entry->tokens);
    entry->n = n;
    entry->used = m->clock;
    remember(m, entry, from, PREFIX_MISS_NONE);
}

static void commit_block(struct model *m, struct model_job *job)
{
    const size_t block = job->n_committed++;
    struct model_entry *twin = find_full(m, job->salt, job->tokens, (block + 1) * PAGE);
    if (twin) {
        if (job->leaf)
            job->leaf->is_there = false;
        twin->used = m->clock;
        job->pages[block] = twin;
        m->counters.pages_adopted++;
    } else {
        if (!job->leaf)
            job->pages[block] = add_entry(m, job);
        fill(m, job->pages[block], job, (block + 1) * PAGE);
    }
    job->leaf = NULL;
}

void model_commit(struct model *m, struct model_job *job, size_t n, bool partial)
{
    if (!m->options.enabled)
        return;
    m->clock++;
    while ((job->n_committed + 1) * PAGE <= n)
        commit_block(m, job);
    if (!partial || n <= job->n_committed * PAGE || (job->leaf && job->leaf->n == n))
        return;
    for (size_t i = 0; !job->leaf && i < MODEL_PAGES_MAX; i++)
        if (starts_with(&m->entries[i], job->salt, job->tokens, n) &&
            block_of(&m->entries[i]) == job->n_committed)
            return;
    if (!job->leaf)
        job->leaf = job->pages[job->n_committed] = add_entry(m, job);
    fill(m, job->leaf, job, n);
}

void model_stop(struct model *m, struct model_job *job, size_t n, bool again)
{
    model_commit(m, job, n, true);
    m->clock++;
    for (size_t k = 0; k < job->n_pages; k++)
        if (job->pages[k])
            job->pages[k]->used = m->clock;
    job->n_pages = job->n_committed = 0;
    job->leaf = NULL;
    job->state = again ? MODEL_WANTED : MODEL_GONE;
    while (m->options.pages_max > 0 && count_idle(m) > m->options.pages_max)
        evict(m, find_victim(m, NULL));
}
