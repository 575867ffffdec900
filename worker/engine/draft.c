#include "engine/draft.h"

#include "base/check.h"

static_assert(DRAFT_NODES_MAX <= INT8_MAX, "indices and depths fit their fields");
static_assert(DRAFT_SOURCES <= 8, "sources fit their mask");

const char *draft_source_name(enum draft_source source)
{
    static const char *const names[DRAFT_SOURCES] = {
        [DRAFT_MEDUSA] = "medusa",   [DRAFT_LOOKUP] = "lookup",
        [DRAFT_SELF] = "self",       [DRAFT_PREDICTION] = "prediction",
        [DRAFT_RECYCLE] = "recycle", [DRAFT_MODEL] = "model"};
    ASSERT(source < DRAFT_SOURCES);
    return names[source];
}

static bool is_node(const struct draft *d, int node)
{
    return node >= 0 && (size_t)node < d->n_nodes;
}

int draft_find(const struct draft *d, int parent, int32_t token)
{
    for (size_t i = (size_t)(parent + 1); i < d->n_nodes; i++)
        if (d->nodes[i].parent == parent && d->nodes[i].token == token)
            return (int)i;
    return DRAFT_NONE;
}

static void merge(struct draft_node *node, uint8_t source_bit, float p)
{
    if (!(node->sources & source_bit))
        node->p = 1 - (1 - node->p) * (1 - p);
    else if (p > node->p)
        node->p = p;
    node->sources |= source_bit;
}

int draft_add(struct draft *d, int parent, int32_t token, unsigned source, float p)
{
    ASSERT(parent == DRAFT_ROOT || is_node(d, parent));
    ASSERT(source < DRAFT_SOURCES);
    ASSERT(p > 0 && p <= 1);
    const uint8_t source_bit = (uint8_t)(1u << source);
    const int twin = draft_find(d, parent, token);
    if (twin != DRAFT_NONE) {
        merge(&d->nodes[twin], source_bit, p);
        return twin;
    }
    if (d->n_nodes == DRAFT_NODES_MAX)
        return DRAFT_NONE;
    d->nodes[d->n_nodes] = (struct draft_node){
        .token = token,
        .parent = (int16_t)parent,
        .depth = (uint8_t)(parent == DRAFT_ROOT ? 1 : d->nodes[parent].depth + 1),
        .sources = source_bit,
        .p = p,
    };
    return (int)d->n_nodes++;
}

/* Of the children that are not placed yet. */
static int best_child(const struct draft *d, int parent, uint64_t placed)
{
    int best = DRAFT_NONE;
    float best_p = 0;
    for (size_t i = (size_t)(parent + 1); i < d->n_nodes; i++) {
        const struct draft_node *node = &d->nodes[i];
        if (node->parent == parent && !(placed >> i & 1) && node->p > best_p) {
            best = (int)i;
            best_p = node->p;
        }
    }
    return best;
}

static void place_children(const struct draft *from, int parent, struct draft *to,
                           int placed_parent)
{
    uint64_t placed = 0;
    int child;
    while ((child = best_child(from, parent, placed)) != DRAFT_NONE) {
        placed |= UINT64_C(1) << child;
        const int at = (int)to->n_nodes++;
        to->nodes[at] = from->nodes[child];
        to->nodes[at].parent = (int16_t)placed_parent;
        place_children(from, child, to, at);
    }
}

void draft_order(struct draft *d)
{
    struct draft ordered = {.n_nodes = 0};
    place_children(d, DRAFT_ROOT, &ordered, DRAFT_ROOT);
    *d = ordered;
}

void draft_refuse(struct draft *d, size_t n_vocab, size_t depth_max)
{
    for (size_t i = 0; i < d->n_nodes; i++) {
        struct draft_node *node = &d->nodes[i];
        if (node->token < 0 || (size_t)node->token >= n_vocab || node->depth > depth_max)
            node->p = 0;
    }
}

bool draft_check(const struct draft *d)
{
    if (d->n_nodes > DRAFT_NODES_MAX)
        return false;
    for (size_t i = 0; i < d->n_nodes; i++) {
        const struct draft_node *node = &d->nodes[i];
        if (node->parent < DRAFT_ROOT || node->parent >= (int)i)
            return false;
        const int depth = node->parent == DRAFT_ROOT ? 0 : d->nodes[node->parent].depth;
        if (node->depth != depth + 1 || !(node->p > 0 && node->p <= 1) ||
            draft_find(d, node->parent, node->token) != (int)i)
            return false;
    }
    return true;
}
