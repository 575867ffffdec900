/*
 * Sorting prompts by merging, with the lengths of common prefixes carried along: no token of a
 * prefix that is known to be equal is compared again, so that the work is the tokens once and
 * n log n steps, whatever the prompts are.
 *
 * In here a salt counts as a prompt's first token: depth 0 is the salt, depth 1 + k is token k.
 */
#include "advice_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

/* Tokens that lie in one piece from position `at` of the view on; at < view->n. */
static size_t piece_at(const struct advice_view *view, size_t at, const int32_t **tokens)
{
    const size_t cut = view->cut_end - view->cut_start;
    const size_t rest = view->n - cut; /* the cut piece is read from here on */
    if (at < view->cut_start) {
        *tokens = view->tokens + at;
        return view->cut_start - at;
    }
    if (at < rest) {
        *tokens = view->tokens + at + cut;
        return rest - at;
    }
    *tokens = view->tokens + view->cut_start + (at - rest);
    return view->n - at;
}

static size_t common_tokens(const int32_t *a, const int32_t *b, size_t n)
{
    enum { STRIDE = 64 };
    size_t i = 0;
    while (i + STRIDE <= n && memcmp(a + i, b + i, STRIDE * sizeof a[0]) == 0)
        i += STRIDE;
    while (i < n && a[i] == b[i])
        i++;
    return i;
}

size_t advice_common(const struct advice_view *a, const struct advice_view *b, size_t from)
{
    const size_t n = a->n < b->n ? a->n : b->n;
    size_t at = from;
    while (at < n) {
        const int32_t *left, *right;
        const size_t n_left = piece_at(a, at, &left);
        const size_t n_right = piece_at(b, at, &right);
        const size_t length = n_left < n_right ? n_left : n_right;
        const size_t same = common_tokens(left, right, length);
        at += same;
        if (same < length)
            break;
    }
    return at - from;
}

int advice_order_init(struct advice_order *order, size_t n, struct err *e)
{
    *order = (struct advice_order){.n = n};
    order->index = calloc(n + 1, sizeof order->index[0]);
    order->lcp = calloc(n + 1, sizeof order->lcp[0]);
    order->spare_index = calloc(n + 1, sizeof order->spare_index[0]);
    order->spare_lcp = calloc(n + 1, sizeof order->spare_lcp[0]);
    if (order->index && order->lcp && order->spare_index && order->spare_lcp)
        return 0;
    advice_order_fini(order);
    return ERR_SET(e, ERR_NOMEM, "no memory to sort %zu prompts", n);
}

void advice_order_fini(struct advice_order *order)
{
    free(order->index);
    free(order->lcp);
    free(order->spare_index);
    free(order->spare_lcp);
    *order = (struct advice_order){0};
}

static int32_t token_at(const struct advice_view *view, size_t at)
{
    const int32_t *tokens;
    piece_at(view, at, &tokens);
    return tokens[0];
}

/* Whether a comes before b (or is equal to it); *depth: known to be common, then exactly so. */
static bool comes_first(const struct advice_view *a, const struct advice_view *b,
                        uint32_t *depth)
{
    if (*depth == 0) {
        if (a->salt != b->salt)
            return a->salt < b->salt;
        *depth = 1;
    }
    *depth += (uint32_t)advice_common(a, b, *depth - 1);
    const size_t at = *depth - 1;
    if (at == a->n || at == b->n)
        return a->n <= b->n;
    return token_at(a, at) < token_at(b, at);
}

/* One sorted run of the spare arrays, and how deep its head agrees with what came out last. */
struct run {
    const uint32_t *index, *lcp;
    size_t n, at;
    uint32_t depth;
};

static void step(struct run *run, uint32_t *index, uint32_t *lcp)
{
    *index = run->index[run->at];
    *lcp = run->depth;
    run->at++;
    run->depth = run->at < run->n ? run->lcp[run->at] : 0;
}

static void merge(const struct advice_view *views, struct run a, struct run b, uint32_t *index,
                  uint32_t *lcp)
{
    size_t out = 0;
    for (; a.at < a.n && b.at < b.n; out++) {
        bool first = a.depth > b.depth;
        if (a.depth == b.depth) {
            uint32_t depth = a.depth;
            first = comes_first(&views[a.index[a.at]], &views[b.index[b.at]], &depth);
            *(first ? &b.depth : &a.depth) = depth;
        }
        step(first ? &a : &b, &index[out], &lcp[out]);
    }
    struct run *rest = a.at < a.n ? &a : &b;
    for (; rest->at < rest->n; out++)
        step(rest, &index[out], &lcp[out]);
}

static void swap(uint32_t **a, uint32_t **b)
{
    uint32_t *kept = *a;
    *a = *b;
    *b = kept;
}

static struct run run_of(const struct advice_order *order, size_t from, size_t width)
{
    const size_t start = from < order->n ? from : order->n;
    const size_t left = order->n - start;
    return (struct run){.index = order->spare_index + start,
                        .lcp = order->spare_lcp + start,
                        .n = left < width ? left : width};
}

void advice_order_sort(struct advice_order *order, const struct advice_view *views)
{
    for (size_t i = 0; i < order->n; i++) {
        order->index[i] = (uint32_t)i;
        order->lcp[i] = 0;
    }
    for (size_t width = 1; width < order->n; width *= 2) {
        swap(&order->index, &order->spare_index);
        swap(&order->lcp, &order->spare_lcp);
        for (size_t at = 0; at < order->n; at += 2 * width)
            merge(views, run_of(order, at, width), run_of(order, at + width, width),
                  order->index + at, order->lcp + at);
    }
    for (size_t i = 0; i < order->n; i++)
        order->lcp[i] -= order->lcp[i] > 0; /* the salt is no token */
}

uint64_t advice_order_cached(const struct advice_order *order, const struct advice_view *views,
                             size_t tokens_min)
{
    uint64_t cached = 0;
    for (size_t i = 0; i < order->n; i++) {
        const uint32_t n = views[order->index[i]].n;
        const uint32_t most = n > 0 ? n - 1 : 0;
        const uint32_t hit = order->lcp[i] < most ? order->lcp[i] : most;
        cached += hit >= tokens_min ? hit : 0;
    }
    return cached;
}
