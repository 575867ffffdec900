/*
 * The state file beside the output, OUTPUT.state, is written at every line of progress and when
 * a signal ends the command; the same command finds it and goes on. What the training hangs on
 * is hashed into it, so that a state is never taken up by a training that would come to other
 * heads.
 */
#include "heads_train.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/file.h"
#include "base/log.h"
#include "heads_examples.h"
#include "heads_table.h"
#include "model/heads.h"
#include "setup.h"
#include "signals.h"
#include "train/trainer.h"

enum { REPORTS = 20 };

#define FORMAT "1" /* another one where the same options come to other heads */

struct training {
    const struct cli *cli;
    const struct model *model;
    struct trainer_options options;
    struct heads_examples examples;
    struct draft_vocab vocab;
    float *output;
    struct kernels kernels;
    struct pool *threads;
    struct trainer *trainer;
    char *state_path;
    char identity[SHA256_HEX_BYTES];
    int64_t began_us;
    uint64_t began_at; /* steps done by earlier starts */
};

static int check_options(const struct cli *cli, struct err *e)
{
    if (cli->head_count < 1 || cli->head_count > HEADS_MAX)
        return ERR_SET(e, ERR_CONFIG, "--head-count %lld is outside 1..%d",
                       (long long)cli->head_count, HEADS_MAX);
    if (cli->draft_vocab < 1 || cli->epochs < 1 || cli->positions < 1)
        return ERR_SET(e, ERR_CONFIG,
                       "--draft-vocab, --epochs and --positions are numbers from 1");
    return 0;
}

/* Found out now, not after minutes of work. */
static int check_output(const char *path, struct err *e)
{
    struct file_replacement probe;
    TRY(file_replace_begin(path, &probe, e));
    file_replace_abandon(&probe);
    return 0;
}

/* Of all that another training could differ in. Threads and kernels change nothing. */
static int identify(struct training *t, struct err *e)
{
    const struct settings *s = &t->cli->settings;
    const struct trainer_options *o = &t->options;
    char text[1024];
    const int n =
        snprintf(text, sizeof text, FORMAT " %s %s %s %s %zu %zu %zu %llu %a %a %a %lld",
                 t->model->sha256, t->examples.corpus_sha256, s->kv_type, s->activations,
                 o->n_heads, o->n_epochs, o->n_rows, (unsigned long long)o->seed, o->rate,
                 o->decay, o->share_falloff, (long long)t->cli->draft_vocab);
    if (n < 0 || (size_t)n >= sizeof text)
        return ERR_SET(e, ERR_CONFIG, "kv.type or activations is too long");
    return sha256_hex(text, (size_t)n, t->identity, e);
}

static int open_trainer(struct training *t, struct err *e)
{
    const struct cli *cli = t->cli;
    TRY(draft_vocab_choose(&t->examples.set, t->model->config.n_vocab, (size_t)cli->draft_vocab,
                           &t->vocab, e));
    TRY(draft_vocab_output(&t->vocab, t->model, &t->output, e));
    TRY(kernels_open(&t->kernels, e));
    TRY(pool_open(setup_threads(&cli->settings), &t->threads, e));
    TRY(trainer_open(&t->options, &t->examples.set, &t->vocab, t->output, &t->kernels,
                     t->threads, &t->trainer, e));
    bool found;
    TRY(trainer_load(t->trainer, t->state_path, t->identity, &found, e));
    t->began_at = trainer_steps_done(t->trainer);
    if (found)
        log_info("%s: going on after step %llu of %llu", t->state_path,
                 (unsigned long long)t->began_at,
                 (unsigned long long)trainer_steps(t->trainer));
    return 0;
}

/* ------------------------------------------------------------------ the run */

static void say_progress(const struct training *t, const double *losses,
                         const struct heads_score *score)
{
    const uint64_t done = trainer_steps_done(t->trainer), all = trainer_steps(t->trainer);
    const double spent_s = (double)(clock_mono_us() - t->began_us) / 1e6;
    const double left_s = spent_s * (double)(all - done) / (double)(done - t->began_at);
    char heads[HEADS_MAX * 40] = "";
    size_t n = 0;
    for (size_t i = 0; i < t->options.n_heads && n < sizeof heads; i++)
        n += (size_t)snprintf(heads + n, sizeof heads - n, "%s %.3f/%.3f", i ? "," : "",
                              heads_score_top(score, i, 1),
                              heads_score_top(score, i, SCORE_TOP));
    log_info("step %llu of %llu, loss %.3f; held out, top-1/top-5 by head:%s; %.0f s left",
             (unsigned long long)done, (unsigned long long)all, losses[0], heads, left_s);
}

static int keep_state(const struct training *t, struct err *e)
{
    return trainer_save(t->trainer, t->state_path, t->identity, e);
}

static int run_steps(struct training *t, struct err *e)
{
    const uint64_t all = trainer_steps(t->trainer);
    const uint64_t each = all > REPORTS ? all / REPORTS : 1;
    double losses[HEADS_MAX];
    t->began_us = clock_mono_us();
    while (trainer_steps_done(t->trainer) < all) {
        trainer_step(t->trainer, losses);
        if (signals_received() > 0) {
            TRY(keep_state(t, e));
            return ERR_SET(e, ERR_CANCELLED,
                           "stopped at step %llu of %llu; the same command goes on from there",
                           (unsigned long long)trainer_steps_done(t->trainer),
                           (unsigned long long)all);
        }
        if (trainer_steps_done(t->trainer) % each != 0)
            continue;
        struct heads_score score;
        trainer_measure(t->trainer, true, &score);
        say_progress(t, losses, &score);
        TRY(keep_state(t, e));
    }
    return 0;
}

static int write_heads(struct training *t, struct err *e)
{
    struct heads_score score;
    struct heads heads;
    struct heads_table_part part;
    trainer_measure(t->trainer, true, &score);
    trainer_heads(t->trainer, &score, &heads);
    heads_table_fill(&part, "held out", &score);
    TRY(heads_write(t->cli->output, &heads, t->model, e));
    if (unlink(t->state_path) != 0 && errno != ENOENT)
        log_warn("cannot delete %s: %s", t->state_path, strerror(errno));
    return heads_table_print(&heads, &part, 1, t->cli->json, e);
}

static int run(struct training *t, struct err *e)
{
    if (asprintf(&t->state_path, "%s.state", t->cli->output) < 0) {
        t->state_path = NULL;
        return ERR_SET(e, ERR_NOMEM, "no memory for a file name");
    }
    TRY(check_output(t->cli->output, e));
    TRY(heads_examples_read(t->cli, t->model, &t->examples, e));
    TRY(identify(t, e));
    TRY(trainer_check_state(t->state_path, t->identity, e));
    TRY(heads_examples_run(t->cli, t->model, &t->examples, e));
    TRY(open_trainer(t, e));
    TRY(run_steps(t, e));
    return write_heads(t, e);
}

int heads_train(const struct cli *cli, const struct model *m, struct err *e)
{
    TRY(check_options(cli, e));
    struct training t = {.cli = cli, .model = m, .options = trainer_defaults()};
    t.options.n_heads = (size_t)cli->head_count;
    t.options.n_epochs = (size_t)cli->epochs;
    t.options.seed = (uint64_t)cli->settings.seed;
    signals_install();
    const int rc = run(&t, e);
    trainer_close(t.trainer);
    pool_close(t.threads);
    free(t.output);
    draft_vocab_fini(&t.vocab);
    heads_examples_fini(&t.examples);
    free(t.state_path);
    return rc;
}
