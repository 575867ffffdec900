#include "heads_examples.h"

#include <stdlib.h>

#include "base/clock.h"
#include "base/limits.h"
#include "base/log.h"
#include "base/size.h"
#include "engine/kvpool.h"
#include "heads_corpus.h"
#include "setup.h"
#include "signals.h"

enum {
    STEP_ROWS = 256, /* of a step, all of which want their greatest logit */
    TELL_US = 10000000,
};

static int read_corpus(const struct cli *cli, const struct model *m, struct corpus *c,
                       struct err *e)
{
    const struct heads_corpus_options o = {
        .settings = &cli->settings, .model = m, .path = cli->jobs, .input = cli->input};
    struct heads_corpus_counts counts;
    TRY(heads_corpus_read(&o, c, &counts, e));
    TRY(corpus_prepare(c, (size_t)cli->positions, e));
    size_t n_held_out = 0;
    for (size_t i = 0; i < c->n_texts; i++)
        n_held_out += c->texts[i].is_held_out;
    log_info(
        "%s: %llu texts, %llu of them with answers; %zu positions of %zu texts are used, %zu "
        "texts are held out",
        cli->jobs, (unsigned long long)counts.texts, (unsigned long long)counts.answers,
        c->n_positions, c->n_texts, n_held_out);
    if (counts.unmatched + counts.bad > 0)
        log_warn("%s: %llu job lines have no answer there, %llu cannot be used", cli->jobs,
                 (unsigned long long)counts.unmatched, (unsigned long long)counts.bad);
    return 0;
}

/* Room for one text, and for a logit row of each of a step's rows. */
static int open_engine(const struct cli *cli, const struct model *m, const struct corpus *c,
                       struct engine **out, struct err *e)
{
    struct engine_options o;
    TRY(setup_engine_options(&cli->settings, &o, e));
    o.batch = o.step_tokens = o.chunk_tokens = STEP_ROWS;
    o.context = corpus_longest(c) + 1;
    o.prefix_cache = false;
    o.kv_disk = NULL;
    o.speculation = SPECULATION_OFF;
    const struct kvpool_shape shape = kvpool_shape_of(&m->config, o.kv_type);
    o.kv_bytes = size_divide_up(o.context, KV_PAGE_TOKENS) * kvpool_page_bytes(&shape);
    return engine_open(m, &o, out, e);
}

struct teller {
    int64_t began_us, told_us;
};

static bool tell(void *ctx, size_t n_done, size_t n_all)
{
    struct teller *t = ctx;
    const int64_t now_us = clock_mono_us();
    if (now_us - t->told_us >= TELL_US) {
        const double spent_s = (double)(now_us - t->began_us) / 1e6;
        log_info("hidden states of %zu of %zu positions, %.0f s left", n_done, n_all,
                 spent_s * (double)(n_all - n_done) / (double)n_done);
        t->told_us = now_us;
    }
    return signals_received() == 0;
}

int heads_examples_read(const struct cli *cli, const struct model *m,
                        struct heads_examples *out, struct err *e)
{
    *out = (struct heads_examples){0};
    int rc = read_corpus(cli, m, &out->corpus, e);
    if (rc == 0)
        rc = corpus_sha256(&out->corpus, out->corpus_sha256, e);
    if (rc != 0)
        heads_examples_fini(out);
    return rc;
}

int heads_examples_run(const struct cli *cli, const struct model *m, struct heads_examples *x,
                       struct err *e)
{
    struct engine *eng = NULL;
    TRY(open_engine(cli, m, &x->corpus, &eng, e));
    struct teller teller = {.began_us = clock_mono_us(), .told_us = clock_mono_us()};
    const struct hidden_progress progress = {.told = tell, .ctx = &teller};
    const int rc = hidden_set_fill(&x->set, eng, m->config.dim, &x->corpus, &progress, e);
    engine_close(eng);
    if (rc == 0)
        log_info("hidden states of %zu positions in %.1f s", x->set.n_rows,
                 (double)(clock_mono_us() - teller.began_us) / 1e6);
    return rc;
}

void heads_examples_fini(struct heads_examples *x)
{
    corpus_fini(&x->corpus);
    hidden_set_fini(&x->set);
}
