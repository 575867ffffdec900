/*
 * An engine that computes nothing, in place of worker/engine: with it a worker answers
 * thousands of jobs a minute and is killed as often.
 *
 * The answer is a function of the prompt's tokens, the seed and max_tokens only. The prompt is
 * decoded; h is the 64-bit FNV-1a hash of all bytes between "[[" and "]]", then of the seed in
 * decimal. Digit i of max_tokens is the top four bits of h in hex; then h = h * MULTIPLIER +
 * INCREMENT. check_history.py says the same in its own words.
 *
 *     SHEAF_FAKE_TOKEN_US   how long a job runs for each of its max_tokens (0)
 *     SHEAF_FAKE_LOG        file that gets "h wall_us pid" when a job begins; appended to
 */
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "base/buf.h"
#include "base/check.h"
#include "base/clock.h"
#include "engine/engine.h"

enum { STEP_US_MAX = 5000 };

struct sequence {
    void *user;
    char *text;
    int32_t *tokens;
    size_t n_prompt, n_tokens;
    int64_t submitted_us, due_us;
    bool is_cancelled;
};

struct engine {
    const struct model *model;
    struct engine_options options;
    struct sequence **active; /* [n_active] */
    size_t n_active, capacity;
    struct sequence *lent; /* by engine_collect */
    int64_t token_us;
    int log; /* -1: none */
    struct engine_counters counters;
};

int engine_open(const struct model *m, const struct engine_options *options,
                struct engine **out, struct err *e)
{
    const char *token_us = getenv("SHEAF_FAKE_TOKEN_US");
    const char *log = getenv("SHEAF_FAKE_LOG");
    struct engine *eng = calloc(1, sizeof *eng);
    *out = eng;
    if (!eng)
        return ERR_SET(e, ERR_NOMEM, "no memory for an engine");
    eng->model = m;
    eng->options = *options;
    eng->token_us = token_us ? strtoll(token_us, NULL, 10) : 0;
    eng->log = log ? open(log, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600) : -1;
    ASSERT(!log || eng->log >= 0);
    return 0;
}

static void sequence_free(struct sequence *seq)
{
    if (!seq)
        return;
    free(seq->text);
    free(seq->tokens);
    free(seq);
}

void engine_close(struct engine *eng)
{
    if (!eng)
        return;
    for (size_t i = 0; i < eng->n_active; i++)
        sequence_free(eng->active[i]);
    sequence_free(eng->lent);
    free(eng->active);
    if (eng->log >= 0)
        close(eng->log);
    free(eng);
}

struct engine_plan engine_plan(const struct engine *eng)
{
    return (struct engine_plan){
        .kernels = "fake", .context = eng->options.context, .n_threads = 1};
}

struct engine_counters engine_counters(const struct engine *eng)
{
    return eng->counters;
}

const struct kernels *engine_kernels(const struct engine *eng)
{
    static const struct kernels none = {.name = "fake"};
    (void)eng;
    return &none;
}

int engine_check(const struct engine *eng, const struct seq_request *req, struct err *e)
{
    (void)eng;
    return req->n_prompt > 0 ? 0 : ERR_SET_FLAGS(e, ERR_INVALID, ERR_JOB, "an empty prompt");
}

/* ------------------------------------------------------------------ answers */

static uint64_t fnv1a(uint64_t h, const char *bytes, size_t n)
{
    for (size_t i = 0; i < n; i++)
        h = (h ^ (unsigned char)bytes[i]) * UINT64_C(0x100000001b3);
    return h;
}

static uint64_t hash_marked(const char *text)
{
    uint64_t h = UINT64_C(0xcbf29ce484222325);
    const char *end;
    while ((text = strstr(text, "[[")) && (end = strstr(text, "]]"))) {
        h = fnv1a(h, text + 2, (size_t)(end - text) - 2);
        text = end + 2;
    }
    return h;
}

static uint64_t hash_request(const struct engine *eng, const struct seq_request *req)
{
    struct buf text = {0};
    const int rc =
        tokenizer_decode(eng->model->tokenizer, req->prompt, req->n_prompt, &text, NULL);
    char *decoded = rc == 0 ? buf_take(&text) : NULL;
    ASSERT(decoded);
    char seed[24];
    const int n = snprintf(seed, sizeof seed, "%" PRIu64, req->sample.seed);
    const uint64_t h = fnv1a(hash_marked(decoded), seed, (size_t)n);
    free(decoded);
    return h;
}

static void write_digits(uint64_t h, size_t n, char *out)
{
    for (size_t i = 0; i < n; i++) {
        out[i] = "0123456789abcdef"[h >> 60];
        h = h * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    }
    out[n] = '\0';
}

static void note_begin(const struct engine *eng, uint64_t h)
{
    char line[64];
    const int n = snprintf(line, sizeof line, "%016" PRIx64 " %" PRId64 " %d\n", h,
                           clock_wall_us(), (int)getpid());
    if (eng->log >= 0)
        ASSERT(write(eng->log, line, (size_t)n) == n);
}

/* ------------------------------------------------------------------ sequences */

static struct sequence *sequence_new(const struct engine *eng, const struct seq_request *req)
{
    const int64_t now_us = clock_mono_us();
    struct sequence *seq = calloc(1, sizeof *seq);
    ASSERT(seq);
    *seq = (struct sequence){
        .user = req->user,
        .text = malloc(req->max_tokens + 1),
        .tokens = calloc(req->max_tokens, sizeof(int32_t)),
        .n_prompt = req->n_prompt,
        .n_tokens = req->max_tokens,
        .submitted_us = now_us,
        .due_us = now_us + (int64_t)req->max_tokens * eng->token_us,
    };
    ASSERT(seq->text && seq->tokens);
    const uint64_t h = hash_request(eng, req);
    note_begin(eng, h);
    write_digits(h, req->max_tokens, seq->text);
    return seq;
}

int engine_submit(struct engine *eng, const struct seq_request *req, struct err *e)
{
    TRY(engine_check(eng, req, e));
    if (eng->n_active == eng->capacity) {
        eng->capacity = 2 * eng->capacity + 16;
        eng->active = realloc(eng->active, eng->capacity * sizeof(struct sequence *));
        ASSERT(eng->active);
    }
    eng->active[eng->n_active++] = sequence_new(eng, req);
    return 0;
}

size_t engine_active(const struct engine *eng)
{
    return eng->n_active;
}

bool engine_has_room(const struct engine *eng)
{
    return eng->n_active < eng->options.batch;
}

int engine_want(struct engine *eng, const char *salt, const int32_t *prompt, size_t n_prompt,
                struct prefix_path **out, struct err *e)
{
    (void)eng, (void)salt, (void)prompt, (void)n_prompt, (void)e;
    *out = NULL;
    return 0;
}

void engine_unwant(struct engine *eng, struct prefix_path *path)
{
    (void)eng, (void)path;
}

/* What is ready first; n_active when nothing is. */
static size_t find_ready(const struct engine *eng, int64_t now_us)
{
    size_t first = 0;
    for (size_t i = 0; i < eng->n_active; i++) {
        if (eng->active[i]->is_cancelled)
            return i;
        if (eng->active[i]->due_us < eng->active[first]->due_us)
            first = i;
    }
    return eng->n_active > 0 && eng->active[first]->due_us <= now_us ? first : eng->n_active;
}

int engine_step(struct engine *eng, bool *worked, struct err *e)
{
    (void)e;
    *worked = eng->n_active > 0;
    if (!*worked)
        return 0;
    eng->counters.steps++;
    const int64_t now_us = clock_mono_us();
    int64_t left_us = STEP_US_MAX;
    for (size_t i = 0; i < eng->n_active; i++) {
        const struct sequence *seq = eng->active[i];
        const int64_t due_us = seq->is_cancelled ? now_us : seq->due_us;
        left_us = due_us - now_us < left_us ? due_us - now_us : left_us;
    }
    if (left_us > 0)
        nanosleep(&(struct timespec){.tv_nsec = left_us * 1000}, NULL);
    return 0;
}

bool engine_collect(struct engine *eng, struct seq_result *out)
{
    static const struct draft_tally none;
    const int64_t now_us = clock_mono_us();
    const size_t at = find_ready(eng, now_us);
    if (at == eng->n_active)
        return false;
    sequence_free(eng->lent);
    struct sequence *seq = eng->lent = eng->active[at];
    eng->active[at] = eng->active[--eng->n_active];
    *out = (struct seq_result){
        .user = seq->user,
        .reason = seq->is_cancelled ? FINISH_CANCELLED : FINISH_LENGTH,
        .stop_index = -1,
        .stop_token = TOKEN_NONE,
        .tokens = seq->tokens,
        .n_tokens = seq->n_tokens,
        .text = seq->text,
        .text_bytes = seq->n_tokens,
        .n_prompt = seq->n_prompt,
        .miss = PREFIX_MISS_OFF,
        .n_steps = 1,
        .n_chunks = 1,
        .drafts = &none,
        .submitted_us = seq->submitted_us,
        .scheduled_us = seq->submitted_us,
        .first_token_us = seq->submitted_us,
        .last_token_us = now_us,
    };
    if (!seq->is_cancelled) {
        eng->counters.prompt_tokens += seq->n_prompt;
        eng->counters.generated_tokens += seq->n_tokens;
    }
    return true;
}

void engine_cancel_all(struct engine *eng)
{
    for (size_t i = 0; i < eng->n_active; i++)
        eng->active[i]->is_cancelled = true;
}

bool engine_cancel(struct engine *eng, const void *user)
{
    for (size_t i = 0; i < eng->n_active; i++)
        if (eng->active[i]->user == user)
            return eng->active[i]->is_cancelled = true;
    return false;
}
