#include "io/store_experiment.h"

#include <math.h>

#include "io/store_int.h"

static void put_count(struct binder *b, const char *name, int64_t value)
{
    if (value >= 0)
        binder_put_s64(b, name, value);
}

static void put_real(struct binder *b, const char *name, double value)
{
    if (!isnan(value))
        binder_put_double(b, name, value);
}

static void bind_identity(struct binder *b, const struct store_experiment *x)
{
    binder_put_text(b, ":experiment_id", x->experiment_id);
    binder_put_text(b, ":lever", x->lever);
    binder_put_text(b, ":name", x->name);
    binder_put_text(b, ":job_kind", x->job_kind);
    binder_put_s64(b, ":repeat", x->repeat);
    binder_put_s64(b, ":position", x->position);
    binder_put_s64(b, ":lever_on", x->lever_on);
    binder_put_double(b, ":started_at", (double)x->started_us / 1e6);
    binder_put_text(b, ":cpu", x->cpu);
    binder_put_text(b, ":kernels", x->kernels);
    binder_put_text(b, ":model", x->model);
    binder_put_text(b, ":model_sha256", x->model_sha256);
    binder_put_text(b, ":quant", x->quant);
    binder_put_text(b, ":version", x->version);
    binder_put_text(b, ":settings_json", x->settings_json);
}

static void bind_figures(struct binder *b, const struct store_experiment *x)
{
#define BIND_COUNT                 put_count
#define BIND_REAL                  put_real
#define FIGURE(column, kind, help) BIND_##kind(b, ":" #column, x->column);
#include "schema/experiments.def"
#undef FIGURE
}

int store_put_experiment(struct store *s, const struct store_experiment *x, struct err *e)
{
    struct binder b = {0};
    TRY(store_prepare(s, SQL_EXPERIMENT_INSERT, &b.statement, e));
    bind_identity(&b, x);
    bind_figures(&b, x);
    if (b.rc != SQLITE_OK)
        return store_fail(s, e, "bind a measurement");
    return store_finish(s, b.statement, "store a measurement", e);
}
