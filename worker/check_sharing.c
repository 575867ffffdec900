#include "check_sharing.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "text_excerpt.h"

enum {
    AROUND_CHARS = 24, /* text shown on each side of a piece */
    PIECE_CHARS = 48,
    WORTH_SAYING = 100, /* advice saves at least one token in so many */
};

/* ------------------------------------------------------------------ groups */

static const char *salt_of(const struct advice_sample *sample, size_t i)
{
    return sample->prompts[i].salt ? sample->prompts[i].salt : "";
}

static int compare_groups(const struct advice_sample *sample, size_t a, size_t b)
{
    const int order = strcmp(sample->jobs[a].group, sample->jobs[b].group);
    return order ? order : strcmp(salt_of(sample, a), salt_of(sample, b));
}

static int by_group(const void *left, const void *right, void *sample)
{
    const size_t a = *(const size_t *)left, b = *(const size_t *)right;
    const int order = compare_groups(sample, a, b);
    return order ? order : (a > b) - (a < b);
}

static size_t common_tokens(const struct group_prompt *a, const struct group_prompt *b,
                            size_t most)
{
    size_t i = 0;
    while (i < most && i < a->n_tokens && i < b->n_tokens && a->tokens[i] == b->tokens[i])
        i++;
    return i;
}

/* The jobs [0, n) of a group, by their numbers in the sample. */
static struct sharing_group group_of(const struct advice_sample *sample, const size_t *jobs,
                                     size_t n, size_t tokens_min)
{
    const struct group_prompt *first = &sample->prompts[jobs[0]];
    size_t shared = first->n_tokens;
    for (size_t i = 1; i < n; i++)
        shared = common_tokens(first, &sample->prompts[jobs[i]], shared);
    return (struct sharing_group){.first = jobs[0],
                                  .n_jobs = n,
                                  .shared_tokens = shared,
                                  .saved_tokens =
                                      shared < tokens_min ? 0 : (uint64_t)(n - 1) * shared};
}

static void count_more(struct sharing *s, const struct sharing_group *group)
{
    s->more_groups++;
    s->more_jobs += group->n_jobs;
    s->more_saved_tokens += group->saved_tokens;
}

/* Sorted in by what it saves; what falls out at the end is only counted. */
static void keep_group(struct sharing *s, struct sharing_group group)
{
    size_t at = s->n_groups;
    if (at == SHARING_GROUPS_MAX) {
        at--;
        if (s->groups[at].saved_tokens >= group.saved_tokens) {
            count_more(s, &group);
            return;
        }
        count_more(s, &s->groups[at]);
    } else {
        s->n_groups++;
    }
    for (; at > 0 && s->groups[at - 1].saved_tokens < group.saved_tokens; at--)
        s->groups[at] = s->groups[at - 1];
    s->groups[at] = group;
}

static int find_groups(struct sharing *s, size_t tokens_min, struct err *e)
{
    const struct advice_sample *sample = s->sample;
    size_t *order = calloc(sample->n + 1, sizeof order[0]);
    if (!order)
        return ERR_SET(e, ERR_NOMEM, "no memory for the groups of %zu jobs", sample->n);
    for (size_t i = 0; i < sample->n; i++)
        order[i] = i;
    qsort_r(order, sample->n, sizeof order[0], by_group, (void *)(uintptr_t)sample);
    size_t end;
    for (size_t at = 0; at < sample->n; at = end) {
        end = at + 1;
        const bool is_named = sample->jobs[order[at]].group[0] != '\0';
        while (is_named && end < sample->n &&
               compare_groups(sample, order[at], order[end]) == 0)
            end++;
        if (end - at > 1)
            keep_group(s, group_of(sample, order + at, end - at, tokens_min));
        else
            s->lone_jobs++;
    }
    free(order);
    return 0;
}

int sharing_find(const struct advice_sample *sample, size_t tokens_min, struct sharing *out,
                 struct err *e)
{
    *out = (struct sharing){.sample = sample};
    const struct advice_options o = {.tokens_min = tokens_min,
                                     .saved_min = sample->n_tokens / WORTH_SAYING + 1};
    TRY(advice_find(sample->prompts, sample->n, &o, &out->advice, e));
    return find_groups(out, tokens_min, e);
}

/* ------------------------------------------------------------------ excerpts */

struct excerpt {
    char *text;
    size_t length;
    bool cut;
};

/* The piece with what is before and after it. */
struct excerpts {
    struct excerpt before, piece, after;
};

static void free_excerpts(struct excerpts *x)
{
    free(x->before.text);
    free(x->piece.text);
    free(x->after.text);
}

static struct excerpt take(const struct tokenizer *tok, const struct group_prompt *prompt,
                           size_t start, size_t end, size_t chars_max, bool keep_last)
{
    struct excerpt x = {0};
    x.text =
        excerpt_text(tok, prompt->tokens, start, end, chars_max, keep_last, &x.length, &x.cut);
    return x;
}

static int make_excerpts(const struct sharing *s, const struct tokenizer *tok,
                         const struct advice_piece *piece, struct excerpts *out, struct err *e)
{
    const struct group_prompt *prompt = &s->sample->prompts[piece->prompt];
    out->before = take(tok, prompt, 0, piece->start, AROUND_CHARS, true);
    out->piece = take(tok, prompt, piece->start, piece->end, PIECE_CHARS, false);
    out->after = take(tok, prompt, piece->end, prompt->n_tokens, AROUND_CHARS, false);
    if (out->before.text && out->piece.text && out->after.text)
        return 0;
    free_excerpts(out);
    return ERR_SET(e, ERR_NOMEM, "no memory for the text of a prompt");
}

/* ------------------------------------------------------------------ as text */

static double percent(uint64_t part, uint64_t whole)
{
    return whole > 0 ? 100.0 * (double)part / (double)whole : 0;
}

static void print_job(const struct sharing *s, size_t job)
{
    const struct advice_sample_job *j = &s->sample->jobs[job];
    printf("line %lld (", (long long)j->offset);
    excerpt_print(j->custom_id, strlen(j->custom_id));
    putchar(')');
}

static void print_prediction(const struct sharing *s)
{
    const struct advice_sample *sample = s->sample;
    if (sample->is_full)
        printf("what follows covers the first %zu jobs with %llu prompt tokens\n", sample->n,
               (unsigned long long)sample->n_tokens);
    printf("best possible hit ratio of the prefix cache: %.4f (%llu of %llu prompt tokens)\n",
           percent(s->advice.cached_tokens, sample->n_tokens) / 100,
           (unsigned long long)s->advice.cached_tokens, (unsigned long long)sample->n_tokens);
}

static void print_groups(const struct sharing *s)
{
    if (s->n_groups > 0)
        printf("groups by system text and documents:\n"
               "      jobs  shared tokens   saved tokens  first job\n");
    for (size_t i = 0; i < s->n_groups; i++) {
        const struct sharing_group *g = &s->groups[i];
        printf("%10zu %14zu %14llu  ", g->n_jobs, g->shared_tokens,
               (unsigned long long)g->saved_tokens);
        print_job(s, g->first);
        putchar('\n');
    }
    if (s->more_groups > 0)
        printf("%10zu %14s %14llu  in %zu more groups\n", s->more_jobs, "",
               (unsigned long long)s->more_saved_tokens, s->more_groups);
    if (s->lone_jobs > 0)
        printf("%10zu jobs in no group\n", s->lone_jobs);
}

static void print_example(const struct sharing *s, const struct advice_piece *piece,
                          const struct excerpts *x)
{
    fputs("    ", stdout);
    print_job(s, piece->prompt);
    fputs(x->before.cut ? ": ..." : ": ", stdout);
    excerpt_print(x->before.text, x->before.length);
    fputs(" >>", stdout);
    excerpt_print(x->piece.text, x->piece.length);
    fputs(x->piece.cut ? "...<< " : "<< ", stdout);
    excerpt_print(x->after.text, x->after.length);
    fputs(x->after.cut ? "...\n" : "\n", stdout);
}

static int print_finding(const struct sharing *s, const struct tokenizer *tok,
                         const struct advice_finding *f, struct err *e)
{
    printf("advice: %zu jobs differ at token %zu and are equal again behind this piece:\n",
           f->n_jobs, f->position);
    for (int i = 0; i < 2; i++) {
        struct excerpts x;
        TRY(make_excerpts(s, tok, &f->example[i], &x, e));
        print_example(s, &f->example[i], &x);
        free_excerpts(&x);
    }
    printf("  with the piece at the end of the prompt each job would share %zu tokens: %llu "
           "tokens saved (%.1f %%)\n",
           f->shared_tokens, (unsigned long long)f->saved_tokens,
           percent(f->saved_tokens, s->sample->n_tokens));
    return 0;
}

int sharing_print(const struct sharing *s, const struct tokenizer *tok, struct err *e)
{
    print_prediction(s);
    print_groups(s);
    for (size_t i = 0; i < s->advice.n_findings; i++)
        TRY(print_finding(s, tok, &s->advice.findings[i], e));
    return 0;
}

/* ------------------------------------------------------------------ as JSON */

static json_t *group_value(const struct sharing *s, const struct sharing_group *g)
{
    const struct advice_sample_job *first = &s->sample->jobs[g->first];
    return json_pack("{s:s, s:I, s:I, s:I, s:I, s:s}", "group", first->group, "jobs",
                     (json_int_t)g->n_jobs, "shared_tokens", (json_int_t)g->shared_tokens,
                     "saved_tokens", (json_int_t)g->saved_tokens, "line",
                     (json_int_t)first->offset, "custom_id", first->custom_id);
}

static json_t *groups_value(const struct sharing *s)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->n_groups; i++)
        json_array_append_new(list, group_value(s, &s->groups[i]));
    return list;
}

static json_t *example_value(const struct sharing *s, const struct tokenizer *tok,
                             const struct advice_piece *piece)
{
    const struct advice_sample_job *job = &s->sample->jobs[piece->prompt];
    struct excerpts x;
    if (make_excerpts(s, tok, piece, &x, NULL) != 0)
        return NULL;
    json_t *value =
        json_pack("{s:I, s:s, s:s%, s:s%, s:s%}", "line", (json_int_t)job->offset, "custom_id",
                  job->custom_id, "before", x.before.text, x.before.length, "piece",
                  x.piece.text, x.piece.length, "after", x.after.text, x.after.length);
    free_excerpts(&x);
    return value;
}

static json_t *advice_value(const struct sharing *s, const struct tokenizer *tok)
{
    json_t *list = json_array();
    for (size_t i = 0; i < s->advice.n_findings; i++) {
        const struct advice_finding *f = &s->advice.findings[i];
        json_t *value = json_pack(
            "{s:I, s:I, s:I, s:I, s:[o, o]}", "position", (json_int_t)f->position, "jobs",
            (json_int_t)f->n_jobs, "shared_tokens", (json_int_t)f->shared_tokens,
            "saved_tokens", (json_int_t)f->saved_tokens, "examples",
            example_value(s, tok, &f->example[0]), example_value(s, tok, &f->example[1]));
        json_array_append_new(list, value);
    }
    return list;
}

int sharing_add_json(const struct sharing *s, const struct tokenizer *tok, json_t *root,
                     struct err *e)
{
    const struct advice_sample *sample = s->sample;
    json_t *value =
        json_pack("{s:{s:I, s:I, s:I, s:f, s:b}, s:o, s:{s:I, s:I, s:I}, s:I, s:o}", "sharing",
                  "jobs", (json_int_t)sample->n, "prompt_tokens", (json_int_t)sample->n_tokens,
                  "cached_tokens", (json_int_t)s->advice.cached_tokens, "hit_ratio",
                  percent(s->advice.cached_tokens, sample->n_tokens) / 100, "whole_file",
                  !sample->is_full, "groups", groups_value(s), "more_groups", "groups",
                  (json_int_t)s->more_groups, "jobs", (json_int_t)s->more_jobs, "saved_tokens",
                  (json_int_t)s->more_saved_tokens, "lone_jobs", (json_int_t)s->lone_jobs,
                  "advice", advice_value(s, tok));
    const int rc = value ? json_object_update(root, value) : -1;
    json_decref(value);
    return rc == 0 ? 0 : ERR_SET(e, ERR_NOMEM, "no memory for the list of groups");
}
