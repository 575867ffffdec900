/*
 * The most that a prefix cache could ever save on a set of prompts: memory without limit, the
 * best order, hits exact to the token. Counted by plain sorting: jobs/advice.c counts the same
 * in another way, and is held against this.
 *
 * In a trie of the prompts' tokens every token is computed once, by the first prompt that has
 * it; later prompts find it. Two rules of the cache cost something: at least the last token of
 * every prompt is computed, and a hit of fewer than tokens_min tokens is none. Salts (NULL is
 * "") are separate tries.
 *
 * The order of the input does not matter. The best order is that of a dictionary: a prompt that
 * another one goes on from comes before it, and each finds the longest prefix that anything
 * before it has at its neighbour. Any other order gives the same number, or loses a token
 * wherever the longer of two such prompts comes first.
 *
 * Answers are not known beforehand: a prompt that repeats one (the next turn of a dialogue) may
 * find more than this.
 *
 * Memory: a pointer for each prompt, and as much again while it sorts; nothing of the tokens is
 * copied. Time: each prompt is compared about log2(n) times, up to the first difference.
 */
#ifndef SHEAF_GROUP_IDEAL_H
#define SHEAF_GROUP_IDEAL_H

#include "base/err.h"
#include "group_prompt.h"

/* Sets *cached to the number of prompt tokens, of all prompts together, that need no computing.
 * ERR_NOMEM only. Pure. Thread: any. */
int group_ideal_cached(const struct group_prompt *prompts, size_t n, size_t tokens_min,
                       uint64_t *cached, struct err *e);

#endif
