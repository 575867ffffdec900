/*
 * driver: one model in libllama's hands, timed. Built twice by ops/bench/peers: against
 * llama.cpp, and with -DPEER_IK against ik_llama.cpp.
 *
 *   driver MODEL job FILE [name=value]...    a batch job: a document once, its cells shared
 *                                            by all its questions, which decode together
 *   driver MODEL speed [name=value]...       prefill, and sizes=1,8,32 sequences on a prefix
 *   driver MODEL pieces                      the bytes of each token in hex, a line each
 *
 * FILE has lines "DOC id id ..." and behind each its "ASK id id ...". Greedy, and the end token
 * is a token like any other. Standard output is one JSON object; times leave out loading.
 * A value out of place ends the program with a message and exit code 1: only a bench calls it.
 */
#include "driver.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    PROMPT_TOKENS = 2000,
    PREFIX_TOKENS = 2048,
    OWN_TOKENS = 8, /* of a sequence, behind the prefix */
    SIZES_MAX = 32, /* sequences of a speed */
    CELLS = 256,    /* contexts are multiples of it */
};

int fails(const char *what, const char *which)
{
    fprintf(stderr, "driver: %s: %s\n", what, which);
    return -1;
}

double now_s(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ------------------------------------------------------------------ the two libraries */

#ifdef PEER_IK
static const char peer[] = "ik_llama.cpp";
static void clear(struct driver *d)
{
    llama_kv_cache_clear(d->ctx);
}
void share(struct driver *d, int seq)
{
    llama_kv_cache_seq_rm(d->ctx, seq, -1, -1);
    llama_kv_cache_seq_cp(d->ctx, 0, seq, -1, -1);
}
static void drop(struct driver *d, int seq)
{
    llama_kv_cache_seq_rm(d->ctx, seq, -1, -1);
}
#else
static const char peer[] = "llama.cpp";
static void clear(struct driver *d)
{
    llama_memory_clear(llama_get_memory(d->ctx), false);
}
void share(struct driver *d, int seq)
{
    llama_memory_seq_rm(llama_get_memory(d->ctx), seq, -1, -1);
    llama_memory_seq_cp(llama_get_memory(d->ctx), 0, seq, -1, -1);
}
static void drop(struct driver *d, int seq)
{
    llama_memory_seq_rm(llama_get_memory(d->ctx), seq, -1, -1);
}
#endif

/* What was built and chosen belongs into the report; the rest of the talk does not. */
static void log_some(enum ggml_log_level level, const char *text, void *ctx)
{
    (void)ctx;
    if (level == GGML_LOG_LEVEL_ERROR || strstr(text, "FANCY_SIMD"))
        fputs(text, stderr);
}

static int load(struct driver *d, const char *path)
{
    llama_log_set(log_some, NULL);
    llama_backend_init();
    struct llama_model_params params = llama_model_default_params();
#ifdef PEER_IK
    params.repack_tensors = d->o.repack != 0;
    params.use_mmap = d->o.repack == 0;
#endif
    d->model = llama_model_load_from_file(path, params);
    if (!d->model)
        return fails("cannot load", path);
#ifdef PEER_IK
    d->n_vocab = llama_n_vocab(d->model);
#else
    d->n_vocab = llama_vocab_n_tokens(llama_model_get_vocab(d->model));
#endif
    return 0;
}

static int kv_type(const char *name, enum ggml_type *out)
{
    static const struct {
        const char *name;
        enum ggml_type type;
    } types[] = {{"f16", GGML_TYPE_F16}, {"bf16", GGML_TYPE_BF16}, {"q8_0", GGML_TYPE_Q8_0}};
    for (size_t i = 0; i < sizeof types / sizeof types[0]; i++)
        if (strcmp(types[i].name, name) == 0) {
            *out = types[i].type;
            return 0;
        }
    return fails("no KV type", name);
}

int open_context(struct driver *d, size_t cells, size_t sequences)
{
    struct llama_context_params params = llama_context_default_params();
    params.n_ctx = (uint32_t)((cells + CELLS - 1) / CELLS * CELLS);
    params.n_batch = BATCH_TOKENS;
    params.n_ubatch = (uint32_t)d->o.ubatch;
    params.n_seq_max = (uint32_t)sequences + 1;
    params.n_threads = d->o.threads;
    params.n_threads_batch = d->o.threads;
    if (kv_type(d->o.kv, &params.type_k) != 0)
        return -1;
    params.type_v = params.type_k;
#ifdef PEER_IK
    params.flash_attn = d->o.flash != 0;
#else
    params.flash_attn_type =
        d->o.flash ? LLAMA_FLASH_ATTN_TYPE_ENABLED : LLAMA_FLASH_ATTN_TYPE_DISABLED;
    params.kv_unified = true;
#endif
    d->ctx = llama_init_from_model(d->model, params);
    d->batch = llama_batch_init(BATCH_TOKENS, 0, 1);
    return d->ctx ? 0 : fails("no context", d->o.kv);
}

const char *peer_name(void)
{
    return peer;
}

/* ------------------------------------------------------------------ decoding */

void add(struct driver *d, llama_token id, size_t position, size_t seq, bool wants)
{
    struct llama_batch *b = &d->batch;
    const int i = b->n_tokens++;
    b->token[i] = id;
    b->pos[i] = (llama_pos)position;
    b->n_seq_id[i] = 1;
    b->seq_id[i][0] = (llama_seq_id)seq;
    b->logits[i] = wants;
}

int decode(struct driver *d)
{
    const int rc = llama_decode(d->ctx, d->batch);
    char text[32];
    snprintf(text, sizeof text, "code %d", rc);
    return rc == 0 ? 0 : fails("llama_decode", text);
}

/* The first of the greatest. Sixteen maxima side by side, so that compilers use vectors. */
static llama_token greatest(const float *x, int n)
{
    float best[16], top;
    int i = 0;
    for (int j = 0; j < 16; j++)
        best[j] = x[0];
    for (; i + 16 <= n; i += 16)
        for (int j = 0; j < 16; j++)
            best[j] = x[i + j] > best[j] ? x[i + j] : best[j];
    top = best[0];
    for (int j = 1; j < 16; j++)
        top = best[j] > top ? best[j] : top;
    for (; i < n; i++)
        top = x[i] > top ? x[i] : top;
    for (i = 0; i < n - 1 && x[i] != top; i++)
        ;
    return i;
}

llama_token next_token(struct driver *d, int row)
{
    return greatest(llama_get_logits_ith(d->ctx, row), d->n_vocab);
}

int prefill(struct driver *d, const llama_token *ids, size_t n)
{
    clear(d);
    for (size_t begin = 0; begin < n; begin += BATCH_TOKENS) {
        d->batch.n_tokens = 0;
        for (size_t i = begin; i < n && i < begin + BATCH_TOKENS; i++)
            add(d, ids[i], i, 0, i == n - 1);
        d->batch.logits[d->batch.n_tokens - 1] = true; /* ik wants a row of every batch */
        if (decode(d) != 0)
            return -1;
    }
    return 0;
}

int decode_step(struct driver *d, size_t n, size_t *positions, size_t step)
{
    d->batch.n_tokens = 0;
    for (size_t s = 0; s < n; s++)
        add(d, d->out[s][step - 1], positions[s]++, s + 1, true);
    if (decode(d) != 0)
        return -1;
    for (size_t s = 0; s < n; s++)
        d->out[s][step] = next_token(d, (int)s);
    return 0;
}

/* ------------------------------------------------------------------ speeds */

/* Any tokens do: what they are changes no time. */
static void make_tokens(const struct driver *d, llama_token *ids, size_t n, uint64_t seed)
{
    for (size_t i = 0; i < n; i++) {
        seed = seed * 6364136223846793005u + 1442695040888963407u;
        ids[i] = (llama_token)((seed >> 33) % (uint64_t)d->n_vocab);
    }
}

static int time_prefill(struct driver *d, bool is_memory_touched)
{
    llama_token ids[PROMPT_TOKENS];
    make_tokens(d, ids, PROMPT_TOKENS, 1);
    if (!is_memory_touched && prefill(d, ids, PROMPT_TOKENS) != 0)
        return -1;
    make_tokens(d, ids, PROMPT_TOKENS, 2);
    const double began_s = now_s();
    if (prefill(d, ids, PROMPT_TOKENS) != 0)
        return -1;
    next_token(d, d->batch.n_tokens - 1);
    printf("\"prefill\": %.2f, ", PROMPT_TOKENS / (now_s() - began_s));
    return 0;
}

/* The prefix is on sequence 0 already. */
static int time_decode(struct driver *d, size_t n)
{
    size_t positions[SEQUENCES_MAX];
    llama_token own[OWN_TOKENS];
    d->batch.n_tokens = 0;
    for (size_t s = 0; s < n; s++) {
        share(d, (int)s + 1);
        make_tokens(d, own, OWN_TOKENS, 100 + s);
        for (size_t i = 0; i < OWN_TOKENS; i++)
            add(d, own[i], PREFIX_TOKENS + i, s + 1, i + 1 == OWN_TOKENS);
        positions[s] = PREFIX_TOKENS + OWN_TOKENS;
    }
    if (decode(d) != 0)
        return -1;
    for (size_t s = 0; s < n; s++)
        d->out[s][0] = next_token(d, (int)(s + 1) * OWN_TOKENS - 1);
    const double began_s = now_s();
    for (int step = 1; step <= d->o.steps; step++)
        if (decode_step(d, n, positions, (size_t)step) != 0)
            return -1;
    printf("\"decode_%zu\": %.3f, ", n, (double)n * d->o.steps / (now_s() - began_s));
    for (size_t s = 0; s < n; s++)
        drop(d, (int)s + 1);
    return 0;
}

static int time_sizes(struct driver *d)
{
    static llama_token prefix[PREFIX_TOKENS];
    make_tokens(d, prefix, PREFIX_TOKENS, 3);
    if (prefill(d, prefix, PREFIX_TOKENS) != 0)
        return -1;
    for (const char *at = d->o.sizes; *at != '\0';) {
        char *end;
        const long n = strtol(at, &end, 10);
        if (end == at || (*end != ',' && *end != '\0') || n < 1 || n > SIZES_MAX)
            return fails("no such sizes", d->o.sizes);
        if (time_decode(d, (size_t)n) != 0)
            return -1;
        at = *end == ',' ? end + 1 : end;
    }
    return 0;
}

static int run_speed(struct driver *d)
{
    const size_t tail = OWN_TOKENS + (size_t)d->o.steps + 8;
    if (open_context(d, PREFIX_TOKENS + SIZES_MAX * tail, SIZES_MAX) != 0)
        return -1;
    const bool decodes = d->o.steps > 0 && *d->o.sizes != '\0';
    printf("{\"peer\": \"%s\", ", peer);
    if (decodes && time_sizes(d) != 0)
        return -1;
    if (d->o.prefill && time_prefill(d, decodes) != 0)
        return -1;
    printf("\"steps\": %d}\n", d->o.steps);
    return 0;
}

/* ------------------------------------------------------------------ the command line */

static int print_pieces(const struct driver *d)
{
    char bytes[1024];
    for (llama_token id = 0; id < d->n_vocab; id++) {
#ifdef PEER_IK
        const int n = llama_token_to_piece(d->model, id, bytes, sizeof bytes, 0, false);
#else
        const int n = llama_token_to_piece(llama_model_get_vocab(d->model), id, bytes,
                                           sizeof bytes, 0, false);
#endif
        for (int i = 0; i < n; i++)
            printf("%02x", (unsigned char)bytes[i]);
        putchar('\n');
    }
    return 0;
}

static int set_option(struct options *o, char *text)
{
    const struct {
        const char *name;
        int *value;
        int max;
    } numbers[] = {{"threads", &o->threads, 256},
                   {"ubatch", &o->ubatch, BATCH_TOKENS},
                   {"flash", &o->flash, 1},
                   {"repack", &o->repack, 1},
                   {"documents", &o->documents, DOCUMENTS_MAX},
                   {"width", &o->width, SEQUENCES_MAX},
                   {"answer", &o->answer, 1024},
                   {"steps", &o->steps, 1024},
                   {"prefill", &o->prefill, 1}};
    char *value = strchr(text, '=');
    if (!value)
        return fails("not name=value", text);
    *value++ = '\0';
    if (strcmp(text, "kv") == 0 || strcmp(text, "sizes") == 0) {
        *(*text == 'k' ? &o->kv : &o->sizes) = value;
        return 0;
    }
    for (size_t i = 0; i < sizeof numbers / sizeof numbers[0]; i++) {
        if (strcmp(numbers[i].name, text) != 0)
            continue;
        char *end;
        const long n = strtol(value, &end, 10);
        if (*value == '\0' || *end != '\0' || n < 0 || n > numbers[i].max)
            return fails("no such value", value);
        *numbers[i].value = (int)n;
        return 0;
    }
    return fails("no such option", text);
}

static int alloc_answers(struct driver *d)
{
    const int longest = d->o.answer > d->o.steps + 1 ? d->o.answer : d->o.steps + 1;
    for (size_t s = 0; s < SEQUENCES_MAX; s++) {
        d->out[s] = calloc((size_t)longest, sizeof d->out[s][0]);
        if (!d->out[s])
            return fails("no memory", "answers");
    }
    return 0;
}

int main(int argc, char **argv)
{
    static struct driver d = {.o = {.threads = 2,
                                    .ubatch = 512,
                                    .flash = 1,
                                    .documents = DOCUMENTS_MAX,
                                    .width = 32,
                                    .answer = 64,
                                    .steps = 64,
                                    .prefill = 1,
                                    .kv = "f16",
                                    .sizes = "1,8,32"}};
    const char *mode = argc > 2 ? argv[2] : "";
    const bool is_job = strcmp(mode, "job") == 0 && argc > 3;
    int rc = 0;
    for (int i = is_job ? 4 : 3; rc == 0 && i < argc; i++)
        rc = set_option(&d.o, argv[i]);
    if (rc == 0 && (d.o.width < 1 || d.o.answer < 1 || d.o.threads < 1))
        rc = fails("nothing to do", mode);
    if (rc == 0)
        rc = alloc_answers(&d);
    if (rc == 0)
        rc = load(&d, argc > 1 ? argv[1] : "");
    if (rc == 0 && is_job)
        rc = run_job(&d, argv[3]);
    else if (rc == 0 && strcmp(mode, "speed") == 0)
        rc = run_speed(&d);
    else if (rc == 0 && strcmp(mode, "pieces") == 0)
        rc = print_pieces(&d);
    else if (rc == 0)
        rc = fails("the mode is job FILE, speed or pieces, not", mode);
    return rc == 0 ? 0 : 1;
}
