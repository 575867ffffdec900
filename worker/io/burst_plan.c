#include "burst_plan.h"

#include <stdlib.h>
#include <string.h>

#include "base/fault.h"

static struct kafka_partition *partition_of(const struct kafka_partitions *ps,
                                            const struct kafka_answer *a)
{
    struct kafka_partition *p = kafka_partitions_find(ps, a->topic, a->partition);
    return p && p->lease == a->lease ? p : NULL;
}

/* False: nobody knows yet whose it will be. */
static bool sort_answer(const struct kafka_partitions *ps, const struct kafka_answer *a,
                        enum kafka_answer_state *state)
{
    const struct kafka_partition *p = partition_of(ps, a);
    *state = ANSWER_OPEN;
    if (!p)
        *state = GUARD("ownership") ? ANSWER_NOT_OURS : ANSWER_OPEN;
    else if (!offset_tracker_is_unsettled(&p->tracker, a->offset))
        *state = ANSWER_GIVEN;
    return !p || p->is_owned;
}

static bool is_open_in(const struct kafka_answer *a, enum kafka_answer_state state,
                       const struct kafka_partition *p)
{
    return state == ANSWER_OPEN && a->partition == p->id && strcmp(a->topic, p->topic) == 0;
}

static bool is_any_open_in(const struct kafka_answer *answers, size_t n,
                           const enum kafka_answer_state *states,
                           const struct kafka_partition *p)
{
    for (size_t i = 0; i < n; i++)
        if (is_open_in(&answers[i], states[i], p))
            return true;
    return false;
}

static size_t text_length(const struct offset_bits *settled)
{
    char text[OFFSET_METADATA_MAX + 1];
    return offset_metadata_encode(settled, text);
}

/* An answer above unanswered jobs has to be told of in the text; the one at the watermark only
 * makes the text shorter. False: even so it is too long, from when it could be longer. */
static bool settle_what_fits(const struct kafka_partition *p, size_t text_max,
                             const struct kafka_answer *answers, size_t n,
                             enum kafka_answer_state *states, struct offset_bits *settled)
{
    for (size_t i = 0; i < n; i++) {
        if (!is_open_in(&answers[i], states[i], p))
            continue;
        struct offset_bits more = *settled;
        offset_bits_settle(&more, answers[i].offset);
        if (answers[i].offset == settled->base || text_length(&more) <= text_max)
            *settled = more;
        else
            states[i] = ANSWER_DELAYED;
    }
    return text_length(settled) <= text_max;
}

static void delay_all(const struct kafka_partition *p, const struct kafka_answer *answers,
                      size_t n, enum kafka_answer_state *states)
{
    for (size_t i = 0; i < n; i++)
        if (is_open_in(&answers[i], states[i], p))
            states[i] = ANSWER_DELAYED;
}

static void add_partition(const struct kafka_partitions *ps, const struct kafka_partition *p,
                          const struct kafka_answer *answers, size_t n,
                          enum kafka_answer_state *states, struct burst_plan *plan)
{
    if (!is_any_open_in(answers, n, states, p))
        return;
    struct burst_offsets *item = &plan->items[plan->n];
    *item = (struct burst_offsets){.topic = p->topic, .partition = p->id};
    offset_tracker_settled(&p->tracker, &item->settled);
    if (!settle_what_fits(p, kafka_partitions_text_max(ps), answers, n, states, &item->settled))
        delay_all(p, answers, n, states);
    plan->n += is_any_open_in(answers, n, states, p);
}

/* No more partitions than open answers are touched. */
static size_t count_open(const enum kafka_answer_state *states, size_t n)
{
    size_t n_open = 0;
    for (size_t i = 0; i < n; i++)
        n_open += states[i] == ANSWER_OPEN;
    return n_open;
}

int burst_plan_make(const struct kafka_partitions *ps, const struct kafka_answer *answers,
                    size_t n, enum kafka_answer_state *states, struct burst_plan *out,
                    struct err *e)
{
    *out = (struct burst_plan){0};
    bool is_known = true;
    for (size_t i = 0; i < n; i++)
        is_known &= sort_answer(ps, &answers[i], &states[i]);
    if (!is_known)
        return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY,
                             "the group is being rebalanced: results wait until it is known "
                             "whose they are");
    const size_t n_open = count_open(states, n);
    const size_t n_max = n_open < ps->n ? n_open : ps->n;
    if (n_max == 0)
        return 0;
    if (!(out->items = malloc(n_max * sizeof *out->items)))
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY,
                             "no memory for the offsets of %zu partitions", n_max);
    for (size_t i = 0; i < ps->n; i++)
        if (ps->items[i]->is_owned)
            add_partition(ps, ps->items[i], answers, n, states, out);
    return 0;
}

void burst_plan_fini(struct burst_plan *plan)
{
    free(plan->items);
    *plan = (struct burst_plan){0};
}

bool burst_plan_take_over(struct kafka_partitions *ps, const char *topic, int32_t partition,
                          const struct offset_bits *committed)
{
    struct kafka_partition *p = kafka_partitions_find(ps, topic, partition);
    if (!p || !p->is_owned || committed->base < 0)
        return false;
    offset_tracker_settle_known(&p->tracker, committed);
    return true;
}
