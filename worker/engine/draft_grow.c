#include "engine/draft_grow.h"

#include "base/size.h"

struct candidate {
    struct draft_child child;
    int parent;
    unsigned depth;
    double path; /* probability of it and all before it */
};

/* Each node taken makes room for one of its children. */
enum { CANDIDATES_MAX = DRAFT_CHILDREN_MAX + DRAFT_NODES_MAX * (DRAFT_CHILDREN_MAX - 1) };

struct frontier {
    size_t n;
    struct candidate candidates[CANDIDATES_MAX];
};

static void push_children(struct frontier *f, const struct draft_grower *g, uint64_t place,
                          const struct candidate *parent, double p_min)
{
    struct draft_child children[DRAFT_CHILDREN_MAX];
    const size_t n = g->children(g->context, place, parent->depth + 1, children);
    for (size_t i = 0; i < n; i++) {
        const double path = parent->path * children[i].p;
        if (path >= p_min)
            f->candidates[f->n++] =
                (struct candidate){children[i], parent->parent, parent->depth + 1, path};
    }
}

/* Of equals, the one that came first. */
static struct candidate pop_best(struct frontier *f)
{
    size_t best = 0;
    for (size_t i = 1; i < f->n; i++)
        if (f->candidates[i].path > f->candidates[best].path)
            best = i;
    const struct candidate c = f->candidates[best];
    f->n--;
    for (size_t i = best; i < f->n; i++)
        f->candidates[i] = f->candidates[i + 1];
    return c;
}

enum { SOURCE_NODES_MAX = 16 };
static const double PATH_P_MIN = 0.02;

struct draft_limits draft_limits_of_source(size_t n_max)
{
    return (struct draft_limits){.n_nodes = size_min(n_max, SOURCE_NODES_MAX),
                                 .p_min = PATH_P_MIN};
}

void draft_grow(struct draft *d, const struct draft_grower *g, uint64_t place,
                const struct draft_limits *limits)
{
    struct frontier f;
    f.n = 0;
    const struct candidate root = {.parent = DRAFT_ROOT, .path = 1};
    push_children(&f, g, place, &root, limits->p_min);
    for (size_t n = 0; n < limits->n_nodes && n < DRAFT_NODES_MAX && f.n > 0; n++) {
        struct candidate c = pop_best(&f);
        c.parent = draft_add(d, c.parent, c.child.token, g->source, (float)c.child.p);
        if (c.parent < 0)
            return;
        push_children(&f, g, c.child.place, &c, limits->p_min);
    }
}

void draft_bound_siblings(struct draft *d)
{
    float sums[DRAFT_NODES_MAX + 1] = {0}; /* of the children of the root, of node 0, ... */
    for (size_t i = 0; i < d->n_nodes; i++)
        sums[d->nodes[i].parent + 1] += d->nodes[i].p;
    for (size_t i = 0; i < d->n_nodes; i++) {
        const float sum = sums[d->nodes[i].parent + 1];
        if (sum > DRAFT_SIBLINGS_SUM_MAX)
            d->nodes[i].p *= DRAFT_SIBLINGS_SUM_MAX / sum;
    }
}
