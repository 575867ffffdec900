#include "engine/calibrate.h"

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
};

static int64_t run_layers(const struct timer *t, size_t n_rows, size_t begin, size_t n)
{
    struct step_segment segment = {.seq = t->seq, .n_rows = n_rows};
    const struct step_plan plan = {.segments = &segment, .n_segments = 1, .n_rows = n_rows};
    const int64_t began_us = clock_mono_us();
    forward_run_layers(t->f, &plan, begin, n);
    return clock_mono_us() - began_us;
}

/* A run takes other layers than the one before, so that their weights come from where those of
 * a whole step come from, and not from the cache. */
static int64_t time_step(struct timer *t, size_t n_rows)
{
    const int64_t spent_us = run_layers(t, n_rows, t->next_layer, t->n_timed);
    t->next_layer = (t->next_layer + t->n_timed) % t->n_layers;
    const int64_t us = spent_us * (int64_t)t->n_layers / (int64_t)t->n_timed;
    return us > 0 ? us : 1;
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

static void measure(struct timer *t, size_t n_rows_max, struct calibration *out)
{
    /* Memory that nobody has touched yet would cost the first size most. */
    run_layers(t, size_min(n_rows_max, FIRST_ROWS), 0, t->n_layers);
    size_t best = 0;
    for (size_t n = FIRST_ROWS; n <= n_rows_max && out->n_points < CALIBRATION_POINTS_MAX;
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

int calibrate_steps(struct forward *f, size_t n_layers, struct kvpool *pool, size_t n_rows_max,
                    struct calibration *out, struct err *e)
{
    *out = (struct calibration){0};
    const size_t room = kvpool_free_pages(pool) * KV_PAGE_TOKENS;
    const size_t rows_max = n_rows_max < room ? n_rows_max : room;
    int32_t *tokens = calloc(rows_max + 1, sizeof tokens[0]);
    if (!tokens)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu tokens", rows_max);
    const struct seq_request req = {.prompt = tokens, .n_prompt = rows_max, .max_tokens = 1};
    struct seq *seq = NULL;
    const int rc = seq_open(&req, rows_max + 1, &seq, e);
    free(tokens);
    if (rc != 0)
        return rc;
    while (seq->n_pages < seq_pages_for(rows_max))
        seq->pages[seq->n_pages++] = kvpool_acquire_page(pool);
    struct timer t = {.f = f, .seq = seq, .n_layers = n_layers};
    t.n_timed = size_min(LAYERS, n_layers);
    measure(&t, rows_max, out);
    while (seq->n_pages > 0)
        kvpool_release_page(pool, seq->pages[--seq->n_pages]);
    seq_close(seq);
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
