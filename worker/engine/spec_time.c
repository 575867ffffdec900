#include "engine/spec_time.h"

#include <stdbool.h>

#include "base/check.h"

/* Of one timed step: in the pace, and in the point beside it for each step that it has not been
 * seen in, up to a limit. */
static const double PACE_WEIGHT = 0.03;
static const double RATIO_WEIGHT = 0.02;
static const double RATIO_WEIGHT_MAX = 0.3;
/* What steps at a point that is seen all the time say is the pace's in the end, so that the
 * points no step speaks for keep up. A point not seen for longer has no say in it. */
static const double RATIO_TO_PACE = 0.001;
enum { FRESH_STEPS = 4 };
/* A step that took longer or shorter by more says that something else happened. */
static const double OUTLIER = 2;
static const double RATIO_MAX = 8;

static double clip(double x, double low, double high)
{
    if (x < low)
        return low;
    return x > high ? high : x;
}

static void set_points(struct spec_time *t)
{
    double us = 0;
    for (size_t i = 0; i < t->n_points; i++) {
        const double own = t->measured_us[i] * t->ratios[i] * t->pace;
        us = own > us ? own : us;
        t->points[i].us = us;
    }
}

void spec_time_init(struct spec_time *t, const struct spec_time_point *points, size_t n)
{
    ASSERT(n > 0 && n <= SPEC_TIME_POINTS_MAX);
    *t = (struct spec_time){.n_points = n, .pace = 1};
    for (size_t i = 0; i < n; i++) {
        ASSERT(points[i].us > 0 && (i == 0 || points[i].n_rows > points[i - 1].n_rows));
        t->points[i].n_rows = points[i].n_rows;
        t->measured_us[i] = points[i].us;
        t->ratios[i] = 1;
    }
    set_points(t);
}

/* The point that the piece with n_rows begins at. */
static size_t piece_of(const struct spec_time *t, size_t n_rows)
{
    size_t i = 0;
    while (i + 2 < t->n_points && t->points[i + 1].n_rows <= n_rows)
        i++;
    return i;
}

double spec_time_us(const struct spec_time *t, size_t n_rows)
{
    if (t->n_points == 1 || n_rows <= t->points[0].n_rows)
        return t->points[0].us;
    const struct spec_time_point *a = &t->points[piece_of(t, n_rows)], *b = a + 1;
    const double slope = (b->us - a->us) / (double)(b->n_rows - a->n_rows);
    return a->us + slope * (double)(n_rows - a->n_rows);
}

/* The end of its piece that n_rows has reached. */
static size_t point_of(const struct spec_time *t, size_t n_rows)
{
    const size_t piece = piece_of(t, n_rows);
    return t->n_points > 1 && n_rows >= t->points[piece + 1].n_rows ? piece + 1 : piece;
}

void spec_time_observe(struct spec_time *t, size_t n_rows, double us)
{
    if (!(us > 0))
        return;
    const double said = clip(us / spec_time_us(t, n_rows), 1 / OUTLIER, OUTLIER);
    const size_t i = point_of(t, n_rows);
    const double age = (double)(++t->n_steps - t->seen_at[i]);
    t->seen_at[i] = t->n_steps;
    if (age <= FRESH_STEPS) {
        t->pace *= 1 + PACE_WEIGHT * (said - 1);
        t->ratios[i] += RATIO_TO_PACE * (1 - t->ratios[i]);
    }
    const double weight = clip(RATIO_WEIGHT * age, 0, RATIO_WEIGHT_MAX);
    t->ratios[i] = clip(t->ratios[i] * (1 + weight * (said - 1)), 1 / RATIO_MAX, RATIO_MAX);
    set_points(t);
}

double spec_time_best_rate(const struct spec_time *t, double us_more, double tokens,
                           size_t n_rows, double p, size_t k_max)
{
    /* Between two points the rate rises all the way or falls all the way. */
    double best = tokens / (us_more + spec_time_us(t, n_rows));
    const size_t n_end = n_rows + k_max;
    const double at_end = (tokens + p * (double)k_max) / (us_more + spec_time_us(t, n_end));
    best = at_end > best ? at_end : best;
    for (size_t i = t->n_points; i-- > 0 && t->points[i].n_rows > n_rows;) {
        if (t->points[i].n_rows >= n_end)
            continue;
        const double more = p * (double)(t->points[i].n_rows - n_rows);
        const double rate = (tokens + more) / (us_more + t->points[i].us);
        best = rate > best ? rate : best;
    }
    return best;
}
