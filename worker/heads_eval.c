#include "heads_eval.h"

#include <stdlib.h>
#include <unistd.h>

#include "base/log.h"
#include "base/size.h"
#include "heads_examples.h"
#include "heads_table.h"
#include "model/heads.h"
#include "setup.h"
#include "signals.h"
#include "train/heads_rank.h"

struct evaluation {
    const struct heads *heads;
    const struct hidden_set *set;
    size_t *rows; /* that are measured on, [n] */
    size_t n;
    int32_t *ranks; /* [n_heads, n] */
};

static int choose_rows(struct evaluation *v, bool all, struct err *e)
{
    v->rows = malloc((v->set->n_rows + 1) * sizeof v->rows[0]);
    if (!v->rows)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu rows", v->set->n_rows);
    for (size_t row = 0; row < v->set->n_rows; row++)
        if ((all || v->set->is_held_out[row]) && v->set->n_after[row] > 0)
            v->rows[v->n++] = row;
    v->ranks = malloc((v->heads->n_heads * v->n + 1) * sizeof v->ranks[0]);
    if (!v->ranks)
        return ERR_SET(e, ERR_NOMEM, "no memory for the ranks of %zu rows", v->n);
    return 0;
}

static size_t ranks_at(const struct evaluation *v, size_t i, int32_t *ranks)
{
    for (size_t head = 0; head < v->heads->n_heads; head++)
        ranks[head] = v->ranks[head * v->n + i];
    return size_min((size_t)v->set->n_after[v->rows[i]], v->heads->n_heads);
}

/* What a step yields is told over positions where every head has a label. */
static void fill_part(const struct evaluation *v, bool answers, const char *name,
                      struct heads_table_part *part)
{
    struct heads_score score = {.n_heads = v->heads->n_heads};
    struct score_tree tree;
    int32_t ranks[HEADS_MAX];
    uint64_t chain = 0, in_tree = 0, n = 0;
    for (size_t i = 0; i < v->n; i++)
        if (!answers || v->set->is_answer[v->rows[i]]) {
            const size_t n_known = ranks_at(v, i, ranks);
            heads_score_add(&score, ranks, n_known);
        }
    score_tree_build(&score, SCORE_TREE_NODES, &tree);
    for (size_t i = 0; i < v->n; i++) {
        const size_t n_known = ranks_at(v, i, ranks);
        if ((answers && !v->set->is_answer[v->rows[i]]) || n_known < v->heads->n_heads)
            continue;
        chain += score_chain_tokens(ranks, n_known);
        in_tree += score_tree_tokens(&tree, ranks, n_known);
        n++;
    }
    heads_table_fill(part, name, &score);
    part->chain_tokens = n ? (double)chain / (double)n : 0;
    part->tree_tokens = n ? (double)in_tree / (double)n : 0;
}

static int measure(struct evaluation *v, const struct cli *cli, const struct model *m,
                   struct err *e)
{
    struct draft_vocab vocab = {0};
    struct kernels kernels;
    struct pool *threads = NULL;
    int rc = choose_rows(v, cli->all_positions, e);
    if (rc == 0)
        rc = draft_vocab_of(v->heads->draft_vocab, v->heads->n_draft, m->config.n_vocab, &vocab,
                            e);
    if (rc == 0)
        rc = kernels_open(&kernels, e);
    if (rc == 0)
        rc = pool_open(setup_threads(&cli->settings), &threads, e);
    if (rc == 0)
        rc = heads_rank(v->heads, m, &kernels, threads, v->set, &vocab, v->rows, v->n, v->ranks,
                        e);
    pool_close(threads);
    draft_vocab_fini(&vocab);
    if (rc != 0)
        return rc;
    struct heads_table_part parts[2];
    size_t n_parts = 0;
    fill_part(v, false, cli->all_positions ? "all" : "held out", &parts[n_parts++]);
    fill_part(v, true, "answers", &parts[n_parts]);
    n_parts += parts[n_parts].n_labels[0] > 0;
    return heads_table_print(v->heads, parts, n_parts, cli->json, e);
}

int heads_eval(const struct cli *cli, const struct model *m, struct err *e)
{
    struct heads *heads = NULL;
    struct heads_examples examples = {0};
    signals_install();
    int rc = heads_open(cli->heads, m, &heads, e);
    if (rc == 0)
        rc = heads_examples_read(cli, m, &examples, e);
    if (rc == 0)
        rc = heads_examples_run(cli, m, &examples, e);
    struct evaluation v = {.heads = heads, .set = &examples.set};
    if (rc == 0)
        rc = measure(&v, cli, m, e);
    free(v.rows);
    free(v.ranks);
    heads_examples_fini(&examples);
    heads_close(heads);
    return rc;
}
