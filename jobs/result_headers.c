#include "result_headers.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "jobs_int.h"

/* Values one behind the other; where each begins is known once all are there. */
struct writer {
    struct result_headers *out;
    struct buf text;
    size_t starts[RESULT_HEADERS_MAX];
};

/* Text from anywhere: what was cut inside a character is mended. */
static void put(struct writer *w, const char *name, const char *value)
{
    size_t length = 0;
    if (!value || !*value)
        return;
    ASSERT(w->out->n < RESULT_HEADERS_MAX);
    char *clean = result_clean_utf8(value, strlen(value), &length);
    if (!clean) {
        w->text.failed = true;
        return;
    }
    w->starts[w->out->n] = w->text.length;
    w->out->items[w->out->n++] = (struct result_header){.name = name, .length = length};
    buf_append(&w->text, clean, length + 1);
    free(clean);
}

static void put_s64(struct writer *w, const char *name, int64_t value)
{
    char text[24];
    snprintf(text, sizeof text, "%" PRId64, value);
    put(w, name, text);
}

static void put_date(struct writer *w, const char *name, int64_t us)
{
    char text[32];
    if (us <= 0)
        return;
    snprintf(text, sizeof text, "%" PRId64 ".%06" PRId64, us / 1000000, us % 1000000);
    put(w, name, text);
}

/* Takes value; NULL: it could not be built. */
static void put_json(struct writer *w, const char *name, json_t *value, size_t bytes_max)
{
    char *text = NULL;
    if (!value || json_dump_text(value, &text, NULL) != 0)
        w->text.failed = true;
    else if (strlen(text) <= bytes_max)
        put(w, name, text);
    json_free_text(text);
    json_decref(value);
}

static bool set(json_t *object, const char *key, json_t *value)
{
    return json_object_set_new(object, key, value) == 0;
}

/* The same figures that the store leaves NULL are left out. */
static bool set_us(json_t *object, const char *key, int64_t us, bool succeeded)
{
    return us < 0 || (us == 0 && !succeeded) || set(object, key, json_integer(us));
}

static bool set_drafts(json_t *object, const struct result *r)
{
    json_t *list = json_array();
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < r->n_drafts; i++) {
        const struct result_draft *d = &r->drafts[i];
        ok = json_array_append_new(list, json_pack("[s, I, I, I]", d->source,
                                                   (json_int_t)d->depth, (json_int_t)d->drafted,
                                                   (json_int_t)d->accepted)) == 0;
    }
    if (ok)
        return set(object, "drafts", list);
    json_decref(list);
    return false;
}

static json_t *metrics_value(const struct result *r)
{
    const struct result_metrics *m = &r->metrics;
    const bool succeeded = r->status == RESULT_SUCCEEDED;
    json_t *object = json_object();
    bool ok = object != NULL;
#define PUT_US(key, value)    (ok && set_us(object, key, value, succeeded))
#define PUT_COUNT(key, value) (ok && set(object, key, json_integer(value)))
#define PUT_MISS(key, value)  (ok && (!m->miss || set(object, key, json_integer(value))))
#define PUT_GROUP(key, value)                                                                  \
    (ok && (m->group_jobs <= 0 || set(object, key, json_integer(value))))
#define PUT_DRAFTS(key, value)                                                                 \
    (ok && (m->draft_steps <= 0 || set(object, key, json_integer(value))))
#define PUT_TOKENS(key, value)                                                                 \
    (ok && (m->draft_steps <= 0 || set(object, key, json_real(value))))
#define METRIC(column, field, unit, help) ok = PUT_##unit(#column, m->field);
#include "schema/metrics.def"
#undef METRIC
    if (ok && m->miss)
        ok = set(object, "miss_reason", json_string(m->miss));
    if (ok && r->n_drafts > 0)
        ok = set_drafts(object, r);
    if (ok)
        return object;
    json_decref(object);
    return NULL;
}

static json_t *text_or_null(const char *text)
{
    size_t length = 0;
    char *clean = text ? result_clean_utf8(text, strlen(text), &length) : NULL;
    if (text && !clean)
        return NULL;
    json_t *value = text ? json_stringn_nocheck(clean, length) : json_null();
    free(clean);
    return value;
}

static json_t *documents_value(const struct job *job)
{
    json_t *list = json_array();
    for (size_t i = 0; list && i < job->n_documents; i++) {
        const struct job_document *d = &job->documents[i];
        json_t *id = text_or_null(job_document_id(d)), *title = text_or_null(d->title);
        json_t *item =
            id && title ? json_pack("[O, O, I]", id, title, (json_int_t)d->length) : NULL;
        json_decref(id);
        json_decref(title);
        if (json_array_append_new(list, item) != 0) {
            json_decref(list);
            return NULL;
        }
    }
    return list;
}

static json_t *run_value(const struct result_origin *o)
{
    json_t *value = json_pack("{s:s*, s:s*, s:s*, s:s*}", "model_sha256", o->model_sha256,
                              "quant", o->quant, "kernels", o->kernels, "version", o->version);
    if (value && o->run_started_us > 0 &&
        !set(value, "started_at", json_real((double)o->run_started_us / 1e6))) {
        json_decref(value);
        return NULL;
    }
    return value;
}

static void put_source(struct writer *w, const struct job *job)
{
    if (!job->source.topic)
        return;
    put(w, "sheaf.source.topic", job->source.topic);
    put_s64(w, "sheaf.source.partition", job->source.partition);
    put_s64(w, "sheaf.source.offset", job->source.offset);
}

static void put_all(struct writer *w, const struct result *r, const struct result_origin *o)
{
    const struct job *job = r->job;
    put(w, "sheaf.job_id", job->custom_id);
    put(w, "sheaf.result_id", r->id);
    put(w, "sheaf.status", result_status_name(r->status));
    put(w, "sheaf.dialect", job_dialect_name(job->dialect));
    put_source(w, job);
    put(w, "sheaf.payload_sha256", job->payload_sha256);
    if (o->attempt > 0)
        put_s64(w, "sheaf.attempt", o->attempt);
    put(w, "sheaf.run_id", o->run_id);
    put(w, "sheaf.worker", r->worker_id);
    put(w, "sheaf.model", r->model && *r->model ? r->model : job->model);
    put(w, "sheaf.prefix_group", job->prefix_group);
    put_date(w, "sheaf.submitted_at", job->source.timestamp_us);
    put_date(w, "sheaf.admitted_at", job->admitted_wall_us);
    put_date(w, "sheaf.finished_at", result_finished_us(r));
    put_date(w, "sheaf.stored_at", o->stored_us);
    put_json(w, "sheaf.metrics", metrics_value(r), RESULT_HEADER_BYTES_MAX);
    if (job->n_documents > 0)
        put_json(w, "sheaf.documents", documents_value(job), RESULT_DOCUMENTS_BYTES_MAX);
    if (o->model_sha256 || o->quant || o->kernels || o->version || o->run_started_us > 0)
        put_json(w, "sheaf.run", run_value(o), RESULT_HEADER_BYTES_MAX);
    put(w, "sheaf.replay_of", o->replay_of);
}

int result_headers_make(const struct result *r, const struct result_origin *origin,
                        struct result_headers *out, struct err *e)
{
    *out = (struct result_headers){0};
    struct writer w = {.out = out};
    put_all(&w, r, origin);
    out->memory = buf_take(&w.text);
    if (!out->memory) {
        *out = (struct result_headers){0};
        buf_fini(&w.text);
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY, "no memory for the headers of a result");
    }
    for (size_t i = 0; i < out->n; i++)
        out->items[i].value = out->memory + w.starts[i];
    return 0;
}

void result_headers_fini(struct result_headers *h)
{
    free(h->memory);
    *h = (struct result_headers){0};
}
