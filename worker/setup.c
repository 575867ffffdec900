#include "setup.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sysexits.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"
#include "cli.h"
#include "crash_signals.h"
#include "io/queue_file.h"
#include "job_parse.h"

#define DEMO_MODEL "SmolLM2-135M-Instruct.Q4_1.gguf"

char *setup_model_path(const struct settings *s)
{
    if (*s->model)
        return strdup(s->model);
    const char *cache = getenv("SHEAF_CACHE");
    const char *home = getenv("HOME");
    char *path = NULL;
    const int n = cache ? asprintf(&path, "%s/" DEMO_MODEL, cache)
                        : asprintf(&path, "%s/.cache/sheaf/" DEMO_MODEL, home ? home : "");
    return n < 0 ? NULL : path;
}

int setup_open_model(const struct settings *s, struct model **out, struct err *e)
{
    char *path = setup_model_path(s);
    if (!path)
        return ERR_SET(e, ERR_NOMEM, "no memory for the model's path");
    int rc;
    if (!*s->model && access(path, R_OK) != 0)
        rc = ERR_SET(
            e, ERR_NOTFOUND,
            "there is no model at %s; run ops/setup for the demo model, or name one with "
            "--model FILE",
            path);
    else
        rc = model_open(path, out, e);
    free(path);
    return rc;
}

int setup_parse_line(const struct settings *s, const char *path, const struct file_line *line,
                     struct job **out, struct err *e)
{
    const struct job_source source = {.topic = (char *)(uintptr_t)path,
                                      .offset = line->number,
                                      .timestamp_us = clock_wall_us(),
                                      .is_file = true};
    const struct job_parse_options options = {.strict = s->strict,
                                              .max_tokens_default = s->max_tokens};
    return job_parse(line->bytes, line->length, &source, &options, out, e);
}

int setup_open_documents(const struct settings *s, const struct kafka_options *kafka,
                         struct documents **out, struct err *e)
{
    const struct documents_options o = {.path = s->documents,
                                        .topic = kafka ? s->documents_topic : NULL,
                                        .kafka = kafka,
                                        .bytes_max = (size_t)s->documents_mb << 20,
                                        .wait_us = s->documents_wait_s * 1000000};
    return documents_open(&o, out, e);
}

static int choose_kv_type(const char *name, enum kv_type *out, struct err *e)
{
    static const char *const names[] = {
        [KV_F32] = "f32", [KV_BF16] = "bf16", [KV_INT8] = "int8"};
    for (size_t i = 0; i < sizeof names / sizeof names[0]; i++)
        if (strcmp(name, names[i]) == 0) {
            *out = (enum kv_type)i;
            return 0;
        }
    return ERR_SET(e, ERR_CONFIG, "kv.type=%s is not one of bf16, int8, f32", name);
}

static int choose_formats(const struct settings *s, struct engine_options *out, struct err *e)
{
    TRY(choose_kv_type(s->kv_type, &out->kv_type, e));
    TRY(setup_choose_speculation(s, &out->speculation, e));
    const bool is_int8 = strcmp(s->activations, "int8") == 0;
    if (!is_int8 && strcmp(s->activations, "f32") != 0)
        return ERR_SET(e, ERR_CONFIG, "activations=%s is not one of int8, f32", s->activations);
    const bool is_demand = strcmp(s->prefix_evict, "demand") == 0;
    if (!is_demand && strcmp(s->prefix_evict, "lru") != 0)
        return ERR_SET(e, ERR_CONFIG, "prefix_cache.evict=%s is not one of demand, lru",
                       s->prefix_evict);
    out->evicts_by_demand = is_demand;
    out->activations = is_int8 ? ACT_INT8 : ACT_F32;
    return 0;
}

size_t setup_threads(const struct settings *s)
{
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    if (s->threads > 0)
        return (size_t)s->threads;
    return online < 1 ? 1 : size_min((size_t)online, ENGINE_THREADS_MAX);
}

int setup_engine_options(const struct settings *s, struct engine_options *out, struct err *e)
{
    *out = (struct engine_options){
        .n_threads = (size_t)s->threads,
        .batch = (size_t)s->batch,
        .step_tokens = (size_t)s->step_tokens,
        .chunk_tokens = (size_t)s->chunk_tokens,
        .context = (size_t)s->context,
        .kv_bytes = (size_t)s->kv_mb << 20,
        .prefix_cache = s->prefix_cache,
        .prefix_tokens_min = (size_t)s->prefix_tokens_min,
        .prefix_bytes = (size_t)s->prefix_mb << 20,
        .shared_attention = s->shared_attention,
        .whole_prompts = !s->chunked_prefill,
        .kv_disk = s->kv_disk,
        .kv_disk_bytes = (uint64_t)s->kv_disk_mb << 20,
        .kv_disk_tokens_min = (size_t)s->kv_disk_tokens_min,
        .device = s->device,
        .device_ordinal = (size_t)s->device_ordinal,
        .device_exact = s->device_exact,
        .device_graphs = s->device_graphs,
        .device_ahead = s->device_ahead,
        .device_weights = s->device_weights,
    };
    return choose_formats(s, out, e);
}

/* Options and plan as the database keeps them. */
static char *describe_engine(const struct engine *eng, const struct settings *s,
                             const struct setup_drafts *drafts)
{
    const struct engine_plan plan = engine_plan(eng);
    json_t *steps = json_array();
    for (size_t i = 0; steps && i < plan.calibration.n_points; i++)
        json_array_append_new(steps,
                              json_pack("{s:I, s:I}", "rows",
                                        (json_int_t)plan.calibration.points[i].n_rows, "us",
                                        (json_int_t)plan.calibration.points[i].us));
    json_t *root = json_pack(
        "{s:s, s:I, s:I, s:I, s:I, s:I, s:s, s:s, s:s, s:I, s:I, s:I, s:I, s:o, s:I}",
        "kernels", plan.kernels, "threads", (json_int_t)plan.n_threads, "batch",
        (json_int_t)s->batch, "step_tokens", (json_int_t)s->step_tokens, "chunk_tokens",
        (json_int_t)plan.chunk_tokens, "context", (json_int_t)plan.context, "kv_type",
        s->kv_type, "activations", s->activations, "speculation", s->speculation,
        "weights_bytes", (json_int_t)plan.weights_bytes, "kv_bytes", (json_int_t)plan.kv_bytes,
        "activations_bytes", (json_int_t)plan.activations_bytes, "drafts_bytes",
        (json_int_t)plan.drafts_bytes, "calibration", steps, "prefix_cache_mb",
        (json_int_t)s->prefix_mb);
    if (plan.device) {
        json_object_set_new(root, "device", json_string(plan.device));
        json_object_set_new(root, "device_exact", json_boolean(s->device_exact));
        json_object_set_new(root, "device_graphs", json_boolean(s->device_graphs));
        json_object_set_new(root, "device_ahead", json_boolean(s->device_ahead));
        json_object_set_new(root, "device_weights", json_string(s->device_weights));
    }
    if (*drafts->text)
        json_object_set_new(root, "heads", json_string(drafts->text));
    if (drafts->model)
        json_object_set_new(root, "draft_model", json_string(drafts->model->name));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

/* Nodes that steps computed, by source and by depth; those without any are left out. A source
 * that was often unasked does not pay here. */
static json_t *describe_drafts(const struct draft_counters *c)
{
    json_t *by_source = json_object(), *by_depth = json_array();
    for (size_t i = 0; i < DRAFT_SOURCES; i++)
        if (c->drafted_by[i] > 0 || c->unasked[i] > 0)
            json_object_set_new(
                by_source, draft_source_name((enum draft_source)i),
                json_pack("{s:I, s:I, s:I, s:I, s:I}", "drafted", (json_int_t)c->drafted_by[i],
                          "accepted", (json_int_t)c->accepted_by[i], "asked",
                          (json_int_t)c->asked[i], "unasked", (json_int_t)c->unasked[i],
                          "asked_us", (json_int_t)c->asked_us[i]));
    for (size_t i = 1; i <= DRAFT_NODES_MAX; i++)
        if (c->drafted_at[i] > 0)
            json_array_append_new(by_depth,
                                  json_pack("{s:I, s:I, s:I}", "depth", (json_int_t)i,
                                            "drafted", (json_int_t)c->drafted_at[i], "accepted",
                                            (json_int_t)c->accepted_at[i]));
    return json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:o, s:o}", "drafts",
                     (json_int_t)c->drafts, "drafted", (json_int_t)c->drafted, "accepted",
                     (json_int_t)c->accepted, "rejected", (json_int_t)c->rejected,
                     "lacked_pages", (json_int_t)c->lacked_pages, "draft_us",
                     (json_int_t)c->draft_us, "by_source", by_source, "by_depth", by_depth);
}

/* What it counted since then, likewise. */
static char *describe_counters(const struct engine *eng, const struct settings *s,
                               const struct pipeline_totals *totals)
{
    const struct engine_counters c = engine_counters(eng);
    json_t *root =
        json_pack("{s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I, s:I}",
                  "steps", (json_int_t)c.steps, "rows", (json_int_t)c.rows, "prompt_tokens",
                  (json_int_t)c.prompt_tokens, "computed_tokens", (json_int_t)c.computed_tokens,
                  "cached_tokens", (json_int_t)c.cached_tokens, "generated_tokens",
                  (json_int_t)c.generated_tokens, "preemptions", (json_int_t)c.preemptions,
                  "pages_published", (json_int_t)c.prefix.pages_published, "pages_evicted",
                  (json_int_t)c.prefix.pages_evicted, "pages_evicted_wanted",
                  (json_int_t)c.prefix.pages_evicted_wanted, "pages_copied",
                  (json_int_t)c.prefix.pages_copied, "busy_us", (json_int_t)c.busy_us,
                  "prefill_us", (json_int_t)c.prefill_us, "decode_us", (json_int_t)c.decode_us);
    json_t *stages = json_object();
    for (size_t i = 0; i < STAGE_COUNT; i++)
        json_object_set_new(stages, stages_name(i), json_integer(totals->stage_us[i]));
    json_object_set_new(root, "stages", stages);
    if (engine_plan(eng).device) {
        json_object_set_new(root, "steps_ahead", json_integer((json_int_t)c.steps_ahead));
        json_object_set_new(root, "rows_wasted", json_integer((json_int_t)c.rows_wasted));
    }
    if (strcmp(s->speculation, "off") != 0)
        json_object_set_new(root, "drafts", describe_drafts(&c.drafts));
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

static int begin_run(struct setup *setup, const struct settings *s, struct err *e)
{
    char *engine_json = describe_engine(setup->engine, s, &setup->drafts);
    if (!engine_json)
        return ERR_SET(e, ERR_NOMEM, "no memory for the run's description");
    const struct store_run run = {
        .run_id = setup->run_id,
        .model = setup->model->name,
        .model_sha256 = setup->model->sha256,
        .quant = setup->model->quant,
        .kernels = engine_plan(setup->engine).kernels,
        .engine_json = engine_json,
        .version = SHEAF_VERSION,
        .started_s = clock_wall_us() / 1000000,
    };
    const int rc = store_begin_run(setup->store.store, &run, e);
    free(engine_json);
    return rc;
}

static void say_plan(const struct setup *setup)
{
    const struct engine_plan plan = engine_plan(setup->engine);
    char drafts[48] = "";
    if (plan.drafts_bytes > 0)
        snprintf(drafts, sizeof drafts, ", drafts %zu MiB at most", plan.drafts_bytes >> 20);
    log_info(
        "%s (%s), %s kernels, %s%s%zu threads; memory: weights %zu MiB, KV cache %zu MiB (%zu "
        "tokens), activations %zu MiB%s; context %zu",
        setup->model->name, setup->model->quant, plan.kernels, plan.device ? plan.device : "",
        plan.device ? ", " : "", plan.n_threads, plan.weights_bytes >> 20, plan.kv_bytes >> 20,
        plan.kv_pages * KV_PAGE_TOKENS, plan.activations_bytes >> 20, drafts, plan.context);
    if (*setup->drafts.text)
        log_info("drafts from %s", setup->drafts.text);
    if (setup->drafts.model)
        log_info("drafts from %s (%s)", setup->drafts.model->name, setup->drafts.model->quant);
}

int setup_open(struct setup *setup, const struct settings *s, const char *db_path,
               const char *run_id, bool quiet, struct err *e)
{
    *setup = (struct setup){.began_us = clock_mono_us()};
    pthread_mutex_init(&setup->store.lock, NULL);
    char host[64] = "localhost";
    gethostname(host, sizeof host - 1);
    snprintf(setup->worker_id, sizeof setup->worker_id, "%s:%d", host, (int)getpid());
    snprintf(setup->run_id, sizeof setup->run_id, "%s", run_id);

    int rc = 0;
    struct engine_options options;
    TRY_OUT(rc, setup_engine_options(s, &options, e));
    /* The database first: a wrong path shows before the model is read. */
    TRY_OUT(rc, store_open(db_path, STORE_OWNER, &setup->store.store, e));
    /* What the process before left is read before anything can crash again. */
    TRY_OUT(rc, suspects_open(&setup->suspects, db_path, setup->store.store, e));
    TRY_OUT(rc, running_open(db_path, (size_t)s->batch, &setup->running, e));
    crash_signals_install(setup->running);
    TRY_OUT(rc, setup_open_model(s, &setup->model, e));
    TRY_OUT(rc, answer_context_init(&setup->answers, setup->model, s, setup->worker_id, e));
    TRY_OUT(rc, setup_open_drafts(s, setup->model, &options, &setup->drafts, e));
    TRY_OUT(rc, engine_open(setup->model, &options, &setup->engine, e));
    model_drop_weights(setup->model); /* the engine has packed them */
    setup_drop_drafts(&setup->drafts);
    TRY_OUT(rc, begin_run(setup, s, e));
    if (!quiet)
        say_plan(setup);
out:
    if (rc != 0)
        setup_close(setup);
    return rc;
}

void setup_close(struct setup *setup)
{
    engine_close(setup->engine);
    setup_close_drafts(&setup->drafts);
    model_close(setup->model);
    crash_signals_remove();
    running_close(setup->running);
    suspects_fini(&setup->suspects);
    store_close(setup->store.store);
    documents_close(setup->documents);
    pthread_mutex_destroy(&setup->store.lock);
    *setup = (struct setup){0};
}

static void say_totals(const struct setup *setup, const struct settings *s,
                       const struct pipeline_totals *t)
{
    const struct engine_counters c = engine_counters(setup->engine);
    const double busy_s = (double)c.busy_us / 1e6;
    log_info("%llu answered, %llu failed, %llu known from before%s; %llu prompt tokens (%.1f "
             "%% from "
             "the cache), %llu answer tokens; engine busy %.1f s",
             (unsigned long long)t->succeeded, (unsigned long long)t->failed,
             (unsigned long long)t->known, t->stopped ? ", stopped before the end" : "",
             (unsigned long long)t->prompt_tokens,
             c.prompt_tokens ? 100.0 * (double)c.cached_tokens / (double)c.prompt_tokens : 0.0,
             (unsigned long long)t->completion_tokens, busy_s);
    if (c.drafts.drafted > 0)
        log_info("%llu tokens drafted, %llu of them accepted",
                 (unsigned long long)c.drafts.drafted, (unsigned long long)c.drafts.accepted);
    if (*s->kv_disk)
        log_info(
            "%s: %llu tokens loaded from %llu files in %.2f s; %llu files saved, %llu given "
            "up, %llu not usable",
            s->kv_disk, (unsigned long long)c.disk.tokens_loaded,
            (unsigned long long)c.disk.files_loaded, (double)c.disk.load_us / 1e6,
            (unsigned long long)c.disk.files_saved, (unsigned long long)c.disk.files_given_up,
            (unsigned long long)c.disk.files_bad);
    if (c.prefix.pages_evicted_wanted > 0)
        log_info("%llu KV pages that queued jobs wanted had to go; raise kv.mb to keep them",
                 (unsigned long long)c.prefix.pages_evicted_wanted);
}

void setup_abandon_run(struct setup *setup)
{
    store_end_run(setup->store.store, setup->run_id, "failed", NULL, NULL);
}

int setup_run(struct setup *setup, const struct settings *s, struct transport *transport,
              bool quiet, struct pipeline_totals *totals, struct err *e)
{
    struct advice_sample sample;
    advice_sample_init(&sample, SAMPLE_JOBS_MAX, SAMPLE_TOKENS_MAX);
    const struct pipeline_options o = {
        .answers = &setup->answers,
        .engine = setup->engine,
        .transport = transport,
        .store = &setup->store,
        .documents = setup->documents,
        .run_id = setup->run_id,
        .suspects = &setup->suspects,
        .running = setup->running,
        .watchdog_us = s->watchdog_s * 1000000,
        .sample = &sample,
        .show_progress = !quiet,
        .drain_us = s->drain_s * 1000000,
        .began_us = setup->began_us,
    };
    const int rc = pipeline_run(&o, totals, e);
    const char *status = rc != 0 ? "failed" : totals->stopped ? "cancelled" : "completed";
    int64_t n_failed = 0;
    char *counters = describe_counters(setup->engine, s, totals);
    int ended =
        store_end_run(setup->store.store, setup->run_id, status, counters, rc ? NULL : e);
    free(counters);
    if (rc == 0 && ended == 0)
        ended = store_count_failed(setup->store.store, setup->run_id, &n_failed, e);
    if (rc == 0 && !quiet) {
        say_totals(setup, s, totals);
        advice_sample_log(&sample, (size_t)s->prefix_tokens_min);
    }
    advice_sample_fini(&sample);
    if (rc != 0 || ended != 0)
        return cli_exit_code(e);
    if ((totals->stopped && transport->has_end) || totals->undelivered)
        return EX_TEMPFAIL; /* start it again */
    return n_failed > 0 ? EXIT_SOME_FAILED : 0;
}
