#include "delayed.h"

#include <stdlib.h>
#include <string.h>

#include "job_record.h"

static void output_fini(struct transport_output *o)
{
    struct job_source *source = (struct job_source *)o->source;
    if (source)
        free(source->topic);
    free(source);
    if (o->record)
        job_record_fini((struct job_record *)o->record);
    free((struct job_record *)o->record);
    free((struct job_error *)o->error);
    free((char *)o->custom_id);
    free((char *)o->line);
    *o = (struct transport_output){0};
}

/* What a dead letter is made of. */
static int failure_copy(const struct transport_output *from, struct transport_output *out)
{
    struct job_record *record = calloc(1, sizeof *record);
    struct job_error *error = malloc(sizeof *error);
    out->record = record;
    out->error = error;
    if (!record || !error || !job_record_copy(from->record, record))
        return ERR_NOMEM;
    *error = *from->error;
    return 0;
}

static int output_copy(const struct transport_output *from, struct transport_output *out)
{
    struct job_source *source = malloc(sizeof *source);
    *out = (struct transport_output){
        .source = source, .stage = from->stage, .attempts = from->attempts};
    if (!source)
        return ERR_NOMEM;
    *source = *from->source;
    source->topic = strdup(from->source->topic);
    out->custom_id = strdup(from->custom_id);
    out->line = from->line ? strdup(from->line) : NULL;
    if (!source->topic || !out->custom_id || (from->line && !out->line))
        return ERR_NOMEM;
    return from->record && from->error ? failure_copy(from, out) : 0;
}

static int compare(const struct job_source *a, const struct job_source *b)
{
    const int by_topic = strcmp(a->topic, b->topic);
    if (by_topic != 0)
        return by_topic;
    if (a->partition != b->partition)
        return a->partition < b->partition ? -1 : 1;
    return a->offset < b->offset ? -1 : a->offset > b->offset;
}

static int reserve_one(struct delayed *d)
{
    if (d->n < d->capacity)
        return 0;
    const size_t capacity = d->capacity ? 2 * d->capacity : 64;
    struct transport_output *outputs = realloc(d->outputs, capacity * sizeof outputs[0]);
    if (!outputs)
        return ERR_NOMEM;
    d->outputs = outputs;
    d->capacity = capacity;
    return 0;
}

int delayed_add(struct delayed *d, const struct transport_output *output, struct err *e)
{
    struct transport_output copy = {0};
    if (reserve_one(d) != 0 || output_copy(output, &copy) != 0) {
        output_fini(&copy);
        return ERR_SET_FLAGS(e, ERR_NOMEM, ERR_RETRY,
                             "no memory for a result that waits for others");
    }
    size_t at = d->n;
    while (at > 0 && compare(copy.source, d->outputs[at - 1].source) < 0)
        at--;
    if (at > 0 && compare(copy.source, d->outputs[at - 1].source) == 0) {
        output_fini(&d->outputs[at - 1]);
        d->outputs[at - 1] = copy;
        return 0;
    }
    memmove(d->outputs + at + 1, d->outputs + at, (d->n - at) * sizeof copy);
    d->outputs[at] = copy;
    d->n++;
    return 0;
}

void delayed_keep(struct delayed *d, const bool *is_kept)
{
    size_t kept = 0;
    for (size_t i = 0; i < d->n; i++) {
        if (is_kept[i])
            d->outputs[kept++] = d->outputs[i];
        else
            output_fini(&d->outputs[i]);
    }
    d->n = kept;
}

void delayed_fini(struct delayed *d)
{
    for (size_t i = 0; i < d->n; i++)
        output_fini(&d->outputs[i]);
    free(d->outputs);
    *d = (struct delayed){0};
}
