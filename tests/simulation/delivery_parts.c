#include "delivery_world_int.h"

#include <stdlib.h>
#include <string.h>

#include "base/check.h"

const char *world_found;

/* Made once and filled from a worker's bytes before each use. */
static struct kafka_partition *pool[WORLD_PARTITIONS];
static struct kafka_partition *items[WORLD_PARTITIONS + 1];
struct kafka_partitions world_ps = {.items = items, .capacity = WORLD_PARTITIONS + 1};

static struct kafka_partition *make_partition(int id)
{
    struct kafka_partitions made = {0};
    const struct offset_bits nothing = {.base = -1};
    int64_t start;
    ASSERT(kafka_partitions_assign(&made, TOPIC, id, &nothing, &start, NULL) == 0);
    struct kafka_partition *p = made.items[0];
    free(made.items);
    return p;
}

static void free_partition(struct kafka_partition *p)
{
    struct kafka_partitions dropped = {0};
    if (!p)
        return;
    dropped.items = malloc(sizeof(struct kafka_partition *));
    ASSERT(dropped.items);
    dropped.items[0] = p;
    dropped.n = dropped.capacity = 1;
    kafka_partitions_fini(&dropped);
}

void world_free_scratch(void)
{
    for (int p = 0; p < WORLD_PARTITIONS; p++) {
        free_partition(pool[p]);
        pool[p] = NULL;
    }
}

void world_load(const struct worker *k)
{
    world_ps.n = 0;
    world_ps.leases = WORLD_PARTITIONS;
    for (int i = 0; i < WORLD_PARTITIONS; i++) {
        if (!k->held[i].exists)
            continue;
        if (!pool[i])
            pool[i] = make_partition(i);
        struct kafka_partition *p = world_ps.items[world_ps.n++] = pool[i];
        struct offset_tracker *t = &p->tracker;
        p->lease = (uint64_t)i + 1;
        p->is_owned = k->held[i].is_owned;
        t->watermark = k->held[i].watermark;
        t->next = k->held[i].next;
        t->known_end = k->held[i].known_end;
        t->bits[0] = k->held[i].unsettled;
        t->known[0] = k->held[i].known;
        t->n_unsettled = (size_t)__builtin_popcount(k->held[i].unsettled);
        t->weight_unsettled = t->n_unsettled;
        for (int slot = 0; slot < 8; slot++)
            t->weights[slot] = 1;
    }
}

void world_save(struct worker *k)
{
    bool is_there[WORLD_PARTITIONS] = {false};
    for (size_t i = 0; i < world_ps.n; i++) {
        const struct kafka_partition *p = world_ps.items[i];
        const struct offset_tracker *t = &p->tracker;
        is_there[p->id] = true;
        if (pool[p->id] != p && !k->held[p->id].exists)
            free_partition(pool[p->id]);
        pool[p->id] = world_ps.items[i];
        if (!offset_tracker_is_sound(t))
            world_found = "a tracker is not sound";
        k->held[p->id].is_owned = p->is_owned;
        k->held[p->id].watermark = (int8_t)t->watermark;
        k->held[p->id].next = (int8_t)t->next;
        k->held[p->id].known_end = (int8_t)(t->known[0] ? t->known_end : 0);
        k->held[p->id].unsettled = (uint8_t)t->bits[0];
        k->held[p->id].known = (uint8_t)t->known[0];
    }
    for (int i = 0; i < WORLD_PARTITIONS; i++) {
        if (k->held[i].exists && !is_there[i])
            pool[i] = NULL; /* the program has freed it */
        if (!is_there[i])
            memset(&k->held[i], 0, sizeof k->held[i]);
        k->held[i].exists = is_there[i];
    }
}

/* What is committed, as a worker reads it: through the text beside the offset. */
void world_read_text(const struct settled *s, struct offset_bits *out)
{
    *out = (struct offset_bits){.base = -1};
    if (!s->is_set)
        return;
    struct offset_bits bits = {.base = s->base, .bits = {s->bits}};
    bits.n_bits = s->bits ? 32 - (size_t)__builtin_clz(s->bits) : 0;
    char text[OFFSET_METADATA_MAX + 1];
    const size_t length = offset_metadata_encode(&bits, text);
    if (offset_metadata_decode(text, length, s->base, out) != NULL ||
        out->n_bits != bits.n_bits || out->bits[0] != s->bits)
        world_found = "a text beside an offset says something else than was written";
}

struct settled world_settled_of(const struct offset_bits *bits)
{
    return (struct settled){.is_set = 1, .base = (int8_t)bits->base, .bits = bits->bits[0]};
}

bool world_is_settled(const struct settled *s, int job)
{
    const int64_t above = offset_of(job) - s->base;
    return s->is_set && (above < 0 || (above < 8 && s->bits >> above & 1));
}
