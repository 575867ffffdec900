/*
 * Samples of a text that do not depend on where it stands (winnowing): of the hashes of any
 * GRAM_WINDOW neighbouring runs of GRAM_TOKENS tokens the smallest is a sample. Two prompts
 * with ADVICE_RUN_TOKENS equal tokens at any two places have a sample of them in common.
 */
#include "advice_int.h"

#include <stdlib.h>

enum { TABLE_SLOTS_MAX = 1 << 20 };

static const uint64_t base = 0x9e3779b97f4a7c15u;

/* base to the power of GRAM_TOKENS - 1 */
static uint64_t top_power(void)
{
    uint64_t power = 1;
    for (int i = 1; i < GRAM_TOKENS; i++)
        power *= base;
    return power;
}

static uint64_t mix(uint64_t x)
{
    x = (x ^ (x >> 33)) * 0xff51afd7ed558ccdu;
    x = (x ^ (x >> 33)) * 0xc4ceb9fe1a85ec53u;
    return x ^ (x >> 33);
}

void gram_scan_begin(struct gram_scan *scan, const struct advice_view *view, size_t from)
{
    *scan = (struct gram_scan){
        .tokens = view->tokens, .n = view->n, .first = from, .at = from, .seed = view->salt};
    for (size_t i = from; i < from + GRAM_TOKENS - 1 && i < view->n; i++)
        scan->rolling = scan->rolling * base + (uint32_t)view->tokens[i] + 1;
}

static uint64_t hash_next(struct gram_scan *scan)
{
    const uint64_t in = (uint32_t)scan->tokens[scan->at + GRAM_TOKENS - 1];
    scan->rolling = scan->rolling * base + in + 1;
    const uint64_t hash = mix(scan->rolling + mix(scan->seed + 1));
    const uint64_t out = (uint32_t)scan->tokens[scan->at];
    scan->rolling -= (out + 1) * top_power();
    scan->ring[scan->at % GRAM_WINDOW] = hash;
    scan->at++;
    return hash;
}

static void choose_best(struct gram_scan *scan)
{
    scan->best = scan->at - 1;
    for (size_t i = 2; i <= GRAM_WINDOW; i++)
        if (scan->ring[(scan->at - i) % GRAM_WINDOW] < scan->ring[scan->best % GRAM_WINDOW])
            scan->best = scan->at - i;
    scan->has_best = true;
}

bool gram_scan_next(struct gram_scan *scan, size_t *position, uint64_t *hash)
{
    bool found = false;
    while (!found && scan->at + GRAM_TOKENS <= scan->n) {
        const uint64_t next = hash_next(scan);
        if (scan->at - scan->first < GRAM_WINDOW)
            continue;
        const bool is_gone = !scan->has_best || scan->best + GRAM_WINDOW < scan->at;
        if (is_gone)
            choose_best(scan);
        else if (next < scan->ring[scan->best % GRAM_WINDOW])
            scan->best = scan->at - 1;
        else
            continue;
        found = true;
        *position = scan->best;
        *hash = scan->ring[scan->best % GRAM_WINDOW];
    }
    return found;
}

int gram_table_init(struct gram_table *table, uint64_t n_tokens, struct err *e)
{
    /* Two samples in GRAM_WINDOW + 1 tokens; half of the slots stay free. */
    const uint64_t wanted = 4 * (n_tokens / GRAM_WINDOW) + 64;
    *table = (struct gram_table){.capacity = 64};
    while (table->capacity < wanted && table->capacity < TABLE_SLOTS_MAX)
        table->capacity *= 2;
    for (uint64_t left = wanted; left > TABLE_SLOTS_MAX; left /= 2)
        table->mask = 2 * table->mask + 1;
    table->slots = calloc(table->capacity, sizeof table->slots[0]);
    return table->slots ? 0 : ERR_SET(e, ERR_NOMEM, "no memory to compare prompts");
}

void gram_table_fini(struct gram_table *table)
{
    free(table->slots);
    *table = (struct gram_table){0};
}

const struct gram_slot *gram_table_add(struct gram_table *table, uint64_t hash, uint32_t prompt,
                                       uint32_t position)
{
    const uint64_t key = hash ? hash : 1;
    size_t at = (size_t)(key >> 20) & (table->capacity - 1); /* the low bits are the mask's */
    while (table->slots[at].hash != 0 && table->slots[at].hash != key)
        at = (at + 1) & (table->capacity - 1);
    if (table->slots[at].hash == key)
        return &table->slots[at];
    if (4 * (table->length + 1) > 3 * table->capacity)
        return NULL;
    table->slots[at] = (struct gram_slot){.hash = key, .prompt = prompt, .position = position};
    table->length++;
    return NULL;
}
