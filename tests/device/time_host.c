/*
 * time_host AHEAD BATCH PROMPT SHARED STEP_US STEPS
 *
 * How long a device waits for the host between two decode steps: a device that computes nothing
 * and takes STEP_US for it, whatever the step; BATCH sequences whose prompts have PROMPT
 * tokens, SHARED of them the same. AHEAD 1: with device.ahead. Prints one line of JSON, medians
 * of STEPS steps in microseconds: how long one took, how long of it the device had nothing to
 * do, and how long the host worked.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/rng.h"
#include "device.h"
#include "engine/kvpool.h"
#include "engine/seq.h"
#include "golden.h"
#include "model/random_model.h"

enum { N_VOCAB = 300, STEPS_KEPT = 2, SPIN_US = 200 };

/* ------------------------------------------------------------------ the device */

struct device {
    size_t n_pages;
};

static int64_t step_us;    /* that each takes */
static int64_t free_at_us; /* when the device has done what it was given */
static int64_t idle_us, waited_us;
static uint64_t n_steps;
static struct {
    int64_t done_us;
    size_t n_logits;
} steps[STEPS_KEPT];

static int open_device(const struct device_options *o, const struct device_model *m,
                       struct device **out, struct err *e)
{
    (void)m;
    struct device *d = calloc(1, sizeof *d);
    if (!d)
        return ERR_SET(e, ERR_NOMEM, "no memory");
    d->n_pages = o->n_pages;
    *out = d;
    return 0;
}

static void close_device(struct device *d)
{
    free(d);
}

static void info_of(const struct device *d, struct device_info *out)
{
    *out = (struct device_info){
        .name = "idle", .arithmetic = "none", .n_pages = d->n_pages, .block_rows = 16};
}

static int give_step(struct device *d, const struct device_step *s, struct err *e)
{
    (void)d;
    (void)e;
    const int64_t now_us = clock_mono_us();
    if (now_us > free_at_us) {
        idle_us += now_us - free_at_us;
        free_at_us = now_us;
    }
    free_at_us += step_us;
    n_steps++;
    steps[n_steps % STEPS_KEPT].done_us = free_at_us;
    steps[n_steps % STEPS_KEPT].n_logits = s->n_logits;
    return 0;
}

static void wait_until(int64_t us)
{
    const int64_t began_us = clock_mono_us();
    int64_t now_us = began_us;
    if (us - now_us > SPIN_US)
        usleep((useconds_t)(us - now_us - SPIN_US));
    while (now_us < us)
        now_us = clock_mono_us();
    waited_us += now_us - began_us;
}

static int read_best(struct device *d, size_t n_later, int32_t *out, struct err *e)
{
    (void)d;
    (void)e;
    const uint64_t step = n_steps - n_later;
    wait_until(steps[step % STEPS_KEPT].done_us);
    for (size_t i = 0; i < steps[step % STEPS_KEPT].n_logits; i++)
        out[i] = (int32_t)(rng_bits(1, i, step) % N_VOCAB);
    return 0;
}

static int wait_for_all(struct device *d, struct err *e)
{
    (void)d;
    (void)e;
    wait_until(free_at_us);
    return 0;
}

static int copy_page(struct device *d, int32_t to, int32_t from, struct err *e)
{
    (void)d;
    (void)to;
    (void)from;
    (void)e;
    return 0;
}

/* In place of the loader's: the program's own functions come first. */
int device_load(const char *name, const struct device_backend **out, struct err *e)
{
    static const struct device_backend table = {.abi = DEVICE_ABI,
                                                .open = open_device,
                                                .close = close_device,
                                                .info = info_of,
                                                .step = give_step,
                                                .read_best = read_best,
                                                .wait = wait_for_all,
                                                .copy_page = copy_page};
    (void)name;
    (void)e;
    *out = &table;
    return 0;
}

/* ------------------------------------------------------------------ the jobs */

static void must(int rc, const struct err *e)
{
    if (rc == 0)
        return;
    fprintf(stderr, "time_host: %s\n", e->text);
    exit(1);
}

static struct model *open_model(void)
{
    const struct random_shape shape = {"idle", 1,       128,     8,   2,   128,
                                       128,    N_VOCAB, 1 << 17, 1e4, true};
    char path[] = "/tmp/sheaf-idle-XXXXXX";
    struct model *model;
    struct err e = {0};
    const int fd = mkstemp(path);
    if (fd < 0 || close(fd) != 0)
        exit(1);
    must(random_model_write(path, &shape, QUANT_F32, RANDOM_SEED, &e), &e);
    must(model_open(path, &model, &e), &e);
    unlink(path);
    return model;
}

static void submit(struct engine *eng, size_t i, size_t n_prompt, size_t n_shared, size_t n_out)
{
    struct err e = {0};
    int32_t *prompt = malloc(n_prompt * sizeof prompt[0]);
    if (!prompt)
        exit(1);
    for (size_t k = 0; k < n_prompt; k++)
        prompt[k] = (int32_t)(rng_bits(3, k < n_shared ? 0 : i + 1, k) % N_VOCAB);
    const struct seq_request req = {.prompt = prompt,
                                    .n_prompt = n_prompt,
                                    .max_tokens = n_out,
                                    .ignore_eos = true,
                                    .sample = sample_params_greedy()};
    must(engine_submit(eng, &req, &e), &e);
    free(prompt);
}

/* Of some steps, each. */
struct times {
    int64_t *step_us, *idle_us, *host_us;
};

static void make_step(struct engine *eng)
{
    struct err e = {0};
    bool worked;
    must(engine_step(eng, &worked, &e), &e);
}

static int compare(const void *a, const void *b)
{
    const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double median(int64_t *us, size_t n)
{
    qsort(us, n, sizeof us[0], compare);
    return (double)us[n / 2];
}

static void time_steps(struct engine *eng, size_t n, struct times *t)
{
    for (size_t i = 0; i < n; i++) {
        idle_us = waited_us = 0;
        const int64_t began_us = clock_mono_us();
        make_step(eng);
        t->step_us[i] = clock_mono_us() - began_us;
        t->idle_us[i] = idle_us;
        t->host_us[i] = t->step_us[i] - waited_us;
    }
}

int main(int argc, char **argv)
{
    if (argc != 7) {
        fprintf(stderr, "use: time_host AHEAD BATCH PROMPT SHARED STEP_US STEPS\n");
        return 2;
    }
    const size_t batch = strtoul(argv[2], NULL, 10), n_prompt = strtoul(argv[3], NULL, 10);
    const size_t n_shared = strtoul(argv[4], NULL, 10), n = strtoul(argv[6], NULL, 10);
    const size_t n_out = n + n_prompt + 64;
    struct model *model = open_model();
    const struct engine_options o = {.n_threads = 2,
                                     .batch = batch,
                                     .step_tokens = 2048,
                                     .chunk_tokens = 2048,
                                     .context = n_prompt + n_out,
                                     .prefix_cache = true,
                                     .prefix_tokens_min = 1,
                                     .shared_attention = true,
                                     .device = "cuda",
                                     .device_ahead = atoi(argv[1]) != 0};
    struct engine *eng = golden_open_engine(model, "ref", ACT_INT8, KV_BF16, &o);
    for (size_t i = 0; i < batch; i++)
        submit(eng, i, n_prompt, n_shared, n_out);
    uint64_t rows; /* until all decode */
    do {
        rows = engine_counters(eng).rows;
        make_step(eng);
    } while (engine_counters(eng).rows - rows != batch);
    step_us = strtol(argv[5], NULL, 10);
    struct times t = {calloc(n, sizeof(int64_t)), calloc(n, sizeof(int64_t)),
                      calloc(n, sizeof(int64_t))};
    if (n == 0 || !t.step_us || !t.idle_us || !t.host_us)
        return 1;
    time_steps(eng, n, &t);
    printf(
        "{\"ahead\": %s, \"batch\": %zu, \"prompt\": %zu, \"shared\": %zu, \"step_us\": %.0f, "
        "\"idle_us\": %.0f, \"host_us\": %.0f}\n",
        o.device_ahead ? "true" : "false", batch, n_prompt, n_shared, median(t.step_us, n),
        median(t.idle_us, n), median(t.host_us, n));
    free(t.step_us);
    free(t.idle_us);
    free(t.host_us);
    engine_close(eng);
    model_close(model);
    return 0;
}
