/*
 * A job's messages and documents -> the conversation that the chat template renders, and where
 * the part that other jobs can share ends.
 *
 * Layout: system text; documents in the given order, each under a heading with its title
 * or number; then, in the user's turn, the documents' block first and the question last, so
 * that jobs over the same documents share every token up to the question. Documents are
 * never dropped and never reordered.
 */
#ifndef SHEAF_PROMPT_H
#define SHEAF_PROMPT_H

#include "job.h"

struct prompt_message {
    enum job_role role;
    char *text; /* owned by the prompt */
    size_t length;
};

struct prompt {
    struct prompt_message *messages;
    size_t n_messages;
    /* The shared part: messages before shared_message in full, and the first shared_bytes of
     * that message. */
    size_t shared_message;
    size_t shared_bytes;
    char group[33]; /* hex of a 128-bit hash of the shared part's bytes, length-framed */
};

int prompt_build(const struct job *job, struct prompt *out, struct err *e);
void prompt_fini(struct prompt *p);

#endif
