/*
 * Where the time of a worker goes: laps of a clock, each given to a stage, so that the stages
 * of one thread add up to the whole time of that thread.
 *
 * Thread: each struct laps, and each stage, belongs to one.
 */
#ifndef SHEAF_STAGES_H
#define SHEAF_STAGES_H

#include <stdint.h>

enum stage {
    /* The engine's thread. */
    STAGE_START,   /* model, engine and database are opened */
    STAGE_WAIT,    /* for jobs, with nothing to compute */
    STAGE_WINDOW,  /* read-ahead, and submitting to the engine */
    STAGE_STEP,    /* engine steps, with planning and accepting tokens */
    STAGE_COLLECT, /* what is finished becomes a result and goes to delivery */
    STAGE_OTHER,   /* signals, progress */
    STAGE_CLOSE,   /* the last answers are stored and delivered */
    /* Intake's, beside it. */
    STAGE_TAKE,   /* input is read, or waited for */
    STAGE_LOOKUP, /* is it answered already? */
    STAGE_PARSE,  /* parsing, documents, tokenizing */
    STAGE_FULL,   /* the engine has jobs enough */
    /* Delivery's, beside it. */
    STAGE_IDLE, /* nothing to deliver */
    STAGE_EMIT,
    STAGE_STORE,
    STAGE_DELIVER,
    STAGE_COUNT,
};

const char *stages_name(enum stage stage); /* "start_us": a key of the database */

struct laps {
    int64_t *us; /* [STAGE_COUNT]; borrowed */
    int64_t last_us;
};

/* began_us: of the monotonic clock. */
void stages_begin(struct laps *laps, int64_t *us, int64_t began_us);
/* The time since the last lap was spent in this stage. */
void stages_lap(struct laps *laps, enum stage stage);

#endif
