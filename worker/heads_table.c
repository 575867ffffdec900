#include "heads_table.h"

#include <jansson.h>
#include <stdio.h>

void heads_table_fill(struct heads_table_part *part, const char *name,
                      const struct heads_score *score)
{
    *part = (struct heads_table_part){.name = name};
    for (size_t i = 0; i < score->n_heads; i++) {
        part->n_labels[i] = score->n_labels[i];
        for (size_t rank = 0; rank < HEADS_RANKS; rank++)
            part->accuracies[i][rank] = heads_score_accuracy(score, i, rank);
    }
}

static double top(const struct heads_table_part *part, size_t head, size_t n_ranks)
{
    double sum = 0;
    for (size_t rank = 0; rank < n_ranks; rank++)
        sum += part->accuracies[head][rank];
    return sum;
}

static void print_part(const struct heads *h, const struct heads_table_part *part)
{
    printf("%-10s %5s %8s %7s %7s\n", part->name, "head", "labels", "top-1", "top-5");
    for (size_t i = 0; i < h->n_heads; i++) {
        char labels[24] = "-";
        if (part->n_labels[i] > 0)
            snprintf(labels, sizeof labels, "%llu", (unsigned long long)part->n_labels[i]);
        printf("%-10s %5zu %8s %7.3f %7.3f\n", "", i + 1, labels, top(part, i, 1),
               top(part, i, SCORE_TOP));
    }
    if (part->chain_tokens > 0)
        printf("%-10s a step yields %.2f tokens with a chain of %zu, %.2f with a tree of %d\n",
               "", part->chain_tokens, h->n_heads, part->tree_tokens, SCORE_TREE_NODES);
}

static json_t *describe_head(const struct heads_table_part *part, size_t head)
{
    json_t *ranks = json_array();
    for (size_t rank = 0; rank < HEADS_RANKS; rank++)
        json_array_append_new(ranks, json_real(part->accuracies[head][rank]));
    return json_pack("{s:I, s:I, s:f, s:f, s:o}", "head", (json_int_t)head + 1, "labels",
                     (json_int_t)part->n_labels[head], "top1", top(part, head, 1), "top5",
                     top(part, head, SCORE_TOP), "ranks", ranks);
}

static json_t *describe_part(const struct heads *h, const struct heads_table_part *part)
{
    json_t *heads = json_array();
    for (size_t i = 0; i < h->n_heads; i++)
        json_array_append_new(heads, describe_head(part, i));
    json_t *root = json_pack("{s:s, s:o}", "positions", part->name, "heads", heads);
    if (part->chain_tokens > 0) {
        json_object_set_new(root, "chain_tokens", json_real(part->chain_tokens));
        json_object_set_new(root, "tree_tokens", json_real(part->tree_tokens));
    }
    return root;
}

static int print_json(const struct heads *h, const struct heads_table_part *parts, size_t n,
                      struct err *e)
{
    json_t *list = json_array();
    for (size_t i = 0; i < n; i++)
        json_array_append_new(list, describe_part(h, &parts[i]));
    json_t *root = json_pack("{s:I, s:I, s:I, s:b, s:I, s:o}", "heads", (json_int_t)h->n_heads,
                             "blocks", (json_int_t)h->n_blocks, "dim", (json_int_t)h->dim,
                             "tied", h->heads[0].output == NULL, "draft_vocab",
                             (json_int_t)h->n_draft, "accuracies", list);
    if (!root)
        return ERR_SET(e, ERR_NOMEM, "no memory for the table");
    json_dumpf(root, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(6));
    putchar('\n');
    json_decref(root);
    return 0;
}

int heads_table_print(const struct heads *h, const struct heads_table_part *parts, size_t n,
                      bool json, struct err *e)
{
    if (json)
        return print_json(h, parts, n, e);
    char text[128];
    heads_describe(h, text, sizeof text);
    puts(text);
    for (size_t i = 0; i < n; i++)
        print_part(h, &parts[i]);
    return 0;
}
