/*
 * Graphs: the launches of a step of few rows, captured once and launched as one.
 *
 * A decode step is hundreds of short launches, which the host takes longer to ask for than the
 * device to do. Launches depend on a step by its shape alone (device_int.cuh), so a shape is
 * rounded up to one that many steps have in common, and its graph serves them all: rows that
 * fill it up are computed and written nowhere.
 *
 * A shape is computed launch by launch at its first time, when products try their algorithms
 * and kernels are loaded, captured at its second, and replayed from then on. Where a capture
 * fails it is left at launches: a failure of the device itself shows again there.
 */
#include <string.h>

#include "buckets.h"
#include "device_int.cuh"

extern "C" {
#include "base/check.h"
}

/* ------------------------------------------------------------------ shapes */

static int least_of(uint64_t n, size_t most)
{
    return (int)(n < most ? n : most);
}

/* Up to 64 rows a product takes the time of its weights, so that what fills up is free; of more
 * a fifth at most is filled up. */
enum { FREE_ROWS_MAX = 64, ROW_PARTS = 8 };

static int round_rows(size_t n, size_t most)
{
    if (n == 0)
        return 0;
    return least_of(n <= FREE_ROWS_MAX ? bucket_of(n) : fine_bucket_of(n, ROW_PARTS), most);
}

/* An even share of the slots that the largest step may have, for rows of a branch. */
static size_t slots_of(const device_options *o, int n_rows)
{
    return o->n_slots_max / o->n_rows_max * (size_t)n_rows;
}

bool device_is_for_graph(const device *d, const device_step *s)
{
    const device_options *o = &d->options;
    if (!o->graphs || s->n_rows > GRAPH_ROWS_MAX)
        return false;
    if (s->first_layer != 0 || s->n_layers != d->model.n_layers || !s->has_head)
        return false;
    return s->n_slots <= slots_of(o, round_rows(s->n_rows, o->n_rows_max));
}

void device_round_shape(const device *d, step_shape *as, attend_args *a)
{
    const device_options *o = &d->options;
    as->n_rows = round_rows((size_t)as->n_rows, o->n_rows_max);
    as->n_logits = round_rows((size_t)as->n_logits, o->n_logits_max);
    as->n_blocks = least_of(bucket_of((uint64_t)as->n_blocks), (size_t)as->n_rows);
    as->n_spans = SPANS_OF_ROW * as->n_rows;
    as->n_slots = as->n_branches > 0 ? (int)slots_of(o, as->n_rows) : 0;
    as->n_branches = as->n_branches > 0 ? as->n_rows : 0;
    a->n_blocks = as->n_blocks;
    a->n_attend_rows = as->n_rows;
    as->split = attend_round(a);
    as->block_queries_max = a->block_queries_max;
}

/* ------------------------------------------------------------------ the cache */

static bool is_same(const step_shape &a, const step_shape &b)
{
    static_assert(sizeof a == 9 * sizeof(int), "whole numbers without gaps");
    return memcmp(&a, &b, sizeof a) == 0;
}

static void forget(graph_entry *g)
{
    graph_free(g->graph);
    *g = graph_entry();
}

/* *is_new: its shape has not been seen, or not for so long that it was forgotten. */
static graph_entry *find(graph_cache *c, const step_shape &shape, bool *is_new)
{
    graph_entry *oldest = &c->entries[0];
    c->n_uses++;
    *is_new = false;
    for (graph_entry &g : c->entries) {
        if (g.used_at > 0 && is_same(g.shape, shape)) {
            g.used_at = c->n_uses;
            return &g;
        }
        if (g.used_at < oldest->used_at)
            oldest = &g;
    }
    *is_new = true;
    forget(oldest);
    oldest->shape = shape;
    oldest->used_at = c->n_uses;
    return oldest;
}

void device_free_graphs(device *d)
{
    for (graph_entry &g : d->graphs.entries)
        forget(&g);
}

/* ------------------------------------------------------------------ one step */

static graph_t end_capture(device *d, int rc)
{
    graph_t graph = capture_end(d->stream);
    if (graph && rc == 0 && !last_error())
        return graph;
    graph_free(graph);
    last_error(); /* nothing was done yet, so that nothing is lost */
    return NULL;
}

static void capture(device *d, graph_entry *g, device_work *work, const void *context)
{
    device_counters counted = {};
    struct err why = {};
    if (!capture_begin(d->stream)) {
        last_error();
        return;
    }
    count_into(&counted);
    const int rc = work(context, &why);
    count_into(&d->counters);
    g->graph = end_capture(d, rc);
    memcpy(g->cost, counted.of, sizeof g->cost);
    d->counters.graphs_captured += g->graph != NULL;
}

static bool replay(device *d, graph_entry *g)
{
    if (!g->graph)
        return false;
    if (!graph_launch(g->graph, d->stream)) {
        last_error();
        graph_free(g->graph);
        g->graph = NULL;
        return false;
    }
    d->counters.graphs_replayed++;
    for (int i = 0; i < DEVICE_N_FAMILIES; i++) {
        device_cost *cost = &d->counters.of[i];
        cost->launches += g->cost[i].launches;
        cost->bytes_read += g->cost[i].bytes_read;
        cost->bytes_written += g->cost[i].bytes_written;
        cost->flops += g->cost[i].flops;
        d->counters.graph_launches += g->cost[i].launches;
    }
    return true;
}

int device_run_by_graph(device *d, const step_shape *shape, device_work *work,
                        const void *context, struct err *e)
{
    bool is_new;
    graph_entry *g = find(&d->graphs, *shape, &is_new);
    if (!is_new && !g->is_tried) {
        g->is_tried = true;
        capture(d, g, work, context);
    }
    return replay(d, g) ? 0 : work(context, e);
}
