/* What forward_device*.c share. */
#ifndef SHEAF_FORWARD_DEVICE_INT_H
#define SHEAF_FORWARD_DEVICE_INT_H

#include "engine/engine_device.h"
#include "engine/forward_int.h"

enum { STEPS_BEGUN_MAX = 2 };

/* What is read of a row of logits. */
enum wanted_of_row { WANTS_LOGITS, WANTS_BEST, WANTS_CANDIDATES };

/* Of a step's logits. */
struct wanted {
    size_t n_logits; /* 0 also when there is no head */
    uint8_t *of_row; /* [n_logits_max] enum wanted_of_row */
};

enum logits_state { LOGITS_AWAY, LOGITS_WANTED, LOGITS_HERE };

struct forward_device {
    /* The step that was begun last, as the device takes it (forward_device_step.c). */
    int32_t *tokens, *kv_slots;     /* [T] */
    int32_t *positions;             /* [T] */
    int32_t *lists;                 /* [T] where the pages of a row's sequence begin */
    struct device_attend_row *rows; /* [T] */
    struct device_span *spans;      /* [2 T] */
    struct device_block *blocks;    /* [T] */
    struct device_branch *branches; /* [T] */
    int32_t *pages, *slots;         /* [n_page_refs_max], [n_slots_max] */
    size_t n_pages, n_slots;
    size_t n_page_refs_max, n_slots_max;
    int32_t *logits_rows; /* [n_logits_max] */
    float *temperatures;  /* [n_logits_max] */
    float *angles;        /* [n_positions_max, n_rot / 2, 2] */
    size_t n_angles;      /* positions whose they are */

    struct wanted steps[STEPS_BEGUN_MAX];
    struct wanted *begun; /* of the step that was begun last */
    struct wanted *ended; /* of the one whose results these are */
    size_t n_begun;       /* steps that have not ended */

    /* Of the step that has ended. */
    int32_t *best;                        /* [n_logits_max] */
    struct device_candidates *candidates; /* [n_logits_max] */
    uint8_t *logits_state;                /* [n_logits_max] enum logits_state */
    int32_t *rows_to_read;                /* [n_logits_max] scratch */
    bool has_hidden;                      /* its hidden rows are here */
};

/* The plan in the device's arrays; d->begun says what is asked of its logits. */
void forward_device_fill(struct forward *f);
/* What was filled in; layers and head are for the caller to say. */
struct device_step forward_device_step_of(const struct forward *f);

#endif
