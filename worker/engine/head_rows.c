#include "engine/head_rows.h"

#include <stdlib.h>

#include "base/check.h"
#include "engine/engine_device.h"
#include "engine/head_drafts.h"

struct place {
    struct head_seq *owner; /* or NULL */
    uint64_t noted;         /* the keeping it was last noted for */
};

struct head_rows {
    struct engine_device *device;
    struct place *places;
    size_t n_places;
    uint64_t n_keeps; /* and the one to come */
    /* Noted for it. */
    int32_t *logits_rows, *to; /* [n_places] */
    size_t n_noted;
};

int head_rows_open(struct engine_device *device, size_t n_places, struct head_rows **out,
                   struct err *e)
{
    *out = NULL;
    struct head_rows *r = calloc(1, sizeof *r);
    if (!r)
        return ERR_SET(e, ERR_NOMEM, "no memory for rows of heads");
    *r = (struct head_rows){.device = device, .n_places = n_places, .n_keeps = 1};
    r->places = calloc(n_places, sizeof r->places[0]);
    r->logits_rows = calloc(n_places, sizeof r->logits_rows[0]);
    r->to = calloc(n_places, sizeof r->to[0]);
    if (!r->places || !r->logits_rows || !r->to) {
        head_rows_close(r);
        return ERR_SET(e, ERR_NOMEM, "no memory for rows of heads");
    }
    *out = r;
    return 0;
}

void head_rows_close(struct head_rows *r)
{
    if (!r)
        return;
    free(r->places);
    free(r->logits_rows);
    free(r->to);
    free(r);
}

/* Free ones were last noted longest ago. */
static size_t oldest(const struct head_rows *r)
{
    size_t best = 0;
    for (size_t i = 1; i < r->n_places; i++)
        if (r->places[i].noted < r->places[best].noted)
            best = i;
    return best;
}

static void take_place(struct head_rows *r, struct head_seq *h)
{
    const size_t i = oldest(r);
    struct place *place = &r->places[i];
    ASSERT(place->noted < r->n_keeps);
    if (place->owner) {
        place->owner->place = HEAD_PLACE_NONE;
        place->owner->hidden_for = 0;
    }
    place->owner = h;
    h->place = (int32_t)i;
}

void head_rows_note(struct head_rows *r, struct head_seq *h, size_t logits_row)
{
    if (h->place == HEAD_PLACE_NONE)
        take_place(r, h);
    struct place *place = &r->places[h->place];
    ASSERT(place->owner == h && place->noted < r->n_keeps && r->n_noted < r->n_places);
    place->noted = r->n_keeps;
    r->logits_rows[r->n_noted] = (int32_t)logits_row;
    r->to[r->n_noted++] = h->place;
}

void head_rows_keep(struct head_rows *r)
{
    if (r->n_noted > 0)
        engine_device_keep_hidden(r->device, r->n_noted, r->logits_rows, r->to);
    r->n_noted = 0;
    r->n_keeps++;
}

void head_rows_drop(struct head_rows *r, struct head_seq *h)
{
    if (h->place == HEAD_PLACE_NONE)
        return;
    r->places[h->place] = (struct place){0};
    h->place = HEAD_PLACE_NONE;
}
