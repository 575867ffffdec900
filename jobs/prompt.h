/*
 * A job's messages and documents -> the conversation that the chat template renders, and where
 * the part that other jobs can share ends.
 *
 * Without documents, messages go through as they are. With documents, the first user message
 * becomes (TITLE and its ": " left out when there is none; n counts from 1):
 *
 *   Document n: TITLE\n
 *   TEXT\n
 *   \n
 *   ... one such block per document, in the given order ...
 *   Question: CONTENT
 *
 * Nothing is trimmed, dropped or reordered, so jobs over the same system text and documents
 * share every byte up to "Question: ". The shared part ends there; without documents it ends
 * before the last user message. It ends at a line end or a message's end, where no tokenizer
 * of ours joins what is before with what is behind.
 *
 * This text is a contract: a change of one byte changes answers, groups and cached prefixes.
 */
#ifndef SHEAF_PROMPT_H
#define SHEAF_PROMPT_H

#include "job.h"

struct prompt_message {
    enum job_role role;
    char *text; /* owned by the prompt; NUL-terminated */
    size_t length;
};

struct prompt {
    struct prompt_message *messages; /* none for a completion: its prompt is raw */
    size_t n_messages;
    /* The shared part: messages before shared_message in full, and the first shared_bytes of
     * that message. */
    size_t shared_message;
    size_t shared_bytes;
    /* Hex of XXH3-128 over the shared part: role, length and bytes of each piece. It knows
     * nothing of models and tokens. "" when nothing is shared. */
    char group[33];
};

/* Every reference of the job is resolved: a prompt hangs on texts and titles alone, so that a
 * document by reference and the same text inline give the same bytes and the same group. */
int prompt_build(const struct job *job, struct prompt *out, struct err *e);
void prompt_fini(struct prompt *p);

#endif
