#include "engine/spec.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/clock.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/spec_budget.h"

/* What a proposer, and no other, brought in a step. */
struct own {
    size_t n_nodes, n_accepted;
};

struct spec {
    struct spec_options options;
    struct prefix_tree *prefixes;
    struct kvpool *pool;
    struct draft *drafts;       /* [batch] of the plan's segments */
    struct spec_budget *budget; /* or NULL: no table of times */
    struct spec_time time;
    struct spec_seq *seqs;                       /* [batch] that the budget is for */
    struct seq **asked;                          /* [batch] for drafts in the step */
    struct spec_gate gates[DRAFT_PROPOSERS_MAX]; /* with a budget */

    /* Of the step. */
    size_t n_rows;         /* without drafts */
    int64_t drafting_us;   /* all that asking took */
    size_t n_accepted_now; /* nodes that were drawn */
    struct own own[DRAFT_PROPOSERS_MAX];

    struct draft_counters counters;
};

/* Sources learn whether or not they are asked, so nothing is drafted only to learn. */
static int open_budget(struct spec *s, struct err *e)
{
    struct spec_budget_options o = spec_budget_defaults(s->options.batch);
    o.explore_share = 0;
    s->time = *s->options.time;
    s->options.time = NULL;
    for (size_t i = 0; i < s->options.n_proposers; i++) {
        s->gates[i] = spec_gate_open(s->options.vain_share);
        s->gates[i].begins_full = s->options.proposers[i].invests;
    }
    s->seqs = calloc(s->options.batch, sizeof s->seqs[0]);
    if (!s->seqs)
        return ERR_SET(e, ERR_NOMEM, "no memory for %zu drafts", s->options.batch);
    return spec_budget_open(&o, &s->budget, e);
}

int spec_open(const struct spec_options *o, struct prefix_tree *prefixes, struct kvpool *pool,
              struct spec **out, struct err *e)
{
    struct spec *s = calloc(1, sizeof *s);
    if (!s)
        return ERR_SET(e, ERR_NOMEM, "no memory for speculation");
    *s = (struct spec){.options = *o, .prefixes = prefixes, .pool = pool};
    int rc = 0;
    s->drafts = calloc(o->batch, sizeof s->drafts[0]);
    s->asked = calloc(o->batch, sizeof s->asked[0]);
    if (!s->drafts || !s->asked)
        rc = ERR_SET(e, ERR_NOMEM, "no memory for %zu drafts", o->batch);
    if (rc == 0 && o->time)
        rc = open_budget(s, e);
    if (rc != 0) {
        spec_close(s);
        return rc;
    }
    *out = s;
    return 0;
}

void spec_close(struct spec *s)
{
    if (!s)
        return;
    spec_budget_close(s->budget);
    free(s->seqs);
    free(s->asked);
    free(s->drafts);
    free(s);
}

struct draft_counters spec_counters(const struct spec *s)
{
    return s->counters;
}

/* ------------------------------------------------------------------ before the step */

/* The last nodes go first: what is left is in order. */
static void cut(struct draft *draft, size_t n_max)
{
    draft->n_nodes = size_min(draft->n_nodes, n_max);
}

/* A step yields one token more than the depth it gets to, and all of them must fit. */
static size_t n_left(const struct seq *seq)
{
    return seq->capacity - seq->n_tokens;
}

static bool may_draft(const struct seq *seq)
{
    return seq_is_decoding(seq) && n_left(seq) >= 2;
}

static size_t nodes_of_use(const struct seq *seq)
{
    return size_min(n_left(seq), DRAFT_NODES_MAX);
}

static void prepare(struct spec *s, const struct draft_proposer *proposer,
                    const struct step_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_segments; i++)
        if (may_draft(plan->segments[i].seq))
            s->asked[n++] = plan->segments[i].seq;
    if (n > 0)
        proposer->prepare(proposer->ctx, s->asked, n);
}

static void ask(struct spec *s, const struct draft_proposer *proposer,
                const struct step_plan *plan)
{
    if (proposer->prepare)
        prepare(s, proposer, plan);
    for (size_t i = 0; i < plan->n_segments; i++) {
        const struct seq *seq = plan->segments[i].seq;
        if (!may_draft(seq))
            continue;
        proposer->propose(proposer->ctx, seq, nodes_of_use(seq), &s->drafts[i]);
        ASSERT_SLOW(draft_check(&s->drafts[i]));
    }
}

/* Of a proposer that is asked or is not; us: how long that took. */
static void count_asking(struct spec *s, unsigned sources, bool is_asked, int64_t us)
{
    struct draft_counters *c = &s->counters;
    for (size_t k = 0; k < DRAFT_SOURCES; k++) {
        const bool is_source = sources >> k & 1;
        c->asked[k] += is_source && is_asked;
        c->unasked[k] += is_source && !is_asked;
        c->asked_us[k] += is_source ? (uint64_t)us : 0;
    }
}

/* -> how long it took, in microseconds */
static int64_t ask_all(struct spec *s, const struct step_plan *plan)
{
    int64_t all_us = 0;
    for (size_t i = 0; i < s->options.n_proposers; i++) {
        const struct draft_proposer *proposer = &s->options.proposers[i];
        const int64_t began_us = clock_mono_us();
        const bool is_asked = !s->budget || spec_gate_asks(&s->gates[i]);
        if (is_asked)
            ask(s, proposer, plan);
        const int64_t us = clock_mono_us() - began_us;
        if (is_asked)
            spec_gate_pay(&s->gates[i], (double)us);
        count_asking(s, proposer->sources, is_asked, us);
        all_us += us;
    }
    return all_us;
}

/* Each segment that decodes gets a draft, which may be empty. */
static int64_t propose_all(struct spec *s, struct step_plan *plan)
{
    for (size_t i = 0; i < plan->n_segments; i++) {
        if (seq_is_decoding(plan->segments[i].seq))
            plan->segments[i].draft = &s->drafts[i];
        s->drafts[i].n_nodes = 0;
    }
    const int64_t us = ask_all(s, plan);
    for (size_t i = 0; i < plan->n_segments; i++) {
        const struct seq *seq = plan->segments[i].seq;
        if (s->drafts[i].n_nodes == 0)
            continue;
        draft_refuse(&s->drafts[i], s->options.n_vocab, n_left(seq) - 1);
        draft_order(&s->drafts[i]);
        cut(&s->drafts[i], nodes_of_use(seq));
    }
    return us;
}

static size_t count_decoding(const struct step_plan *plan)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_segments; i++)
        n += seq_is_decoding(plan->segments[i].seq);
    return n;
}

static struct spec_step describe_step(const struct spec *s, const struct step_plan *plan)
{
    return (struct spec_step){.time = &s->time,
                              .n_seqs = count_decoding(plan),
                              .n_rows = plan->n_rows,
                              .n_tokens = (double)plan->n_rows,
                              .n_rows_max = plan->n_rows + s->options.nodes_max};
}

/* Those nodes that are worth their time, whosever they are. */
static void choose(struct spec *s, const struct step_plan *plan, const struct spec_step *step)
{
    size_t n = 0;
    for (size_t i = 0; i < plan->n_segments; i++)
        if (plan->segments[i].draft)
            s->seqs[n++] = (struct spec_seq){&s->drafts[i], DRAFT_NODES_MAX};
    ASSERT(n == step->n_seqs);
    spec_budget_choose(s->budget, step, s->seqs);
}

static bool wants(struct spec *s, const struct spec_step *step)
{
    return !s->budget || spec_budget_wants(s->budget, step);
}

/* What one leaves of its share is the others'. */
static void share_out(struct spec *s, const struct step_plan *plan, size_t n_drafts)
{
    size_t n_left = s->options.nodes_max;
    for (size_t i = 0; i < plan->n_segments; i++) {
        if (!plan->segments[i].draft)
            continue;
        cut(&s->drafts[i], size_divide_up(n_left, n_drafts--));
        n_left -= s->drafts[i].n_nodes;
    }
}

static void reserve_slots(struct spec *s, struct seq *seq, struct draft *draft)
{
    if (draft->n_nodes == 0 || seq_reserve(seq, s->prefixes, seq->n_tokens + draft->n_nodes))
        return;
    const size_t n_slots = seq->n_pages * KV_PAGE_TOKENS - seq->n_tokens;
    s->counters.lacked_pages += draft->n_nodes - n_slots;
    cut(draft, n_slots);
}

/* Rows of the drafts go behind their segments' own. */
static void add_rows(struct spec *s, struct step_plan *plan)
{
    plan->n_rows = plan->n_logits = 0;
    for (size_t i = 0; i < plan->n_segments; i++) {
        struct step_segment *segment = &plan->segments[i];
        if (segment->draft)
            reserve_slots(s, segment->seq, &s->drafts[i]);
        if (segment_n_nodes(segment) == 0)
            segment->draft = NULL;
        segment->n_rows += segment_n_nodes(segment);
        segment->n_logits += segment_n_nodes(segment);
        segment->row = plan->n_rows;
        segment->logits_row = plan->n_logits;
        plan->n_rows += segment->n_rows;
        plan->n_logits += segment->n_logits;
    }
}

void spec_add_drafts(struct spec *s, struct step_plan *plan)
{
    struct spec_step step = describe_step(s, plan);
    s->n_rows = plan->n_rows;
    s->n_accepted_now = 0;
    s->drafting_us = 0;
    memset(s->own, 0, sizeof s->own);
    if (step.n_seqs == 0 || !wants(s, &step))
        return;
    s->drafting_us = propose_all(s, plan);
    step.us_more = (double)s->drafting_us;
    if (s->budget)
        choose(s, plan, &step);
    else
        share_out(s, plan, step.n_seqs);
    add_rows(s, plan);
}

/* ------------------------------------------------------------------ after the step */

static void move_token(const struct spec *s, const struct seq *seq, size_t to, size_t from)
{
    if (to != from)
        kvpool_move_token(s->pool, seq->pages[to / KV_PAGE_TOKENS], to % KV_PAGE_TOKENS,
                          seq->pages[from / KV_PAGE_TOKENS], from % KV_PAGE_TOKENS);
}

/* To those who named the node and are the only ones. */
static void count_own(struct spec *s, const struct draft_node *node, bool is_accepted)
{
    for (size_t i = 0; i < s->options.n_proposers; i++) {
        if (node->sources & ~s->options.proposers[i].sources)
            continue;
        s->own[i].n_nodes++;
        s->own[i].n_accepted += is_accepted;
    }
}

/* accepted: a bit for each node. */
static void count(struct spec *s, struct seq *seq, const struct draft *draft, uint64_t accepted)
{
    struct draft_counters *c = &s->counters;
    c->drafts++;
    draft_tally_nodes(&seq->tally, draft, accepted);
    for (size_t i = 0; i < draft->n_nodes; i++) {
        const struct draft_node *node = &draft->nodes[i];
        const bool is_accepted = accepted >> i & 1;
        *(is_accepted ? &c->accepted : &c->rejected) += 1;
        c->drafted++;
        c->drafted_at[node->depth]++;
        c->accepted_at[node->depth] += is_accepted;
        for (size_t k = 0; k < DRAFT_SOURCES; k++) {
            const bool is_source = node->sources >> k & 1;
            c->drafted_by[k] += is_source;
            c->accepted_by[k] += is_source && is_accepted;
        }
        seq->n_drafted++;
        seq->n_accepted += is_accepted;
        s->n_accepted_now += is_accepted;
        count_own(s, node, is_accepted);
    }
}

/* The last token drawn has no keys yet: those of its row, where it was a node, are let go. */
void spec_keep(struct spec *s, struct step_segment *segment, size_t n_drawn)
{
    const struct draft *draft = segment->draft;
    struct seq *seq = segment->seq;
    ASSERT(n_drawn >= 1 && n_drawn <= draft->n_nodes + 1);
    const size_t first = segment->position + segment_root(segment) + 1;
    uint64_t accepted = 0;
    int node = DRAFT_ROOT;
    for (size_t i = 0; i < n_drawn; i++) {
        node = draft_find(draft, node, seq->tokens[first + i]);
        if (node == DRAFT_NONE)
            break;
        accepted |= UINT64_C(1) << node;
        if (i + 1 < n_drawn)
            move_token(s, seq, first + i, first + (size_t)node);
    }
    count(s, seq, draft, accepted);
    segment->n_refused = draft->n_nodes - (n_drawn - 1);
    const size_t n_pages = seq_pages_for(first + n_drawn - 1);
    while (seq->n_pages > n_pages)
        kvpool_release_page(s->pool, seq->pages[--seq->n_pages]);
}

/* By the table: accepted tokens at what a token takes without drafts, less the rows. */
static double saved_us(const struct spec *s, const struct step_plan *plan,
                       const struct own *own)
{
    const double token_us = spec_time_us(&s->time, s->n_rows) / (double)s->n_rows;
    const double rows_us = spec_time_us(&s->time, plan->n_rows) -
                           spec_time_us(&s->time, plan->n_rows - own->n_nodes);
    return (double)own->n_accepted * token_us - rows_us;
}

/* Of a step with prompt rows the table says nothing: most of its rows want no logits. */
void spec_end_step(struct spec *s, const struct step_plan *plan, int64_t us)
{
    const bool is_timed = s->budget && plan->n_rows == plan->n_logits;
    s->counters.draft_us += s->drafting_us;
    draft_tally_times(plan, s->drafting_us, us,
                      is_timed ? spec_time_us(&s->time, plan->n_rows) : (double)us);
    if (!s->budget)
        return;
    for (size_t i = 0; i < s->options.n_proposers; i++)
        spec_gate_earn(&s->gates[i], (double)us, saved_us(s, plan, &s->own[i]));
    spec_budget_observe(s->budget, s->n_accepted_now);
    if (is_timed)
        spec_time_observe(&s->time, plan->n_rows, (double)us);
}
