/* What headers add to a result; each is read by itself, and one that is broken is left out. */
#include "result_read_int.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "json_scan.h"
#include "utf8.h"

static bool is_text(const struct result_header *h)
{
    return h->value && h->length > 0 && h->length <= RESULT_HEADER_BYTES_MAX &&
           !memchr(h->value, '\0', h->length) && utf8_is_valid(h->value, h->length);
}

static int take_text(const struct result_header *h, size_t bytes_max, char **out, struct err *e)
{
    if (h->length > bytes_max)
        return 0;
    char *copy = strndup(h->value, h->length);
    if (!copy)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a header");
    free(*out);
    *out = copy;
    return 0;
}

/* Decimal digits and nothing else, up to max. */
static bool take_number(const char *text, size_t length, int64_t max, int64_t *out)
{
    int64_t value = 0;
    if (length == 0 || length > 18)
        return false;
    for (size_t i = 0; i < length; i++) {
        if (text[i] < '0' || text[i] > '9')
            return false;
        value = value * 10 + (text[i] - '0');
    }
    if (value > max)
        return false;
    *out = value;
    return true;
}

static void take_date(const struct result_header *h, int64_t *us)
{
    char text[32], *end;
    if (h->length >= sizeof text)
        return;
    memcpy(text, h->value, h->length);
    text[h->length] = '\0';
    const double seconds = strtod(text, &end);
    if (*end == '\0' && seconds > 0 && seconds < 1e11)
        *us = llround(seconds * 1e6);
}

static void take_finished(struct result_record *record, const struct result_header *h)
{
    int64_t us = 0;
    take_date(h, &us);
    record->result->created_s = us / 1000000;
}

/* ------------------------------------------------------------------ JSON values */

static const char *miss_of(const json_t *value)
{
    static const char *const reasons[] = {"none",    "off",    "cold",  "differs",
                                          "evicted", "window", "short", "salt"};
    const char *name = json_string_value(value);
    for (size_t i = 0; name && i < sizeof reasons / sizeof reasons[0]; i++)
        if (strcmp(reasons[i], name) == 0)
            return reasons[i];
    return NULL;
}

static const char *intern_source(struct result_record *record, const char *name)
{
    const size_t length = strlen(name);
    for (size_t i = 0; i < record->n_draft_sources; i++)
        if (strcmp(record->draft_sources[i], name) == 0)
            return record->draft_sources[i];
    if (length == 0 || length >= RESULT_SOURCE_BYTES ||
        record->n_draft_sources == RESULT_SOURCES_MAX)
        return NULL;
    char *slot = record->draft_sources[record->n_draft_sources++];
    memcpy(slot, name, length + 1);
    return slot;
}

/* A row of the list; false: it is none, or a second one of its source and depth. */
static bool read_draft(struct result_record *record, const json_t *row,
                       struct result_draft *out)
{
    const struct result *r = record->result;
    const char *name = json_string_value(json_array_get(row, 0));
    if (!name || !result_take_count(json_array_get(row, 1), &out->depth) ||
        !result_take_count(json_array_get(row, 2), &out->drafted) ||
        !result_take_count(json_array_get(row, 3), &out->accepted) || out->depth < 1 ||
        out->drafted < 1 || out->accepted > out->drafted)
        return false;
    out->source = intern_source(record, name);
    for (size_t i = 0; out->source && i < r->n_drafts; i++)
        if (r->drafts[i].source == out->source && r->drafts[i].depth == out->depth)
            return false;
    return out->source != NULL;
}

static int read_drafts(struct result_record *record, const json_t *list, struct err *e)
{
    enum { DRAFTS_MAX = 512 };
    struct result *r = record->result;
    const size_t n = json_array_size(list);
    if (n == 0 || n > DRAFTS_MAX || r->drafts)
        return 0;
    r->drafts = calloc(n, sizeof *r->drafts);
    if (!r->drafts)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a result");
    for (size_t i = 0; i < n; i++)
        r->n_drafts += read_draft(record, json_array_get(list, i), &r->drafts[r->n_drafts]);
    return 0;
}

static void take_tokens(const json_t *value, double *out)
{
    const double tokens = json_number_value(value);
    if (json_is_number(value) && tokens >= 0 && tokens <= (double)RESULT_COUNT_MAX)
        *out = tokens;
}

static int read_metrics(struct result_record *record, const json_t *object, struct err *e)
{
    struct result_metrics *m = &record->result->metrics;
    const struct result_metrics line = *m;
    if (!json_is_object(object))
        return 0;
    const json_t *value;
#define TAKE_US(field)     result_take_count(value, &m->field)
#define TAKE_COUNT(field)  result_take_count(value, &m->field)
#define TAKE_MISS(field)   result_take_count(value, &m->field)
#define TAKE_GROUP(field)  result_take_count(value, &m->field)
#define TAKE_DRAFTS(field) result_take_count(value, &m->field)
#define TAKE_TOKENS(field) take_tokens(value, &m->field)
#define METRIC(column, field, unit, help)                                                      \
    value = json_object_get(object, #column);                                                  \
    TAKE_##unit(field);
#include "schema/metrics.def"
#undef METRIC
    if (record->result->status == RESULT_SUCCEEDED) { /* the line says these */
        m->prompt_tokens = line.prompt_tokens;
        m->cached_tokens = line.cached_tokens;
        m->completion_tokens = line.completion_tokens;
    }
    m->miss = miss_of(json_object_get(object, "miss_reason"));
    return read_drafts(record, json_object_get(object, "drafts"), e);
}

/* Replaces the ids that a native line has: these know title and length too. */
static int read_documents(struct result_record *record, const json_t *list, struct err *e)
{
    struct job *job = record->result->job;
    const size_t n = json_array_size(list);
    if (n == 0 || n > JOB_DOCUMENTS_MAX || (job->documents && n != job->n_documents))
        return 0;
    if (!job->documents)
        job->documents = calloc(n, sizeof *job->documents);
    if (!job->documents)
        return ERR_SET(e, ERR_NOMEM, "out of memory for a result");
    job->n_documents = n;
    for (size_t i = 0; i < n; i++) {
        const json_t *row = json_array_get(list, i);
        struct job_document *d = &job->documents[i];
        int64_t length = 0;
        TRY(result_take_text(json_array_get(row, 0), JOB_ID_BYTES_MAX, &d->id, e));
        TRY(result_take_text(json_array_get(row, 1), RESULT_HEADER_BYTES_MAX, &d->title, e));
        result_take_count(json_array_get(row, 2), &length);
        d->length = (size_t)length;
    }
    return 0;
}

static int read_run(struct result_record *record, const json_t *object, struct err *e)
{
    const struct {
        const char *key;
        char **out;
    } texts[] = {{"model_sha256", &record->model_sha256},
                 {"quant", &record->quant},
                 {"kernels", &record->kernels},
                 {"version", &record->version}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++)
        TRY(result_take_text(json_object_get(object, texts[i].key), JOB_ID_BYTES_MAX,
                             texts[i].out, e));
    result_take_us(json_object_get(object, "started_at"), 1e6, &record->run_started_us);
    return 0;
}

/* A value of JSON, bounded as lines are; NULL: it is none. */
static int load_value(const struct result_header *h, json_t **out, struct err *e)
{
    struct json_scan scan;
    struct json_fault fault = {0};
    *out = NULL;
    json_scan_text(h->value, h->length, &scan);
    if (scan.code)
        return 0;
    const int code = json_load_text(h->value, h->length, out, &fault, e);
    return code == ERR_INVALID ? 0 : code;
}

/* ------------------------------------------------------------------ each header */

static int take_source_topic(struct result_record *record, const struct result_header *h,
                             struct err *e)
{
    return take_text(h, JOB_ID_BYTES_MAX, &record->result->job->source.topic, e);
}

/* topic/partition/offset; a topic has no slash. */
static int take_replay(struct result_record *record, const struct result_header *h,
                       struct err *e)
{
    struct job_source *out = &record->replay_of;
    int64_t partition = 0;
    const char *end = h->value + h->length;
    const char *slash = memchr(h->value, '/', h->length);
    const char *second = slash ? memchr(slash + 1, '/', (size_t)(end - slash - 1)) : NULL;
    if (!second ||
        !take_number(slash + 1, (size_t)(second - slash - 1), INT32_MAX, &partition) ||
        !take_number(second + 1, (size_t)(end - second - 1), INT64_MAX, &out->offset))
        return 0;
    out->partition = (int32_t)partition;
    const struct result_header topic = {.value = h->value,
                                        .length = (size_t)(slash - h->value)};
    return take_text(&topic, JOB_ID_BYTES_MAX, &out->topic, e);
}

static void take_payload(struct result_record *record, const struct result_header *h)
{
    if (h->length != 64)
        return;
    for (size_t i = 0; i < 64; i++)
        if (!strchr("0123456789abcdef", h->value[i]))
            return;
    memcpy(record->result->job->payload_sha256, h->value, 64);
    record->result->job->payload_sha256[64] = '\0';
    record->has_payload = true;
}

/* A success shows its dialect itself. */
static void take_dialect(struct result_record *record, const struct result_header *h)
{
    struct job *job = record->result->job;
    const char *name = job_dialect_name(DIALECT_OPENAI_COMPLETION);
    if (record->result->status != RESULT_SUCCEEDED && job->dialect == DIALECT_OPENAI_CHAT &&
        strlen(name) == h->length && memcmp(name, h->value, h->length) == 0)
        job->dialect = DIALECT_OPENAI_COMPLETION;
}

static int take_json(struct result_record *record, const struct result_header *h,
                     int (*read)(struct result_record *, const json_t *, struct err *),
                     struct err *e)
{
    json_t *value = NULL;
    TRY(load_value(h, &value, e));
    const int code = value ? read(record, value, e) : 0;
    json_decref(value);
    return code;
}

static const struct result_header *find_last(const struct result_header *headers, size_t n,
                                             const char *name)
{
    for (size_t i = n; i-- > 0;)
        if (headers[i].name && strcmp(headers[i].name, name) == 0)
            return is_text(&headers[i]) ? &headers[i] : NULL;
    return NULL;
}

/* Of a line that does not say it itself. Three headers or none: a topic without its offset is
 * no place. */
static int read_place(struct result_record *record, const struct result_header *headers,
                      size_t n, struct err *e)
{
    const struct result_header *topic = find_last(headers, n, "sheaf.source.topic");
    const struct result_header *partition = find_last(headers, n, "sheaf.source.partition");
    const struct result_header *offset = find_last(headers, n, "sheaf.source.offset");
    struct job_source *source = &record->result->job->source;
    int64_t number = 0, at = 0;
    if (record->has_source || !topic || !partition || !offset ||
        topic->length > JOB_ID_BYTES_MAX ||
        !take_number(partition->value, partition->length, INT32_MAX, &number) ||
        !take_number(offset->value, offset->length, INT64_MAX, &at))
        return 0;
    TRY(take_source_topic(record, topic, e));
    source->partition = (int32_t)number;
    source->offset = at;
    record->has_source = true;
    return 0;
}

static int read_texts(struct result_record *record, const struct result_header *headers,
                      size_t n, struct err *e)
{
    struct job *job = record->result->job;
    const struct {
        const char *name;
        char **out;
    } texts[] = {{"sheaf.run_id", &record->run_id},
                 {"sheaf.worker", &record->worker_id},
                 {"sheaf.model", &record->model},
                 {"sheaf.prefix_group", &job->prefix_group}};
    for (size_t i = 0; i < sizeof texts / sizeof texts[0]; i++) {
        const struct result_header *h = find_last(headers, n, texts[i].name);
        if (h)
            TRY(take_text(h, JOB_ID_BYTES_MAX, texts[i].out, e));
    }
    return 0;
}

static int read_values(struct result_record *record, const struct result_header *headers,
                       size_t n, struct err *e)
{
    const struct {
        const char *name;
        int (*read)(struct result_record *, const json_t *, struct err *);
    } values[] = {{"sheaf.metrics", read_metrics},
                  {"sheaf.documents", read_documents},
                  {"sheaf.run", read_run}};
    for (size_t i = 0; i < sizeof values / sizeof values[0]; i++) {
        const struct result_header *h = find_last(headers, n, values[i].name);
        if (h)
            TRY(take_json(record, h, values[i].read, e));
    }
    return 0;
}

int result_read_headers(struct result_record *record, const struct result_header *headers,
                        size_t n, struct err *e)
{
    struct job *job = record->result->job;
    const struct result_header *h;
    TRY(read_place(record, headers, n, e));
    TRY(read_texts(record, headers, n, e));
    TRY(read_values(record, headers, n, e));
    if ((h = find_last(headers, n, "sheaf.payload_sha256")))
        take_payload(record, h);
    if ((h = find_last(headers, n, "sheaf.dialect")))
        take_dialect(record, h);
    if ((h = find_last(headers, n, "sheaf.attempt")) &&
        (!take_number(h->value, h->length, INT32_MAX, &record->attempt) || record->attempt < 1))
        record->attempt = 1;
    if ((h = find_last(headers, n, "sheaf.submitted_at")))
        take_date(h, &job->source.timestamp_us);
    if ((h = find_last(headers, n, "sheaf.admitted_at")))
        take_date(h, &job->admitted_wall_us);
    if (record->result->created_s == 0 && (h = find_last(headers, n, "sheaf.finished_at")))
        take_finished(record, h);
    if ((h = find_last(headers, n, "sheaf.stored_at")))
        take_date(h, &record->stored_us);
    return (h = find_last(headers, n, "sheaf.replay_of")) ? take_replay(record, h, e) : 0;
}
