/*
 * Drafted tokens of one sequence: a trie below its last token, whose own keys are not computed
 * yet either.
 *
 *     ... the last | cat ---- sat ---- on          nodes, depth first: 0 cat, 1 sat, 2 on,
 *                  |   \----- ran                  3 ran, 4 dog
 *                  | dog
 *
 * One step computes the last token and all nodes as rows of one segment. What comes out of a
 * row is drawn as it always is; as long as the token drawn is a node below the row's own, that
 * node's row is there already and one more token can be drawn. So a draft decides how many
 * tokens a step yields and never which.
 *
 * Row k of the segment, node k - 1, writes its keys and values into the k-th slot behind the
 * last token's, wherever in the text it belongs. Depth first, best child first, the likeliest
 * path lies where its positions are, so that nothing need be moved when it is drawn.
 */
#ifndef SHEAF_DRAFT_H
#define SHEAF_DRAFT_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/limits.h"

struct seq;

enum draft_source {
    DRAFT_MEDUSA,
    DRAFT_LOOKUP,
    DRAFT_SELF,
    DRAFT_PREDICTION,
    DRAFT_RECYCLE,
    DRAFT_MODEL,
    DRAFT_SOURCES
};
const char *draft_source_name(enum draft_source source); /* "lookup", "self", ... */

enum { DRAFT_ROOT = -1, DRAFT_NONE = -1 };

struct draft_node {
    int32_t token;
    int16_t parent;  /* a node before it, or DRAFT_ROOT: the last committed token */
    uint8_t depth;   /* 1 for children of the root */
    uint8_t sources; /* bit mask of enum draft_source */
    float p;         /* that the model draws it, given its parent was drawn; in (0, 1] */
};

/* Parents stand before children; siblings have different tokens. */
struct draft {
    size_t n_nodes;
    struct draft_node nodes[DRAFT_NODES_MAX];
};

/*
 * Adds a child of a node or of DRAFT_ROOT and returns its index; DRAFT_NONE, under which
 * nothing may be added, when it is full. source is one of enum draft_source. A token that
 * stands there already is the same node: its p is the greater one where the source has named it
 * before, and that of either being right where another has.
 */
int draft_add(struct draft *d, int parent, int32_t token, unsigned source, float p);

/* The child with this token, or DRAFT_NONE. */
int draft_find(const struct draft *d, int parent, int32_t token);

/* Renumbers: depth first, the child of greater p first, equals as they stood. Nodes whose p was
 * set to 0 are left out, and what hangs below them: that is how a draft is cut. */
void draft_order(struct draft *d);

/* Sets p to 0 of nodes that no step can use: tokens outside the vocabulary, and what lies
 * deeper than depth_max. */
void draft_refuse(struct draft *d, size_t n_vocab, size_t depth_max);

/* Is it a trie as described above? */
bool draft_check(const struct draft *d);

/* Nodes that steps computed; one that several sources named counts for each of them. */
struct draft_counters {
    uint64_t drafts;
    uint64_t drafted; /* = accepted + rejected */
    uint64_t accepted, rejected;
    uint64_t drafted_at[DRAFT_NODES_MAX + 1], accepted_at[DRAFT_NODES_MAX + 1]; /* depth */
    uint64_t drafted_by[DRAFT_SOURCES], accepted_by[DRAFT_SOURCES];
    /* Steps in which it was asked, and was not because it does not pay (spec_gate.h); and how
     * long it took. Sources that are asked together count together, each of them all. */
    uint64_t asked[DRAFT_SOURCES], unasked[DRAFT_SOURCES];
    uint64_t asked_us[DRAFT_SOURCES];
    uint64_t lacked_pages; /* besides: cut before the step because pages were short */
    int64_t draft_us;      /* for asking, in vain or not */
};

/*
 * Where drafts come from: sources that are asked together. propose adds nodes to a draft, in
 * which others' may stand, for a sequence that decodes in the coming step: the children of
 * DRAFT_ROOT follow seq->tokens[n_tokens - 1]. n_max are of use; of more, in any order, the
 * caller drops what draft_order puts last.
 * prepare, unless NULL, is told before all sequences that will be asked in the step, so that
 * what a source computes is computed for all of them at once.
 * Thread: the engine's, between steps.
 */
struct draft_proposer {
    void (*propose)(void *ctx, const struct seq *seq, size_t n_max, struct draft *out);
    void (*prepare)(void *ctx, struct seq *const *seqs, size_t n_seqs);
    void *ctx;
    unsigned sources; /* bit mask of enum draft_source */
    bool invests;     /* its first askings bring nothing, for later ones to bring more */
};

enum { DRAFT_PROPOSERS_MAX = 3 }; /* of an engine */

#endif
