#include "engine/head_places.h"

#include <stdlib.h>

#include "base/check.h"
#include "engine/engine_device.h"
#include "engine/head_drafts.h"

struct place {
    struct head_seq *owner; /* or NULL */
    uint64_t noted;         /* the keeping it was last noted for */
};

struct head_places {
    struct engine_device *device;
    struct place *places;
    size_t n_places;
    uint64_t n_keeps; /* and the one to come */
    /* Noted for it. */
    int32_t *logits_rows, *to; /* [n_places] */
    size_t n_noted;
};

int head_places_open(struct engine_device *device, size_t n_places, struct head_places **out,
                     struct err *e)
{
    *out = NULL;
    struct head_places *p = calloc(1, sizeof *p);
    if (!p)
        return ERR_SET(e, ERR_NOMEM, "no memory for rows of heads");
    *p = (struct head_places){.device = device, .n_places = n_places, .n_keeps = 1};
    p->places = calloc(n_places, sizeof p->places[0]);
    p->logits_rows = calloc(n_places, sizeof p->logits_rows[0]);
    p->to = calloc(n_places, sizeof p->to[0]);
    if (!p->places || !p->logits_rows || !p->to) {
        head_places_close(p);
        return ERR_SET(e, ERR_NOMEM, "no memory for rows of heads");
    }
    *out = p;
    return 0;
}

void head_places_close(struct head_places *p)
{
    if (!p)
        return;
    free(p->places);
    free(p->logits_rows);
    free(p->to);
    free(p);
}

/* Free ones were last noted longest ago. */
static size_t oldest(const struct head_places *p)
{
    size_t best = 0;
    for (size_t i = 1; i < p->n_places; i++)
        if (p->places[i].noted < p->places[best].noted)
            best = i;
    return best;
}

static void take_place(struct head_places *p, struct head_seq *h)
{
    const size_t i = oldest(p);
    struct place *place = &p->places[i];
    ASSERT(place->noted < p->n_keeps);
    if (place->owner) {
        place->owner->place = HEAD_PLACE_NONE;
        place->owner->hidden_for = 0;
    }
    place->owner = h;
    h->place = (int32_t)i;
}

void head_places_note(struct head_places *p, struct head_seq *h, size_t logits_row)
{
    if (h->place == HEAD_PLACE_NONE)
        take_place(p, h);
    struct place *place = &p->places[h->place];
    ASSERT(place->owner == h && place->noted < p->n_keeps && p->n_noted < p->n_places);
    place->noted = p->n_keeps;
    p->logits_rows[p->n_noted] = (int32_t)logits_row;
    p->to[p->n_noted++] = h->place;
}

void head_places_keep(struct head_places *p)
{
    if (p->n_noted > 0)
        engine_device_keep_hidden(p->device, p->n_noted, p->logits_rows, p->to);
    p->n_noted = 0;
    p->n_keeps++;
}

void head_places_drop(struct head_places *p, struct head_seq *h)
{
    if (h->place == HEAD_PLACE_NONE)
        return;
    p->places[h->place] = (struct place){0};
    h->place = HEAD_PLACE_NONE;
}
