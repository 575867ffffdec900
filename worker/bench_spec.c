/*
 * Experiment spec: three kinds of jobs that speculation is worth different things for.
 *
 *     extraction   a section of a document is to be copied: drafts are found in the prompt
 *     fixed        a short answer in a form that is always the same
 *     open         a story, drawn at a temperature, of nothing that the prompt holds
 *
 * The documents are made up from a seed, the same on every machine. One that does not fit the
 * context with its answer has fewer sections, and a note says so.
 */
#include "bench.h"

#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"
#include "base/size.h"

enum {
    SEED = 43,
    JOBS_MIN = 16,
    DOCUMENTS = 4, /* each is asked about several times */
    SECTIONS = 6,
    SENTENCES = 4, /* of a section */
    OPEN_SEED = 7,
};

static const size_t answer_tokens[SPEC_KINDS] = {96, 64, 128};

static const char *const who[] = {"The warden",         "A surveyor",
                                  "The harbour master", "Her brother",
                                  "The council",        "A carter from the hills",
                                  "The clockmaker",     "The schoolmaster"};
static const char *const did[] = {"repaired", "counted", "sold",   "described",
                                  "painted",  "lost",    "bought", "measured"};
static const char *const what[] = {
    "eleven copper lanterns", "a map of the coast",       "the north gate",
    "two barrels of salt",    "an account book",          "the bell of the chapel",
    "thirty sheep",           "a crane of tarred timber",
};
static const char *const where[] = {"at the old bridge",     "by the river mill",
                                    "near the market hall",  "in the lower town",
                                    "behind the salt house", "on the island"};

#define PICK(list, stream, i) list[rng_bits(SEED, stream, i) % (sizeof list / sizeof list[0])]

const char *bench_spec_kind_name(enum spec_kind kind)
{
    static const char *const names[SPEC_KINDS] = {"extraction", "fixed", "open"};
    return names[kind];
}

static json_t *make_document(size_t number, size_t n_sections)
{
    struct buf text = {0};
    char id[16];
    for (size_t i = 0; i < n_sections * SENTENCES; i++) {
        const uint64_t at = 8 * i;
        if (i % SENTENCES == 0)
            buf_printf(&text, "%sSection %zu.", i ? "\n" : "", i / SENTENCES + 1);
        buf_printf(&text, " %s %s %s %s in the spring of 18%02d.", PICK(who, number, at),
                   PICK(did, number, at + 1), PICK(what, number, at + 2),
                   PICK(where, number, at + 3),
                   (int)(10 + rng_bits(SEED, number, at + 4) % 90));
    }
    snprintf(id, sizeof id, "chronicle-%zu", number);
    json_t *document =
        buf_ok(&text) ? json_pack("{s:s, s:s}", "id", id, "text", buf_str(&text)) : NULL;
    buf_fini(&text);
    return document;
}

static void make_question(enum spec_kind kind, size_t i, size_t n_sections, char *out,
                          size_t out_bytes)
{
    const size_t section = 1 + i / DOCUMENTS % n_sections;
    switch (kind) {
    case SPEC_EXTRACTION:
        snprintf(out, out_bytes, "Copy section %zu of the document word for word.", section);
        return;
    case SPEC_FIXED:
        snprintf(out, out_bytes,
                 "Does section %zu say anything about %s? Answer only with JSON: {\"section\": "
                 "%zu, \"answer\": \"yes\" or \"no\", \"person\": ..., \"year\": ...}",
                 section, PICK(what, 100 + i, 0), section);
        return;
    case SPEC_OPEN:
        snprintf(out, out_bytes, "Write a story about %s and %s.", PICK(what, 200 + i, 0),
                 PICK(what, 200 + i, 1));
        return;
    case SPEC_KINDS: return;
    }
}

/* NULL: no memory. */
static char *make_line(enum spec_kind kind, size_t i, size_t n_sections)
{
    char name[32], question[256];
    snprintf(name, sizeof name, "%s-%zu", bench_spec_kind_name(kind), i + 1);
    make_question(kind, i, n_sections, question, sizeof question);
    json_t *job =
        json_pack("{s:s, s:s, s:{s:I, s:f, s:I}}", "custom_id", name, "question", question,
                  "params", "max_tokens", (json_int_t)answer_tokens[kind], "temperature",
                  kind == SPEC_OPEN ? 0.8 : 0.0, "seed", (json_int_t)(OPEN_SEED + i));
    const bool made =
        kind == SPEC_OPEN ||
        json_object_set_new(job, "documents",
                            json_pack("[o]", make_document(i % DOCUMENTS, n_sections))) == 0;
    char *line = made ? json_dumps(job, JSON_COMPACT) : NULL;
    json_decref(job);
    return line;
}

static int make_jobs(struct bench_jobs *jobs, const struct answer_context *ctx,
                     enum spec_kind kind, size_t n_sections, struct err *e)
{
    const size_t n = size_max(JOBS_MIN, (size_t)ctx->settings->batch);
    int rc = 0;
    for (size_t i = 0; i < n && rc == 0; i++) {
        char *line = make_line(kind, i, n_sections);
        rc = line ? bench_jobs_add(jobs, ctx, "spec", (int64_t)i + 1, line, strlen(line), e)
                  : ERR_SET(e, ERR_NOMEM, "no memory for a job line");
        free(line);
    }
    return rc;
}

int bench_spec_make(struct bench_jobs *jobs, const struct answer_context *ctx,
                    enum spec_kind kind, struct err *e)
{
    const struct settings *s = ctx->settings;
    const size_t context = s->context ? (size_t)s->context : ctx->model->config.context;
    struct documents *documents = jobs->documents;
    for (size_t n_sections = SECTIONS; n_sections > 0; n_sections--) {
        bench_jobs_fini(jobs);
        jobs->documents = documents;
        jobs->concurrency = (size_t)s->batch;
        if (n_sections < SECTIONS)
            snprintf(jobs->note, sizeof jobs->note,
                     "documents of %zu sections instead of %d: no more fits the context",
                     n_sections, SECTIONS);
        TRY(make_jobs(jobs, ctx, kind, n_sections, e));
        if (jobs->context <= context)
            return 0;
    }
    return ERR_SET(e, ERR_LIMIT, "experiment spec needs a context of more than %zu tokens",
                   jobs->context);
}
