#include "engine/calibrate.h"

#include <assert.h>
#include <stdlib.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/size.h"

enum {
    FIRST_ROWS = 16,
    WORTH_HAVING = 3, /* per cent more tokens a second */
    IDLE_SIZES = 2,   /* in a row that gain nothing: no larger one will */
    LAYERS = 6,       /* that stand for all of the model's */
    REPEATS = 3,
};

struct timer {
    struct forward *f;
    struct seq *seq;
    size_t n_layers, n_timed; /* of the model, of a run */
    size_t next_layer;
    size_t n_rows_max; /* that the sequence has room for */
    bool with_head;
};

/* A run takes other layers than the one before, so that their weights come from where those of
 * a whole step come from, and not from the cache. */
static int64_t time_step(struct timer *t, size_t n_rows)
{
    const size_t n_logits = t->with_head ? n_rows : 0;
    struct step_segment segment = {
        .seq = t->seq, .n_rows = n_rows, .n_logits = n_logits, .is_greedy = true};
    const struct step_plan plan = {
        .segments = &segment, .n_segments = 1, .n_rows = n_rows, .n_logits = n_logits};
    const int64_t began_us = clock_mono_us();
    forward_run_layers(t->f, &plan, t->next_layer, t->n_timed);
    const int64_t layers_us = clock_mono_us() - began_us;
    t->next_layer = (t->next_layer + t->n_timed) % t->n_layers;
    int64_t us = layers_us * (int64_t)t->n_layers / (int64_t)t->n_timed;
    if (t->with_head) {
        forward_run_head(t->f);
        us += clock_mono_us() - began_us - layers_us;
    }
    return us > 0 ? us : 1;
}

/* Memory that nobody has touched yet would cost the first size most. */
static void touch(struct timer *t)
{
    const size_t n_timed = t->n_timed;
    t->n_timed = t->n_layers;
    time_step(t, size_min(t->n_rows_max, FIRST_ROWS));
    t->n_timed = n_timed;
}

/* Every size is timed on the same layers: those of a model need not cost the same. */
static int64_t time_best(struct timer *t, size_t n_rows)
{
    t->next_layer = 0;
    int64_t best_us = time_step(t, n_rows);
    for (int i = 1; i < REPEATS; i++) {
        const int64_t us = time_step(t, n_rows);
        best_us = us < best_us ? us : best_us;
    }
    return best_us;
}

/* Is b, in tokens a second, more than a by what is worth having? */
static bool gains(size_t rows_a, int64_t us_a, size_t rows_b, int64_t us_b)
{
    return (int64_t)rows_b * us_a * 100 > (int64_t)rows_a * us_b * (100 + WORTH_HAVING);
}

static void measure(struct timer *t, struct calibration *out)
{
    size_t best = 0;
    for (size_t n = FIRST_ROWS; n <= t->n_rows_max && out->n_points < CALIBRATION_POINTS_MAX;
         n *= 2) {
        const int64_t us = time_best(t, n);
        const size_t i = out->n_points++;
        out->points[i].n_rows = n;
        out->points[i].us = us;
        if (gains(out->points[best].n_rows, out->points[best].us, n, us))
            best = i;
        else if (i >= best + IDLE_SIZES)
            return;
    }
}

/* Close enough that a jump at a tile's border lies between two of them. */
static void measure_decoding(struct timer *t, struct spec_time *out)
{
    static const size_t sizes[] = {1,  2,  3,  4,  5,  6,  7,  8,   9,   10,  12,
                                   16, 20, 24, 32, 48, 64, 96, 128, 192, 256, 384};
    const size_t n_sizes = sizeof sizes / sizeof sizes[0];
    static_assert(sizeof sizes <= SPEC_TIME_POINTS_MAX * sizeof sizes[0], "all fit the table");
    struct spec_time_point points[SPEC_TIME_POINTS_MAX];
    size_t n = 0;
    for (size_t i = 0; i < n_sizes && sizes[i] <= t->n_rows_max; i++)
        points[n++] = (struct spec_time_point){sizes[i], (double)time_best(t, sizes[i])};
    spec_time_init(out, points, n);
}

/* A sequence whose pages have room for the rows. */
static int open_timer(struct timer *t, struct kvpool *pool, size_t n_rows_max, struct err *e)
{
    t->n_rows_max = size_min(n_rows_max, kvpool_free_pages(pool) * KV_PAGE_TOKENS);
    t->n_timed = size_min(LAYERS, t->n_layers);
    int32_t *tokens = calloc(t->n_rows_max + 1, sizeof tokens[0]);
    if (!tokens)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", t->n_rows_max);
    const struct seq_request req = {
        .prompt = tokens, .n_prompt = t->n_rows_max, .max_tokens = 1};
    const int rc = seq_open(&req, t->n_rows_max + 1, &t->seq, e);
    free(tokens);
    if (rc != 0)
        return rc;
    while (t->seq->n_pages < seq_pages_for(t->n_rows_max))
        t->seq->pages[t->seq->n_pages++] = kvpool_acquire_page(pool);
    touch(t);
    return 0;
}

static void close_timer(struct timer *t, struct kvpool *pool)
{
    while (t->seq->n_pages > 0)
        kvpool_release_page(pool, t->seq->pages[--t->seq->n_pages]);
    seq_close(t->seq);
}

int calibrate_steps(struct forward *f, size_t n_layers, struct kvpool *pool, size_t n_rows_max,
                    struct calibration *out, struct err *e)
{
    struct timer t = {.f = f, .n_layers = n_layers};
    *out = (struct calibration){0};
    TRY(open_timer(&t, pool, n_rows_max, e));
    measure(&t, out);
    close_timer(&t, pool);
    return 0;
}

int calibrate_decoding(struct forward *f, size_t n_layers, struct kvpool *pool,
                       size_t n_rows_max, struct spec_time *out, struct err *e)
{
    struct timer t = {.f = f, .n_layers = n_layers, .with_head = true};
    TRY(open_timer(&t, pool, n_rows_max, e));
    measure_decoding(&t, out);
    close_timer(&t, pool);
    return 0;
}

size_t calibration_chunk(const struct calibration *c)
{
    size_t best = 0;
    for (size_t i = 1; i < c->n_points; i++)
        if (gains(c->points[best].n_rows, c->points[best].us, c->points[i].n_rows,
                  c->points[i].us))
            best = i;
    return c->n_points > 0 ? c->points[best].n_rows : FIRST_ROWS;
}
