/*
 * Random jobs with their answers, and drafters that know them, guess or err: what the tests of
 * speculation share. A test fails where a step of an engine does.
 */
#ifndef SHEAF_SPEC_RIG_H
#define SHEAF_SPEC_RIG_H

#include "base/limits.h"
#include "engine/engine_int.h"

enum {
    CONTEXT = 160,
    TEXT_MAX = 4096,
    STOPS_MAX = 3,
};

enum drafting {
    KNOWS,       /* the whole answer, in one line */
    KNOWS_BADLY, /* and holds something else for likelier */
    GUESSES,     /* any tokens, any shape, all of them legal or not */
    ERRS,        /* drafts all but the answer */
    IS_MOODY,    /* one of these each time, or nothing */
    N_DRAFTERS
};

struct job {
    int32_t prompt[CONTEXT];
    size_t n_prompt;
    struct seq_request req;
    struct logit_bias bias;
    char stop_bytes[STOPS_MAX][16];
    const char *stops[STOPS_MAX];
    int32_t stop_token;
    enum drafting drafter;
    int32_t prediction[2 * CONTEXT];
    size_t n_prediction;

    /* The answer without speculation. */
    enum finish_reason reason;
    int stop_index;
    int32_t tokens[CONTEXT];
    size_t n_tokens, text_bytes;
    char text[TEXT_MAX];
};

struct dice {
    uint64_t seed, n;
};

struct sources {
    const struct model *model;
    struct dice dice;
    bool misplaces;            /* spoils the last key of a sequence, as a wrong move would */
    const struct heads *heads; /* or NULL; else the engine's own sources draft, which these
                                  may be among */
    struct engine *engine;
};

size_t spec_rig_roll(struct dice *d, size_t limit);
void spec_rig_make_job(struct dice *d, const struct model *m, struct job *job);
void spec_rig_make_heir(struct dice *d, const struct model *m, const struct job *job,
                        struct job *heir);
void spec_rig_submit(struct engine *eng, struct job *job);
void spec_rig_step(struct engine *eng);
void spec_rig_answer_plainly(struct engine *plain, struct job *jobs, size_t n);
bool spec_rig_is_same_answer(const struct job *job, const struct seq_result *r);
void spec_rig_predict(struct dice *d, const struct model *m, struct job *job);
void spec_rig_propose(void *ctx, const struct seq *seq, size_t n_max, struct draft *out);
int32_t spec_rig_any_token(struct dice *d, const struct model *m);

#endif
