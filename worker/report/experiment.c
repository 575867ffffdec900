#include "report/experiment.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "report/percentile.h"

size_t experiment_state(size_t n_states, size_t position)
{
    ASSERT(n_states > 0);
    const size_t at = position % n_states;
    return position / n_states % 2 == 0 ? at : n_states - 1 - at;
}

struct quantiles experiment_quantiles(int64_t *us, size_t n)
{
    if (n == 0)
        return (struct quantiles){NAN, NAN, NAN};
    percentile_sort(us, n);
    return (struct quantiles){(double)percentile_of(us, n, 50) / 1000,
                              (double)percentile_of(us, n, 95) / 1000,
                              (double)percentile_of(us, n, 99) / 1000};
}

bool experiment_is_same(const struct experiment_answer *a, const struct experiment_answer *b)
{
    if (!a->text || !b->text)
        return !a->text && !b->text;
    return a->reason == b->reason && a->n_tokens == b->n_tokens && a->n_text == b->n_text &&
           memcmp(a->text, b->text, a->n_text) == 0;
}
