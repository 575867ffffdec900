/*
 * Jobs that run alone, and whose turn it is: nothing is begun beside them, and they begin when
 * the engine is empty.
 *
 * The first has its turn at once: what runs is let to its end and nothing is added. After each
 * one as many other jobs as the engine holds come before the next, so that neither waits for
 * ever. Where nothing else waits, suspects follow each other.
 *
 * A pure state machine. Thread: the engine's.
 */
#ifndef SHEAF_ALONE_H
#define SHEAF_ALONE_H

#include "job.h"

struct alone {
    struct job *first, **last; /* by job->next, in order of arrival */
    size_t n;
    size_t turn;     /* others between two */
    size_t n_owed;   /* that come before the next */
    bool is_running; /* one is in the engine */
};

void alone_init(struct alone *a, size_t turn);
void alone_add(struct alone *a, struct job *job); /* takes it */
/* Nothing else may be begun now. */
bool alone_has_turn(const struct alone *a, bool others_wait);
/* The engine is empty: what ran alone has ended. The next, or NULL: it is the others' turn. */
struct job *alone_next(struct alone *a, bool others_wait);
void alone_note_other(struct alone *a); /* some other job was begun */
void alone_drop(struct alone *a);       /* frees those that wait */

#endif
