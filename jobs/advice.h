/*
 * Advice for who writes the jobs: a piece that differs from job to job (a time, a name, an id,
 * one space) and stands early in otherwise equal prompts ends the shared prefix there. Moved to
 * the end of the prompt it would cost nothing.
 *
 *   system: It is [08:15:27]. Answer from the document. Document 1: ...     leader
 *   system: It is [09:02]. Answer from the document. Document 1: ...        member, shift -3
 *                 ^start   ^end            equal again for ADVICE_RUN_TOKENS or more
 *
 * Two prompts break at a piece when they differ from a token on, and no more than
 * ADVICE_PIECE_TOKENS later on each side the same long run begins. Such runs are found by
 * samples of 32 tokens that do not depend on where they stand: a run of ADVICE_RUN_TOKENS has
 * one for certain as long as there are few enough of them for the table, a longer run with many
 * documents almost surely. A prompt is compared with the first that had the sample, the leader,
 * never with all others. Groups that break at the same place after the same tokens are one
 * finding, and what it saves is no estimate: the pieces are moved, and the best possible
 * sharing is counted before and after.
 *
 * Each finding is counted alone. Two findings over the same jobs do not add up; what a second
 * piece hides behind the first shows once the first is gone.
 *
 * Bounds, for n prompts of T tokens together, whatever they hold: time O(T + n log n) (a prompt
 * is laid beside 4 others at most, and 16 places are counted); memory 160 bytes a prompt and
 * 16 MiB; no token is copied.
 */
#ifndef SHEAF_ADVICE_H
#define SHEAF_ADVICE_H

#include "base/err.h"
#include "group_prompt.h"

enum {
    ADVICE_RUN_TOKENS = 64,   /* so many equal tokens again after a piece */
    ADVICE_PIECE_TOKENS = 64, /* longest piece that two prompts differ in */
    ADVICE_SPAN_TOKENS = 128, /* longest piece of a group; several differences may lie in it */
    ADVICE_FINDINGS_MAX = 10, /* best first */
    ADVICE_PROMPTS_MAX = 1 << 24,
};

struct advice_options {
    size_t tokens_min;  /* a hit of fewer tokens is none */
    uint64_t saved_min; /* findings that save less are left out */
};

struct advice_piece {
    size_t prompt; /* index into the caller's prompts */
    size_t start, end;
};

struct advice_finding {
    size_t position;                /* token where the shared prefix ends today */
    struct advice_piece example[2]; /* the same piece in two prompts; one may be empty */
    size_t n_jobs;
    size_t shared_tokens;  /* per job, on average, were the piece at the end */
    uint64_t saved_tokens; /* of all jobs together, more than today */
};

struct advice {
    struct advice_finding findings[ADVICE_FINDINGS_MAX];
    size_t n_findings;
    /* The most that a prefix cache can save as the prompts are: memory without limit, hits
     * exact to the token, the last token of every prompt computed in any case. */
    uint64_t cached_tokens;
};

/* ERR_NOMEM; ERR_LIMIT above ADVICE_PROMPTS_MAX prompts or a prompt of 2^31 tokens. Pure.
 * Thread: any. */
int advice_find(const struct group_prompt *prompts, size_t n, const struct advice_options *o,
                struct advice *out, struct err *e);

#endif
