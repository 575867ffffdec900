/*
 * How long a step of so many rows takes: a table measured at start, straight lines between its
 * points, the last line on behind them. Two neighbouring points may stand for a jump: rows are
 * computed in tiles, and within a tile one row more costs next to nothing.
 *
 * Steps that are timed correct it slowly: the machine's pace as a whole, and each point.
 * Thread: the engine's; no clock of its own.
 */
#ifndef SHEAF_SPEC_TIME_H
#define SHEAF_SPEC_TIME_H

#include <stddef.h>
#include <stdint.h>

enum { SPEC_TIME_POINTS_MAX = 32 };

struct spec_time_point {
    size_t n_rows;
    double us;
};

struct spec_time {
    size_t n_points;
    struct spec_time_point points[SPEC_TIME_POINTS_MAX]; /* rows rise, us never falls */
    double measured_us[SPEC_TIME_POINTS_MAX];
    double ratios[SPEC_TIME_POINTS_MAX]; /* what timed steps say of each point, 1 at start */
    double pace;                         /* what they say of all; 1 at start */
    uint64_t n_steps;                    /* timed */
    uint64_t seen_at[SPEC_TIME_POINTS_MAX];
};

/* 1 to SPEC_TIME_POINTS_MAX points; rows rise, us are above 0. More rows that were measured
 * faster than fewer count as equally fast. */
void spec_time_init(struct spec_time *t, const struct spec_time_point *points, size_t n);
double spec_time_us(const struct spec_time *t, size_t n_rows);
/* A step of n_rows took us. */
void spec_time_observe(struct spec_time *t, size_t n_rows, double us);

/* The highest (tokens + k * p) / T(n_rows + k) that any k >= 0 can give, k up to k_max. */
double spec_time_best_rate(const struct spec_time *t, double us_more, double tokens,
                           size_t n_rows, double p, size_t k_max);

#endif
