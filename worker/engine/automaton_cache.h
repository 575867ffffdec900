/*
 * Automatons over prompts, one for all prompts that begin alike: jobs with questions about the
 * same document look up the same index of it.
 *
 *     first job     [ document            ][ question ]     indexed as a whole
 *     the next one  [ document            ][ another  ]     begins alike: the same index
 *                   [ another document             ][ question ]    indexed too
 *
 * What is kept and what building takes stay below bytes_max together. What nobody uses any
 * more goes when there is no room for a new one, least recently asked for first; what somebody
 * uses stays, and then a new prompt is not indexed. Salts share nothing.
 *
 * Memory is taken in open and get only. Thread: the engine's.
 */
#ifndef SHEAF_AUTOMATON_CACHE_H
#define SHEAF_AUTOMATON_CACHE_H

#include "engine/automaton.h"

struct automaton_cache;

int automaton_cache_open(size_t bytes_max, struct automaton_cache **out, struct err *e);
void automaton_cache_close(struct automaton_cache *c); /* accepts NULL */

/*
 * An automaton over a text that begins as the prompt does; *n_shared tokens of it are the
 * prompt's: all, or all but a few. *out has one reference more, which is the caller's to close;
 * it is NULL when there is no room. ERR_NOMEM only.
 */
int automaton_cache_get(struct automaton_cache *c, const char *salt, const int32_t *prompt,
                        size_t n_prompt, struct automaton **out, size_t *n_shared,
                        struct err *e);

size_t automaton_cache_bytes(const struct automaton_cache *c); /* kept */

#endif
