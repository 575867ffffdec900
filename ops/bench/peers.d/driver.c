/*
 * driver: one model in libllama's hands, timed. Built twice by ops/bench/peers: against
 * llama.cpp, and with -DPEER_IK against ik_llama.cpp.
 *
 *   driver MODEL job FILE [name=value]...    a batch job: a document once, its cells shared
 *                                            by all its questions, which decode together
 *   driver MODEL speed [name=value]...       prefill, and 1, 8 and 32 sequences on a prefix
 *   driver MODEL pieces                      the bytes of each token in hex, a line each
 *
 * FILE has lines "DOC id id ..." and behind each its "ASK id id ...". Greedy, and the end token
 * is a token like any other. Standard output is one JSON object; times leave out loading.
 * A value out of place ends the program with a message and exit code 1: only a bench calls it.
 */
#include <errno.h>
#include <llama.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum {
    BATCH_TOKENS = 2048,
    SEQUENCES_MAX = 64,
    DOCUMENTS_MAX = 64,
    ASKS_MAX = 256,
    PROMPT_TOKENS = 2000,
    PREFIX_TOKENS = 2048,
    OWN_TOKENS = 8, /* of a sequence, behind the prefix */
    CELLS = 256,    /* contexts are multiples of it */
};

struct ids {
    llama_token *ids;
    size_t n;
};

struct document {
    struct ids text, asks[ASKS_MAX];
    size_t n_asks;
};

struct options {
    int threads, ubatch, flash, repack, documents, width, answer, steps, prefill;
    const char *kv;
};

struct driver {
    struct options o;
    struct llama_model *model;
    struct llama_context *ctx;
    struct llama_batch batch;
    int n_vocab;
    struct document docs[DOCUMENTS_MAX];
    size_t n_docs, n_answers;
    llama_token *out[SEQUENCES_MAX]; /* the answers of one group */
    double prefill_s, asks_s, decode_s;
    size_t prefill_tokens, ask_tokens, decode_tokens;
};

static int fails(const char *what, const char *which)
{
    fprintf(stderr, "driver: %s: %s\n", what, which);
    return -1;
}

static double now_s(void)
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
static void share(struct driver *d, int seq)
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
static void share(struct driver *d, int seq)
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
    if (level == GGML_LOG_LEVEL_ERROR || strstr(text, "FANCY_SIMD") || strstr(text, "epack"))
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

/* A context of so many cells for that many sequences beside the shared one. */
static int open_context(struct driver *d, size_t cells, size_t sequences)
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

/* ------------------------------------------------------------------ decoding */

static void add(struct driver *d, llama_token id, size_t position, size_t seq, bool wants)
{
    struct llama_batch *b = &d->batch;
    const int i = b->n_tokens++;
    b->token[i] = id;
    b->pos[i] = (llama_pos)position;
    b->n_seq_id[i] = 1;
    b->seq_id[i][0] = (llama_seq_id)seq;
    b->logits[i] = wants;
}

static int decode(struct driver *d)
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

static llama_token next_token(struct driver *d, int row)
{
    return greatest(llama_get_logits_ith(d->ctx, row), d->n_vocab);
}

/* n tokens on sequence 0, from an empty cache. */
static int prefill(struct driver *d, const llama_token *ids, size_t n)
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

/* One token more of each of n sequences at out[s][step - 1]; positions[s] is where it goes. */
static int decode_step(struct driver *d, size_t n, size_t *positions, size_t step)
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

/* ------------------------------------------------------------------ the job */

/* Tails of all n questions in as few batches as can be; leaves the first answer tokens. */
static int decode_asks(struct driver *d, const struct document *doc, size_t first, size_t n,
                       size_t *positions)
{
    for (size_t s = 0; s < n;) {
        int rows[SEQUENCES_MAX];
        const size_t begin = s;
        d->batch.n_tokens = 0;
        for (; s < n; s++) {
            const struct ids *ask = &doc->asks[first + s];
            if ((size_t)d->batch.n_tokens + ask->n > BATCH_TOKENS)
                break;
            for (size_t i = 0; i < ask->n; i++)
                add(d, ask->ids[i], doc->text.n + i, s + 1, i + 1 == ask->n);
            rows[s] = d->batch.n_tokens - 1;
            positions[s] = doc->text.n + ask->n;
            d->ask_tokens += ask->n;
        }
        if (s == begin || decode(d) != 0)
            return -1;
        for (size_t k = begin; k < s; k++)
            d->out[k][0] = next_token(d, rows[k]);
    }
    return 0;
}

static void print_answers(struct driver *d, size_t n)
{
    for (size_t s = 0; s < n; s++, d->n_answers++) {
        printf("%s[", d->n_answers ? ",\n" : "");
        for (int i = 0; i < d->o.answer; i++)
            printf("%s%d", i ? "," : "", d->out[s][i]);
        printf("]");
    }
}

static int answer_group(struct driver *d, const struct document *doc, size_t first, size_t n)
{
    size_t positions[SEQUENCES_MAX];
    const double began_s = now_s();
    for (size_t s = 0; s < n; s++)
        share(d, (int)s + 1);
    if (decode_asks(d, doc, first, n, positions) != 0)
        return -1;
    const double asked_s = now_s();
    for (int step = 1; step < d->o.answer; step++)
        if (decode_step(d, n, positions, (size_t)step) != 0)
            return -1;
    d->asks_s += asked_s - began_s;
    d->decode_s += now_s() - asked_s;
    d->decode_tokens += n * (size_t)(d->o.answer - 1);
    print_answers(d, n);
    return 0;
}

static int answer_document(struct driver *d, const struct document *doc)
{
    const double began_s = now_s();
    if (prefill(d, doc->text.ids, doc->text.n) != 0)
        return -1;
    d->prefill_s += now_s() - began_s;
    d->prefill_tokens += doc->text.n;
    const size_t width = (size_t)d->o.width;
    for (size_t first = 0; first < doc->n_asks; first += width) {
        const size_t left = doc->n_asks - first;
        if (answer_group(d, doc, first, left < width ? left : width) != 0)
            return -1;
    }
    return 0;
}

static int parse_line(struct ids *out, const char *text)
{
    size_t room = 0;
    for (char *end;; text = end) {
        errno = 0;
        const long id = strtol(text, &end, 10);
        if (end == text)
            return out->n > 0 ? 0 : fails("a line without tokens", text);
        if (errno != 0 || id < 0 || id > INT32_MAX)
            return fails("not a token", text);
        if (out->n == room) {
            room = room ? 2 * room : 64;
            out->ids = realloc(out->ids, room * sizeof out->ids[0]);
            if (!out->ids)
                return fails("no memory", "tokens");
        }
        out->ids[out->n++] = (llama_token)id;
    }
}

static int read_job(struct driver *d, const char *path)
{
    char *line = NULL;
    size_t room = 0;
    int rc = 0;
    FILE *in = fopen(path, "r");
    if (!in)
        return fails("cannot read", path);
    while (rc == 0 && getline(&line, &room, in) > 0) {
        struct document *doc = d->n_docs ? &d->docs[d->n_docs - 1] : NULL;
        if (strncmp(line, "DOC ", 4) == 0) {
            if (d->n_docs == DOCUMENTS_MAX || (int)d->n_docs == d->o.documents)
                break;
            rc = parse_line(&d->docs[d->n_docs++].text, line + 4);
        } else if (strncmp(line, "ASK ", 4) == 0 && doc && doc->n_asks < ASKS_MAX) {
            rc = parse_line(&doc->asks[doc->n_asks++], line + 4);
        } else {
            rc = fails("neither DOC nor ASK, or too many", path);
        }
    }
    free(line);
    fclose(in);
    return rc == 0 && d->n_docs == 0 ? fails("no documents", path) : rc;
}

static size_t cells_of_job(const struct driver *d)
{
    size_t text = 0, ask = 0;
    for (size_t i = 0; i < d->n_docs; i++) {
        text = d->docs[i].text.n > text ? d->docs[i].text.n : text;
        for (size_t k = 0; k < d->docs[i].n_asks; k++)
            ask = d->docs[i].asks[k].n > ask ? d->docs[i].asks[k].n : ask;
    }
    return text + (size_t)d->o.width * (ask + (size_t)d->o.answer + 8);
}

static int run_job(struct driver *d, const char *path)
{
    if (read_job(d, path) != 0 || open_context(d, cells_of_job(d), (size_t)d->o.width) != 0)
        return -1;
    if (prefill(d, d->docs[0].text.ids, 64 < d->docs[0].text.n ? 64 : d->docs[0].text.n) != 0)
        return -1; /* the first touch of the memory */
    printf("{\"peer\": \"%s\", \"answers\": [", peer);
    const double began_s = now_s();
    for (size_t i = 0; i < d->n_docs; i++)
        if (answer_document(d, &d->docs[i]) != 0)
            return -1;
    const double seconds = now_s() - began_s;
    printf("],\n\"seconds\": %.4f, \"prefill_s\": %.4f, \"asks_s\": %.4f, \"decode_s\": %.4f, "
           "\"prefill_tokens\": %zu, \"ask_tokens\": %zu, \"decode_tokens\": %zu}\n",
           seconds, d->prefill_s, d->asks_s, d->decode_s, d->prefill_tokens, d->ask_tokens,
           d->decode_tokens);
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

static int time_prefill(struct driver *d)
{
    llama_token ids[PROMPT_TOKENS];
    make_tokens(d, ids, PROMPT_TOKENS, 1);
    if (prefill(d, ids, PROMPT_TOKENS) != 0)
        return -1; /* the first touch of the memory */
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

static int run_speed(struct driver *d)
{
    static const size_t sizes[] = {1, 8, 32};
    static llama_token prefix[PREFIX_TOKENS];
    const size_t tail = OWN_TOKENS + (size_t)d->o.steps + 8;
    if (open_context(d, PREFIX_TOKENS + 32 * tail, 32) != 0)
        return -1;
    printf("{\"peer\": \"%s\", ", peer);
    if (d->o.prefill && time_prefill(d) != 0)
        return -1;
    make_tokens(d, prefix, PREFIX_TOKENS, 3);
    if (d->o.steps > 0 && prefill(d, prefix, PREFIX_TOKENS) != 0)
        return -1;
    for (size_t i = 0; d->o.steps > 0 && i < sizeof sizes / sizeof sizes[0]; i++)
        if (time_decode(d, sizes[i]) != 0)
            return -1;
    printf("\"steps\": %d}\n", d->o.steps);
    return 0;
}

/* ------------------------------------------------------------------ pieces, the command line
 */

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
    if (strcmp(text, "kv") == 0) {
        o->kv = value;
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
                                    .kv = "f16"}};
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
