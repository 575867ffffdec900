/*
 * The ready experiments: job lines whose prompts are token ids, so that their lengths are
 * exact.
 *
 * The text behind the ids is words drawn from a seed and tokenized; what is too long is cut
 * off. A prompt that does not fit the context with its answer is made shorter, and a note says
 * so.
 */
#include "bench.h"

#include <stdio.h>
#include <string.h>

#include "base/buf.h"
#include "base/rng.h"

enum { TEXT_SEED = 41, PREFIX_STREAM = 0 };

/* A prompt is the common prefix and a text of its own, which every long_every-th job has in
 * another length (0: none has). */
static const struct recipe {
    const char *name;
    size_t n_jobs, concurrency;
    size_t prefix_tokens, own_tokens;
    size_t long_every, long_tokens;
    size_t answer_tokens;
} recipes[] = {
    {.name = "prefix", /* one at a time: a job's time to first token is its own prompt's */
     .n_jobs = 20,
     .concurrency = 1,
     .prefix_tokens = 4000,
     .own_tokens = 30,
     .answer_tokens = 64},
    {.name = "chunk",
     .n_jobs = 32,
     .concurrency = 8,
     .own_tokens = 200,
     .long_every = 4,
     .long_tokens = 8000,
     .answer_tokens = 32},
    {.name = "document",
     .n_jobs = 32,
     .concurrency = 32,
     .prefix_tokens = 2000,
     .own_tokens = 30,
     .answer_tokens = 32},
    {.name = "shared",
     .n_jobs = 32,
     .concurrency = 32,
     .prefix_tokens = 2048,
     .own_tokens = 30,
     .answer_tokens = 64},
};
enum { N_RECIPES = sizeof recipes / sizeof recipes[0] };

static const char *const words[] = {
    "river",   "mill",   "stone",   "bridge",  "winter", "letter", "garden",  "window",
    "copper",  "engine", "harbour", "market",  "silver", "valley", "candle",  "orchard",
    "paper",   "salt",   "lantern", "winding", "quiet",  "early",  "broken",  "narrow",
    "carries", "keeps",  "opens",   "turns",   "under",  "behind", "between", "after",
};
enum { N_WORDS = sizeof words / sizeof words[0] };

/* Exactly n ids. A word is one token at least, so that n words are enough. */
static int make_text(const struct answer_context *ctx, uint64_t stream, bool is_start, size_t n,
                     struct token_list *out, struct err *e)
{
    struct buf text = {0};
    for (size_t i = 0; i < n; i++)
        buf_printf(&text, " %s", words[rng_bits(TEXT_SEED, stream, i) % N_WORDS]);
    const struct token_span span = {.text = buf_str(&text), .length = text.length};
    const size_t before = out->length;
    int rc = buf_ok(&text) ? tokenizer_encode(ctx->model->tokenizer, &span, 1, is_start, out, e)
                           : ERR_SET(e, ERR_NOMEM, "no memory for a text");
    buf_fini(&text);
    if (rc == 0 && out->length < before + n)
        rc = ERR_SET(e, ERR_UNSUPPORTED, "the tokenizer makes fewer tokens than words");
    if (rc == 0)
        out->length = before + n;
    return rc;
}

static int add_job(struct bench_jobs *jobs, const struct answer_context *ctx,
                   const struct recipe *r, size_t i, const struct token_list *prompt,
                   struct err *e)
{
    struct buf line = {0};
    buf_printf(&line,
               "{\"custom_id\": \"%s-%02zu\", \"method\": \"POST\", \"url\": "
               "\"/v1/completions\", \"body\": {\"max_tokens\": %zu, \"ignore_eos\": true, "
               "\"temperature\": 0, \"prompt\": [",
               r->name, i + 1, r->answer_tokens);
    for (size_t k = 0; k < prompt->length; k++)
        buf_printf(&line, k ? ",%d" : "%d", (int)prompt->ids[k]);
    buf_append_str(&line, "]}}");
    const int rc = buf_ok(&line) ? bench_jobs_add(jobs, ctx, r->name, (int64_t)i + 1, line.data,
                                                  line.length, e)
                                 : ERR_SET(e, ERR_NOMEM, "no memory for a job line");
    buf_fini(&line);
    return rc;
}

static bool is_long(const struct recipe *r, size_t i)
{
    return r->long_every > 0 && i % r->long_every == 0;
}

static int make_job(struct bench_jobs *jobs, const struct answer_context *ctx,
                    const struct recipe *r, size_t i, struct err *e)
{
    struct token_list prompt = {0};
    int rc = 0;
    if (r->prefix_tokens > 0)
        rc = make_text(ctx, PREFIX_STREAM, true, r->prefix_tokens, &prompt, e);
    if (rc == 0)
        rc = make_text(ctx, PREFIX_STREAM + 1 + i, r->prefix_tokens == 0,
                       is_long(r, i) ? r->long_tokens : r->own_tokens, &prompt, e);
    if (rc == 0)
        rc = add_job(jobs, ctx, r, i, &prompt, e);
    token_list_fini(&prompt);
    return rc;
}

static void shorten(struct bench_jobs *jobs, size_t *tokens, size_t room, const char *what)
{
    if (*tokens <= room)
        return;
    snprintf(jobs->note, sizeof jobs->note,
             "%s of %zu tokens instead of %zu: no more fits the context", what, room, *tokens);
    *tokens = room;
}

/* The recipe as far as it fits. */
static int fit(struct bench_jobs *jobs, size_t context, struct recipe *r, struct err *e)
{
    const size_t least = r->own_tokens + r->answer_tokens;
    if (context <= least)
        return ERR_SET(e, ERR_LIMIT, "experiment %s needs a context of more than %zu tokens",
                       r->name, least);
    shorten(jobs, &r->prefix_tokens, context - least, "a prefix");
    shorten(jobs, &r->long_tokens, context - r->answer_tokens, "long prompts");
    return 0;
}

static int find_recipe(const char *name, struct recipe *out, struct err *e)
{
    char names[96] = "";
    for (size_t i = 0; i < N_RECIPES; i++) {
        if (strcmp(recipes[i].name, name) == 0) {
            *out = recipes[i];
            return 0;
        }
        const size_t used = strlen(names);
        snprintf(names + used, sizeof names - used, "%s%s", i ? ", " : "", recipes[i].name);
    }
    return ERR_SET(e, ERR_USAGE, "there is no experiment %s; there are %s, spec", name, names);
}

int bench_jobs_make(struct bench_jobs *jobs, const struct answer_context *ctx, const char *name,
                    struct err *e)
{
    struct recipe r = {0};
    const struct settings *s = ctx->settings;
    const size_t context = s->context ? (size_t)s->context : ctx->model->config.context;
    TRY(find_recipe(name, &r, e));
    TRY(fit(jobs, context, &r, e));
    jobs->concurrency = r.concurrency;
    for (size_t i = 0; i < r.n_jobs; i++)
        TRY(make_job(jobs, ctx, &r, i, e));
    return 0;
}
