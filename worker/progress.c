#include "progress.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/log.h"

enum { TERMINAL_US = 250000, LOG_US = 10000000 };

void progress_init(struct progress *p, bool shown)
{
    *p = (struct progress){.shown = shown,
                           .is_terminal =
                               isatty(STDERR_FILENO) &&
                               strcmp(getenv("TERM") ? getenv("TERM") : "dumb", "dumb") != 0,
                           .started_us = clock_mono_us()};
    p->last_us = p->started_us;
}

bool progress_is_due(const struct progress *p)
{
    return p->shown && clock_mono_us() - p->last_us >= (p->is_terminal ? TERMINAL_US : LOG_US);
}

/* "3m20s left" from the share of the input that is answered; "" while nothing is known. */
static void time_left(const struct progress *p, const struct progress_figures *f, char *out,
                      size_t capacity)
{
    out[0] = '\0';
    const double share =
        f->input.total > 0 ? (double)f->input.taken / (double)f->input.total : 0;
    /* What was taken but is still running is not done. */
    const double taken_jobs = (double)(f->done + f->running);
    if (share <= 0 || taken_jobs <= 0 || f->done == 0)
        return;
    const double done_share = share * (double)f->done / taken_jobs;
    const double spent_s = (double)(clock_mono_us() - p->started_us) / 1e6;
    const long left_s = (long)(spent_s * (1 - done_share) / done_share + 0.5);
    if (left_s >= 3600)
        snprintf(out, capacity, ", %ldh%02ldm left", left_s / 3600, left_s / 60 % 60);
    else
        snprintf(out, capacity, ", %ldm%02lds left", left_s / 60, left_s % 60);
}

void progress_show(struct progress *p, const struct progress_figures *f)
{
    p->last_us = clock_mono_us();
    const double spent_s = (double)(p->last_us - p->started_us) / 1e6;
    char left[64], line[256];
    time_left(p, f, left, sizeof left);
    snprintf(
        line, sizeof line,
        "%llu done, %llu of them failed, %llu running; %.2f jobs/s, prefill %.0f tok/s, decode "
        "%.0f tok/s%s",
        (unsigned long long)f->done, (unsigned long long)f->failed,
        (unsigned long long)f->running, (double)f->done / spent_s,
        (double)f->prompt_tokens_computed / spent_s, (double)f->completion_tokens / spent_s,
        left);
    if (p->is_terminal)
        fprintf(stderr, "\r\033[K%s", line);
    else
        log_info("%s", line);
}

void progress_end(struct progress *p)
{
    if (p->shown && p->is_terminal)
        fputs("\r\033[K", stderr);
}
