/*
 * sheaf bench levers: the same jobs with a lever off and on, A B B A, everything else fixed.
 *
 * One process, one open model, a fresh engine for each half. A half is a row of table
 * experiments; what is printed is read back from v_ab. A sweep measures points of the step's
 * budget in the same way, with the lever on.
 */
#include <jansson.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"
#include "bench.h"
#include "report/experiment.h"
#include "report/rows.h"
#include "setup.h"

enum { STATES_MAX = 8, TEXT_BYTES = 128 };

static const char *const lever_names[] = {"prefix_cache", "grouping", "chunked_prefill",
                                          "shared_attention", "speculation"};
static char speculation_off[] = "off";
static const int64_t sweep_step_tokens[] = {64, 128, 256, 512, 1024, 2048};

/* What is measured in turn: the settings that differ, and nothing else. */
struct state {
    bool lever_on;
    int64_t step_tokens, chunk_tokens;
};

/* Jobs that are measured apart from the others. */
struct kind {
    const char *name;
    struct bench_jobs jobs;
    struct bench_half first;
};

struct levers {
    const struct cli *cli;
    const struct setting *lever;
    const struct model *model;
    struct answer_context answers;
    struct documents *documents;
    struct kind kinds[SPEC_KINDS];
    size_t n_kinds;
    struct store *store;
    struct state states[STATES_MAX];
    size_t n_states;
    const char *name; /* of the experiment or the file */
    char id[TEXT_BYTES];
    char cpu[TEXT_BYTES];
    bool answers_differ;
};

/* ------------------------------------------------------------------ what to measure */

static int find_lever(struct levers *l, struct err *e)
{
    const char *wanted = l->cli->lever ? l->cli->lever : "";
    for (size_t i = 0; i < sizeof lever_names / sizeof lever_names[0]; i++)
        if (strcmp(lever_names[i], wanted) == 0)
            l->lever = settings_find(wanted);
    if (!l->lever)
        return ERR_SET(e, ERR_USAGE,
                       "give one lever with --lever: prefix_cache, grouping, chunked_prefill, "
                       "shared_attention or speculation");
    return 0;
}

/* Speculation is on as it is set; where that is off, all that needs no file or has one. */
static int choose_speculation(struct cli *cli, const struct setting *lever, struct err *e)
{
    struct settings *s = &cli->settings;
    if (lever->kind == SETTING_BOOL || strcmp(s->speculation, speculation_off) != 0)
        return 0;
    return settings_set(s, lever, *s->speculation_heads ? "all" : "lookup", e);
}

/* A chunk that the engine is to measure is measured once, for all halves. */
static int choose_pair(struct levers *l, struct err *e)
{
    const struct settings *s = &l->cli->settings;
    int64_t chunk_tokens = s->chunk_tokens;
    if (chunk_tokens == 0)
        TRY(bench_half_chunk(l->model, s, &l->kinds[0].jobs, &chunk_tokens, e));
    l->states[0] = (struct state){false, s->step_tokens, chunk_tokens};
    l->states[1] = (struct state){true, s->step_tokens, chunk_tokens};
    l->n_states = 2;
    return 0;
}

static void choose_budgets(struct levers *l)
{
    for (size_t i = 0; i < sizeof sweep_step_tokens / sizeof sweep_step_tokens[0]; i++) {
        const int64_t tokens = sweep_step_tokens[i];
        if (tokens >=
            (int64_t)l->kinds[0].jobs.concurrency) /* each of them decodes in every step */
            l->states[l->n_states++] = (struct state){true, tokens, tokens / 2};
    }
}

static int make_spec(struct levers *l, struct err *e)
{
    for (size_t i = 0; i < SPEC_KINDS; i++) {
        struct kind *kind = &l->kinds[l->n_kinds++];
        kind->name = bench_spec_kind_name((enum spec_kind)i);
        TRY(bench_spec_make(&kind->jobs, &l->answers, (enum spec_kind)i, e));
    }
    return 0;
}

static int choose_jobs(struct levers *l, struct err *e)
{
    const struct cli *cli = l->cli;
    if ((cli->input != NULL) == (cli->experiment != NULL))
        return ERR_SET(e, ERR_USAGE, "give either jobs with -i FILE or --experiment NAME");
    if (cli->experiment) {
        l->name = cli->experiment;
        if (strcmp(l->name, "spec") == 0 && cli->sweep)
            return ERR_SET(e, ERR_USAGE, "--sweep takes jobs of one kind; spec has three");
        if (strcmp(l->name, "spec") == 0)
            return make_spec(l, e);
    }
    struct kind *all = &l->kinds[l->n_kinds++];
    all->name = "all";
    all->jobs.documents = l->documents;
    if (cli->experiment)
        return bench_jobs_make(&all->jobs, &l->answers, cli->experiment, e);
    const char *slash = strrchr(cli->input, '/');
    l->name = slash ? slash + 1 : cli->input;
    return bench_jobs_read(&all->jobs, &l->answers, cli->input, e);
}

static void name_experiment(struct levers *l)
{
    char when[32];
    const time_t now = (time_t)(clock_wall_us() / 1000000);
    struct tm utc;
    if (!gmtime_r(&now, &utc) || strftime(when, sizeof when, "%Y%m%dT%H%M%SZ", &utc) == 0)
        snprintf(when, sizeof when, "%lld", (long long)now);
    snprintf(l->id, sizeof l->id, "%.48s-%s-%s-%d", l->name, l->lever->key, when,
             (int)getpid());
}

static void name_cpu(struct levers *l)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "r");
    snprintf(l->cpu, sizeof l->cpu, "unknown");
    while (f && fgets(line, sizeof line, f)) {
        const char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        const char *value = colon + 1 + strspn(colon + 1, " \t");
        snprintf(l->cpu, sizeof l->cpu, "%.*s", (int)strcspn(value, "\n"), value);
        break;
    }
    if (f)
        fclose(f);
}

/* ------------------------------------------------------------------ measuring */

static int make_settings(const struct levers *l, const struct state *state,
                         struct settings *out, struct err *e)
{
    *out = l->cli->settings; /* its texts stay the command line's */
    out->step_tokens = state->step_tokens;
    out->chunk_tokens = state->chunk_tokens;
    if (l->lever->kind == SETTING_BOOL)
        return settings_set(out, l->lever, state->lever_on ? "on" : "off", e);
    if (!state->lever_on)
        out->speculation = speculation_off;
    return 0;
}

/* What shapes the answers' way through the engine; NULL: no memory. */
static char *describe_settings(const struct settings *s, const struct bench_jobs *jobs)
{
    json_t *root = json_pack(
        "{s:b, s:b, s:b, s:b, s:s, s:s, s:I, s:s, s:I, s:I, s:I, s:I, s:s, s:s, s:I, s:I, s:I, "
        "s:I, s:I}",
        "prefix_cache", s->prefix_cache, "grouping", s->grouping, "chunked_prefill",
        s->chunked_prefill, "shared_attention", s->shared_attention, "speculation",
        s->speculation, "speculation.heads", s->speculation_heads, "prefix_cache.min_tokens",
        (json_int_t)s->prefix_tokens_min, "prefix_cache.evict", s->prefix_evict, "threads",
        (json_int_t)s->threads, "step_tokens", (json_int_t)s->step_tokens,
        "prefill.chunk_tokens", (json_int_t)s->chunk_tokens, "kv.mb", (json_int_t)s->kv_mb,
        "kv.type", s->kv_type, "activations", s->activations, "context", (json_int_t)s->context,
        "batch", (json_int_t)jobs->concurrency, "window.jobs", (json_int_t)s->window_jobs,
        "group.open", (json_int_t)s->group_open, "prefix_cache.mb", (json_int_t)s->prefix_mb);
    char *text = root ? json_dumps(root, JSON_COMPACT) : NULL;
    json_decref(root);
    return text;
}

static int store_half(struct levers *l, const struct kind *kind, const struct settings *s,
                      const struct state *state, size_t position, double identical_share,
                      const struct bench_half *half, struct err *e)
{
    char *settings_json = describe_settings(s, &kind->jobs);
    if (!settings_json)
        return ERR_SET(e, ERR_NOMEM, "no memory for the settings");
    struct store_experiment row = {
        .experiment_id = l->id,
        .lever = l->lever->key,
        .name = l->name,
        .job_kind = kind->name,
        .repeat = (int64_t)(position / l->n_states),
        .position = (int64_t)position,
        .lever_on = state->lever_on,
        .cpu = l->cpu,
        .model = l->model->name,
        .model_sha256 = l->model->sha256,
        .quant = l->model->quant,
        .version = SHEAF_VERSION,
        .settings_json = settings_json,
        .identical_share = identical_share,
    };
    int rc = bench_half_figures(half, &kind->jobs, &row, e);
    if (rc == 0)
        rc = store_put_experiment(l->store, &row, e);
    free(settings_json);
    return rc;
}

static int measure(struct levers *l, struct kind *kind, size_t position, size_t n_positions,
                   struct err *e)
{
    const struct state *state = &l->states[experiment_state(l->n_states, position)];
    struct settings s;
    struct bench_half half;
    TRY(make_settings(l, state, &s, e));
    TRY(bench_half_run(&half, l->model, &s, &kind->jobs, e));
    double same = position == 0 ? NAN : bench_half_same(&kind->first, &half);
    if (same < 1)
        l->answers_differ = true;
    log_info("%zu/%zu: %s %s, jobs %s, step_tokens %lld, chunk_tokens %lld: %.2f s",
             position + 1, n_positions, l->lever->key, state->lever_on ? "on" : "off",
             kind->name, (long long)s.step_tokens, (long long)s.chunk_tokens,
             (double)half.wall_us / 1e6);
    const int rc = store_half(l, kind, &s, state, position, same, &half, e);
    if (position == 0 && rc == 0)
        kind->first = half;
    else
        bench_half_fini(&half);
    return rc;
}

static int measure_all(struct levers *l, struct err *e)
{
    const size_t n = (size_t)l->cli->repeats * l->n_states;
    for (size_t position = 0; position < n; position++)
        for (size_t i = 0; i < l->n_kinds; i++)
            TRY(measure(l, &l->kinds[i], position, n, e));
    return 0;
}

/* ------------------------------------------------------------------ printing */

static const char pairs_sql[] =
    "SELECT metric, median_off, median_on, ratio, spread, identical_share FROM v_ab "
    "WHERE experiment_id = ?1 ORDER BY position";
static const struct rows_column pairs_columns[] = {
    {"metric", ROWS_TEXT, 0},   {"off", ROWS_DECIMAL, 0},    {"on", ROWS_DECIMAL, 0},
    {"ratio", ROWS_DECIMAL, 0}, {"spread", ROWS_PERCENT, 0}, {"identical", ROWS_PERCENT, 0},
};

static const char kinds_sql[] =
    "SELECT job_kind, metric, median_off, median_on, ratio, spread, identical_share FROM v_ab "
    "WHERE experiment_id = ?1 AND metric IN ('wall_s', 'decode_tok_s', 'tokens_per_step', "
    "'acceptance', 'tpot_p50_ms', 'memory_peak_bytes') ORDER BY job_kind, position";
static const struct rows_column kinds_columns[] = {
    {"jobs", ROWS_TEXT, 0},         {"metric", ROWS_TEXT, 0},   {"off", ROWS_DECIMAL, 0},
    {"on", ROWS_DECIMAL, 0},        {"ratio", ROWS_DECIMAL, 0}, {"spread", ROWS_PERCENT, 0},
    {"identical", ROWS_PERCENT, 0},
};

/* Whether all jobs of a kind take less time, by more than repeats differ. */
static const char verdicts_sql[] =
    "SELECT job_kind, CASE WHEN ratio - 1 > spread THEN 'pays' WHEN 1 - ratio > spread THEN "
    "'does not pay: leave it off' ELSE 'repeats differ by more than it does' END AS verdict, "
    "ratio, spread FROM v_ab WHERE experiment_id = ?1 AND metric = 'wall_s' ORDER BY job_kind";
static const struct rows_column verdicts_columns[] = {
    {"jobs", ROWS_TEXT, 0},
    {"verdict", ROWS_TEXT, 0},
    {"ratio", ROWS_DECIMAL, 0},
    {"spread", ROWS_PERCENT, 0},
};

static const char sweep_sql[] =
    "SELECT step_tokens, chunk_tokens, "
    "max(CASE metric WHEN 'ttft_short_p95_ms' THEN median_on END) AS ttft_short_p95_ms, "
    "max(CASE metric WHEN 'ttft_p95_ms' THEN median_on END) AS ttft_p95_ms, "
    "max(CASE metric WHEN 'e2e_long_p50_ms' THEN median_on END) AS e2e_long_p50_ms, "
    "max(CASE metric WHEN 'tpot_p95_ms' THEN median_on END) AS tpot_p95_ms, "
    "max(CASE metric WHEN 'total_tok_s' THEN median_on END) AS total_tok_s, "
    "max(spread) AS spread, min(identical_share) AS identical_share "
    "FROM v_ab WHERE experiment_id = ?1 AND metric IN ('ttft_short_p95_ms', 'ttft_p95_ms', "
    "'e2e_long_p50_ms', 'tpot_p95_ms', 'total_tok_s') GROUP BY step_tokens, chunk_tokens";
static const struct rows_column sweep_columns[] = {
    {"step", ROWS_COUNT, 0},
    {"chunk", ROWS_COUNT, 0},
    {"short ttft p95", ROWS_DECIMAL, 0},
    {"ttft p95 ms", ROWS_DECIMAL, 0},
    {"long e2e p50", ROWS_DECIMAL, 0},
    {"tpot p95 ms", ROWS_DECIMAL, 0},
    {"tok/s", ROWS_DECIMAL, 0},
    {"spread", ROWS_PERCENT, 0},
    {"identical", ROWS_PERCENT, 0},
};

#define QUERY(name, l)                                                                         \
    (struct rows_query)                                                                        \
    {                                                                                          \
        .sql = name##_sql, .args = {(l)->id}, .columns = name##_columns,                       \
        .n_columns = sizeof name##_columns / sizeof name##_columns[0]                          \
    }

static struct rows_query table_query(const struct levers *l)
{
    if (l->cli->sweep)
        return QUERY(sweep, l);
    return l->n_kinds > 1 ? QUERY(kinds, l) : QUERY(pairs, l);
}

static size_t count_jobs(const struct levers *l)
{
    size_t n = 0;
    for (size_t i = 0; i < l->n_kinds; i++)
        n += l->kinds[i].jobs.n;
    return n;
}

static int print_text(const struct levers *l, struct err *e)
{
    const struct rows_query query = table_query(l), verdicts = QUERY(verdicts, l);
    const struct bench_jobs *jobs = &l->kinds[0].jobs;
    printf("%s, %s (%s): %s, %zu jobs, %zu at a time, %lld repeats on %s\n", l->lever->key,
           l->model->name, l->model->quant, l->name, count_jobs(l), jobs->concurrency,
           (long long)l->cli->repeats, l->cpu);
    if (jobs->note[0])
        printf("note: %s\n", jobs->note);
    TRY(rows_print(l->store, &query, ROWS_TABLE, stdout, NULL, e));
    if (l->n_kinds == 1)
        return 0;
    fputc('\n', stdout);
    return rows_print(l->store, &verdicts, ROWS_TABLE, stdout, NULL, e);
}

static int print_json(const struct levers *l, struct err *e)
{
    const struct rows_query table = table_query(l);
    const struct rows_query pairs = {
        .sql = "SELECT * FROM v_ab WHERE experiment_id = ?1 ORDER BY step_tokens, job_kind, "
               "position",
        .args = {l->id}};
    const struct rows_query halves = {
        .sql = "SELECT * FROM experiments WHERE experiment_id = ?1 ORDER BY position, row_id",
        .args = {l->id}};
    const struct rows_query verdicts = {.sql = verdicts_sql, .args = {l->id}};
    const char *said = l->kinds[0].jobs.note;
    json_t *note = said[0] ? json_string(said) : json_null();
    char *note_text = json_dumps(note, JSON_ENCODE_ANY);
    json_decref(note);
    printf("{\"note\":%s,\"pairs\":", note_text ? note_text : "null");
    free(note_text);
    TRY(rows_print(l->store, &pairs, ROWS_JSON_ARRAY, stdout, NULL, e));
    if (l->cli->sweep) {
        fputs(",\"sweep\":", stdout);
        TRY(rows_print(l->store, &table, ROWS_JSON_ARRAY, stdout, NULL, e));
    }
    if (l->n_kinds > 1) {
        fputs(",\"verdicts\":", stdout);
        TRY(rows_print(l->store, &verdicts, ROWS_JSON_ARRAY, stdout, NULL, e));
    }
    fputs(",\"halves\":", stdout);
    TRY(rows_print(l->store, &halves, ROWS_JSON_ARRAY, stdout, NULL, e));
    fputs("}\n", stdout);
    return 0;
}

/* ------------------------------------------------------------------ the command */

static int measure_and_print(struct levers *l, struct err *e)
{
    TRY(answer_context_init(&l->answers, l->model, &l->cli->settings, "", e));
    TRY(choose_jobs(l, e));
    if (l->cli->sweep)
        choose_budgets(l);
    else
        TRY(choose_pair(l, e));
    name_experiment(l);
    name_cpu(l);
    TRY(measure_all(l, e));
    if (l->answers_differ)
        log_warn("answers differ between halves; a lever must not change them");
    return l->cli->json ? print_json(l, e) : print_text(l, e);
}

int bench_levers(struct cli *cli, struct err *e)
{
    struct levers l = {.cli = cli};
    struct model *m = NULL;
    struct documents *documents = NULL;
    int rc = 0;
    if (cli->repeats < 1)
        TRY_OUT(rc, ERR_SET(e, ERR_USAGE, "--repeats must be at least 1"));
    TRY_OUT(rc, find_lever(&l, e));
    TRY_OUT(rc, choose_speculation(cli, l.lever, e));
    TRY_OUT(rc, store_open(*cli->settings.db ? cli->settings.db : "bench.db", STORE_OWNER,
                           &l.store, e));
    TRY_OUT(rc, setup_open_documents(&cli->settings, NULL, &documents, e));
    TRY_OUT(rc, setup_open_model(&cli->settings, &m, e));
    l.model = m;
    l.documents = documents;
    TRY_OUT(rc, measure_and_print(&l, e));
out:
    for (size_t i = 0; i < l.n_kinds; i++) {
        bench_half_fini(&l.kinds[i].first);
        bench_jobs_fini(&l.kinds[i].jobs);
    }
    documents_close(documents);
    model_close(m);
    store_close(l.store);
    if (rc != 0)
        return cli_exit_code(e);
    return l.answers_differ ? EXIT_SOME_FAILED : 0;
}
