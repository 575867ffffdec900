/*
 * How a step's rows go over their pages: order, blocks, spans (struct attention_plan).
 *
 * Every row goes over its pages in the order of positions, whatever stands beside it, and
 * attention carries its state from span to span: no order and no cut changes a bit.
 */
#include <stdlib.h>
#include <string.h>

#include "base/check.h"
#include "base/limits.h"
#include "base/size.h"
#include "engine/engine_device.h"
#include "engine/forward_int.h"

enum {
    BLOCK_QUERIES = 96,    /* (row, query head) pairs of a block, about */
    PAGE_READ_QUERIES = 6, /* reading a page costs as much as this many queries on it */
    ROUNDS_EVEN = 8,       /* items per thread that are even enough however they are cut */
};

/* Rows of one segment whose own keys lie in one page. */
struct attention_piece {
    const struct step_segment *segment;
    const struct attention_branch *branch; /* or NULL */
    size_t first_row;                      /* of the segment */
    size_t n_rows;
    size_t n_pages; /* that they see keys of */
};

int attention_plan_open(struct attention_plan *p, size_t n_rows_max, size_t n_branches_max,
                        struct err *e)
{
    p->pieces = calloc(n_rows_max, sizeof p->pieces[0]);
    p->order = calloc(n_rows_max, sizeof p->order[0]);
    p->branches = calloc(n_branches_max + 1, sizeof p->branches[0]);
    p->n_branches_max = n_branches_max;
    p->tree_rows = calloc(n_rows_max, sizeof p->tree_rows[0]);
    p->rows = calloc(n_rows_max, sizeof p->rows[0]);
    p->blocks = calloc(n_rows_max, sizeof p->blocks[0]);
    p->spans = calloc(2 * n_rows_max, sizeof p->spans[0]);
    if (!p->pieces || !p->order || !p->branches || !p->tree_rows || !p->rows || !p->blocks ||
        !p->spans)
        return ERR_SET(e, ERR_NOMEM, "no memory for the plan of attention");
    return 0;
}

void attention_plan_close(struct attention_plan *p)
{
    free(p->pieces);
    free(p->order);
    free(p->branches);
    free(p->tree_rows);
    free(p->rows);
    free(p->blocks);
    free(p->spans);
}

/* ------------------------------------------------------------------ order */

/* Pages of the sequence's own that a piece sees; images follow. */
static size_t own_pages(const struct attention_piece *piece)
{
    return piece->branch ? piece->branch->first_page : piece->n_pages;
}

/* Whole page lists as bytes, a list before those that it begins and before what goes on with
 * images: no order of numbers, but one that brings equal heads together. Ties keep the plan's
 * order, in which a branch's pieces stand together. */
static int compare_pieces(const struct attention_piece *a, const struct attention_piece *b)
{
    const size_t n_a = own_pages(a), n_b = own_pages(b);
    const size_t n = size_min(n_a, n_b);
    const int32_t *pages = a->segment->seq->pages;
    const int order = memcmp(pages, b->segment->seq->pages, n * sizeof pages[0]);
    if (order != 0)
        return order;
    if (n_a == n_b && a->branch && b->branch)
        return 0;
    if (n_a != n_b && a->n_pages != n && b->n_pages != n)
        return n_a < n_b ? 1 : -1; /* the one with images there */
    return a->n_pages < b->n_pages ? -1 : a->n_pages > b->n_pages;
}

/* Where a piece belongs among the first n that are in order: behind its equals. */
static size_t place_of(const struct attention_plan *p, size_t n,
                       const struct attention_piece *piece)
{
    size_t low = 0, high = n;
    while (low < high) {
        const size_t middle = (low + high) / 2;
        if (compare_pieces(piece, p->order[middle]) < 0)
            high = middle;
        else
            low = middle + 1;
    }
    return low;
}

static void add_piece(struct attention_plan *p, const struct attention_piece *piece,
                      bool ordered)
{
    const size_t n = p->n_pieces++;
    const size_t at = ordered ? place_of(p, n, piece) : n;
    memmove(p->order + at + 1, p->order + at, (n - at) * sizeof p->order[0]);
    p->pieces[n] = *piece;
    p->order[at] = &p->pieces[n];
}

/* Rows [row, end) of a segment at consecutive positions. */
static void add_run(struct attention_plan *p, const struct step_segment *segment, size_t row,
                    size_t end, const struct attention_branch *branch, bool ordered)
{
    for (size_t n_rows = 0; row < end; row += n_rows) {
        const size_t position = segment_position(segment, row);
        n_rows = size_min(end - row, KV_PAGE_TOKENS - position % KV_PAGE_TOKENS);
        const struct attention_piece piece = {.segment = segment,
                                              .branch = branch,
                                              .first_row = row,
                                              .n_rows = n_rows,
                                              .n_pages = position / KV_PAGE_TOKENS + 1};
        add_piece(p, &piece, ordered);
    }
}

/* Where the nodes from row on, each the child of the row before, end. */
static size_t end_of_run(const struct step_segment *segment, size_t row)
{
    const size_t first = segment_root(segment) + 1;
    while (row < segment->n_rows &&
           segment->draft->nodes[row - first].parent == (int)(row - first) - 1)
        row++;
    return row;
}

static const struct attention_branch *
add_branch(struct attention_plan *p, const struct step_segment *segment, size_t last_node)
{
    const struct draft_node *nodes = segment->draft->nodes;
    size_t node = last_node; /* then the first of its path that is not in its place */
    while (nodes[node].parent != DRAFT_ROOT &&
           !attention_is_in_place(segment->draft, (size_t)nodes[node].parent))
        node = (size_t)nodes[node].parent;
    const size_t position = segment_position(segment, segment_root(segment) + 1 + node);
    ASSERT(p->n_branches < p->n_branches_max);
    struct attention_branch *branch = &p->branches[p->n_branches++];
    *branch = (struct attention_branch){
        .segment = segment, .last_node = last_node, .first_page = position / KV_PAGE_TOKENS};
    return branch;
}

/* A segment's branches stand in the order of their drafts: those that leave the path later come
 * first, which keeps equal heads together where pieces are not ordered. */
static void list_pieces(struct attention_plan *p, const struct step_plan *step, bool ordered)
{
    p->n_pieces = p->n_branches = 0;
    for (size_t i = 0; i < step->n_segments; i++) {
        const struct step_segment *segment = &step->segments[i];
        const size_t root = segment_root(segment);
        size_t row = end_of_run(segment, root + 1);
        add_run(p, segment, 0, row, NULL, ordered);
        while (row < segment->n_rows) {
            const size_t end = end_of_run(segment, row + 1);
            add_run(p, segment, row, end, add_branch(p, segment, end - root - 2), ordered);
            row = end;
        }
    }
}

/* Counts trees on the way: runs of rows that begin with the same page, or, where nothing is
 * shared, of the same sequence. */
static void list_rows(struct attention_plan *p, bool ordered)
{
    p->n_rows = p->n_trees = 0;
    for (size_t i = 0; i < p->n_pieces; i++) {
        const struct attention_piece *piece = p->order[i];
        const struct step_segment *segment = piece->segment;
        const struct step_segment *before = i > 0 ? p->order[i - 1]->segment : NULL;
        const bool same_tree =
            before &&
            (before == segment || (ordered && before->seq->pages[0] == segment->seq->pages[0]));
        if (!same_tree)
            p->tree_rows[p->n_trees++] = 0;
        p->tree_rows[p->n_trees - 1] += piece->n_rows;
        for (size_t k = 0; k < piece->n_rows; k++) {
            const size_t row = piece->first_row + k;
            p->rows[p->n_rows++] = (struct attention_row){
                .row = segment->row + row,
                .position = (int32_t)segment_position(segment, row),
                .pages = segment->seq->pages,
                .n_pages = piece->n_pages,
                .branch = piece->branch,
            };
        }
    }
}

/* ------------------------------------------------------------------ blocks */

static size_t count_blocks(const struct attention_plan *p, size_t block_rows)
{
    size_t n = 0;
    for (size_t i = 0; i < p->n_trees; i++)
        n += size_divide_up(p->tree_rows[i], block_rows);
    return n;
}

/*
 * Rows of a block at most. Large blocks read a page for many rows; small ones keep all threads
 * at work to the end. The time of a cut is taken as rounds x (queries of a block + the reading
 * of its pages), blocks being equal.
 */
static size_t choose_block_rows(const struct forward *f)
{
    const struct attention_plan *p = &f->attention;
    if (f->on_device)
        return attention_rows_max(f);
    const size_t n_threads = pool_threads(f->threads);
    size_t best = attention_rows_max(f), best_cost = SIZE_MAX;
    for (size_t rows = best; rows > 0; rows--) {
        const size_t n_blocks = count_blocks(p, rows);
        const size_t rounds = size_divide_up(n_blocks * f->config->n_kv_heads, n_threads);
        const size_t queries = size_divide_up(p->n_rows, n_blocks) * attention_heads(f);
        const size_t cost = rounds * (queries + PAGE_READ_QUERIES);
        if (cost < best_cost) {
            best = rows;
            best_cost = cost;
        }
        if (rounds >= ROUNDS_EVEN)
            break;
    }
    return best;
}

/* ------------------------------------------------------------------ spans */

static bool have_same_page(const struct attention_row *a, const struct attention_row *b,
                           size_t page)
{
    if (attention_is_image(a, page) || attention_is_image(b, page))
        return a->branch == b->branch;
    return a->pages[page] == b->pages[page];
}

/* Pages that rows i < j of the plan have in common: all rows between have them too. */
static size_t common_pages(const struct attention_plan *p, size_t i, size_t j, size_t known)
{
    const struct attention_row *a = &p->rows[i], *b = &p->rows[j];
    const size_t n_max = size_min(a->n_pages, b->n_pages);
    size_t n = known;
    while (n < n_max && have_same_page(a, b, n))
        n++;
    return n;
}

static size_t keys_seen(const struct attention_plan *p, size_t begin, size_t end,
                        size_t first_page, size_t n_pages)
{
    size_t n_keys = 0;
    for (size_t i = begin; i < end; i++) {
        const size_t n = (size_t)p->rows[i].position + 1 - first_page * KV_PAGE_TOKENS;
        n_keys = n > n_keys ? n : n_keys;
    }
    return size_min(n_keys, n_pages * KV_PAGE_TOKENS);
}

/* Spans of rows [row, end) from page on, which they have in common up to there. Rows that see
 * no more pages stand first. */
static void add_spans(struct attention_plan *p, const struct attention_block *block, size_t row,
                      size_t end, size_t page)
{
    while (row < end && p->rows[row].n_pages == page)
        row++;
    while (row < end) {
        size_t last = row;
        while (last + 1 < end && have_same_page(&p->rows[last + 1], &p->rows[row], page))
            last++;
        const size_t n_pages = common_pages(p, row, last, page) - page;
        p->spans[p->n_spans++] = (struct attention_span){
            .first_row = row - block->first_row,
            .n_rows = last + 1 - row,
            .first_page = page,
            .n_keys = keys_seen(p, row, last + 1, page, n_pages),
        };
        row = last + 1;
    }
}

/* The spans found so far are the queue of those whose rows go on. */
static void add_block(struct attention_plan *p, size_t first_row, size_t n_rows)
{
    struct attention_block *block = &p->blocks[p->n_blocks++];
    *block = (struct attention_block){
        .first_row = first_row, .n_rows = n_rows, .first_span = p->n_spans};
    add_spans(p, block, first_row, first_row + n_rows, 0);
    for (size_t i = block->first_span; i < p->n_spans; i++) {
        const struct attention_span *span = &p->spans[i];
        const size_t row = first_row + span->first_row;
        add_spans(p, block, row, row + span->n_rows,
                  span->first_page + size_divide_up(span->n_keys, KV_PAGE_TOKENS));
    }
    block->n_spans = p->n_spans - block->first_span;
}

/* ------------------------------------------------------------------ the plan */

size_t attention_heads(const struct forward *f)
{
    return f->config->n_heads / f->config->n_kv_heads;
}

size_t attention_rows_max(const struct forward *f)
{
    if (f->options.device && f->options.device->info.block_rows > 0)
        return f->options.device->info.block_rows;
    const size_t rows = BLOCK_QUERIES / attention_heads(f);
    return rows > 0 ? rows : 1;
}

void forward_attention_plan(struct forward *f)
{
    struct attention_plan *p = &f->attention;
    const bool ordered = f->options.shared_attention;
    list_pieces(p, f->plan, ordered);
    list_rows(p, ordered);
    ASSERT(p->n_rows == f->plan->n_rows);
    const size_t block_rows = choose_block_rows(f);
    p->n_blocks = p->n_spans = 0;
    size_t row = 0;
    for (size_t i = 0; i < p->n_trees; i++) {
        const size_t n_rows = p->tree_rows[i];
        const size_t n_blocks = size_divide_up(n_rows, block_rows);
        for (size_t k = 0; k < n_blocks; k++) {
            const size_t begin = k * n_rows / n_blocks, end = (k + 1) * n_rows / n_blocks;
            add_block(p, row + begin, end - begin);
        }
        row += n_rows;
    }
    ASSERT(p->n_spans <= 2 * p->n_rows);
}
