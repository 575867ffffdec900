/* A measured half of a pair, as `sheaf bench levers` keeps it in table experiments. */
#ifndef SHEAF_STORE_EXPERIMENT_H
#define SHEAF_STORE_EXPERIMENT_H

#include "io/store.h"

struct store_experiment {
    const char *experiment_id;
    const char *lever; /* key of its setting */
    const char *name;
    const char *job_kind; /* of the jobs; "all": not told apart */
    int64_t repeat, position;
    bool lever_on;
    int64_t started_us; /* wall */
    const char *cpu, *kernels, *model, *model_sha256, *quant, *version;
    const char *settings_json;             /* one JSON object */
#define FIGURE_COUNT               int64_t /* below zero: NULL */
#define FIGURE_REAL                double  /* not a number: NULL */
#define FIGURE(column, kind, help) FIGURE_##kind column;
#include "schema/experiments.def"
#undef FIGURE
};

int store_put_experiment(struct store *s, const struct store_experiment *x, struct err *e);

#endif
