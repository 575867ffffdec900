#include <stdlib.h>
#include <string.h>

#include "documents_int.h"

enum { BUCKETS_MIN = 256 };

static int nomem(struct err *e)
{
    return ERR_SET(e, ERR_NOMEM, "no memory for a document");
}

static void entry_free(struct table_entry *entry)
{
    if (!entry)
        return;
    free(entry->ref);
    free(entry->title);
    free(entry->text);
    free(entry->why);
    free(entry);
}

static struct table_entry **place_of(const struct documents_table *t, const char *ref,
                                     uint64_t hash)
{
    struct table_entry **at = &t->buckets[hash & (t->n_buckets - 1)];
    while (*at && ((*at)->hash != hash || strcmp((*at)->ref, ref) != 0))
        at = &(*at)->next;
    return at;
}

static int grow(struct documents_table *t, struct err *e)
{
    if (t->n < t->n_buckets)
        return 0;
    const size_t n = t->n_buckets ? 2 * t->n_buckets : BUCKETS_MIN;
    struct table_entry **buckets = calloc(n, sizeof buckets[0]);
    if (!buckets)
        return nomem(e);
    for (size_t i = 0; i < t->n_buckets; i++) {
        for (struct table_entry *entry = t->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            entry->next = buckets[entry->hash & (n - 1)];
            buckets[entry->hash & (n - 1)] = entry;
        }
    }
    free(t->buckets);
    t->buckets = buckets;
    t->n_buckets = n;
    return 0;
}

void documents_table_remove(struct documents_table *t, const char *ref)
{
    if (t->n_buckets == 0)
        return;
    struct table_entry **at = place_of(t, ref, hash_bytes(ref, strlen(ref)));
    struct table_entry *entry = *at;
    if (!entry)
        return;
    *at = entry->next;
    t->n--;
    t->bytes -= entry->bytes;
    entry_free(entry);
}

static int let_go(struct documents_table *t, uint64_t hash, const char *ref, struct err *e)
{
    if (t->let_go.length < DOCUMENTS_LET_GO_MAX &&
        hash_set_add(&t->let_go, hash) == HASH_SET_NOMEM)
        return nomem(e);
    return ERR_SET(e, ERR_LIMIT, "there is no room for %.80s", ref);
}

/* Takes entry, which replaces what has its name. */
static int insert_take(struct documents_table *t, struct table_entry *entry, struct err *e)
{
    documents_table_remove(t, entry->ref);
    int rc = 0;
    if (entry->bytes > t->bytes_max - t->bytes)
        rc = let_go(t, entry->hash, entry->ref, e);
    else
        rc = grow(t, e);
    if (rc != 0) {
        entry_free(entry);
        return rc;
    }
    struct table_entry **bucket = &t->buckets[entry->hash & (t->n_buckets - 1)];
    entry->next = *bucket;
    *bucket = entry;
    t->n++;
    t->bytes += entry->bytes;
    return 0;
}

static struct table_entry *entry_new(const char *ref)
{
    struct table_entry *entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    entry->ref = strdup(ref);
    if (!entry->ref) {
        free(entry);
        return NULL;
    }
    entry->hash = hash_bytes(ref, strlen(ref));
    entry->bytes = sizeof *entry + strlen(ref) + 1;
    return entry;
}

int documents_table_put_take(struct documents_table *t, const char *ref,
                             struct document *document, struct err *e)
{
    struct table_entry *entry = entry_new(ref);
    if (!entry)
        return nomem(e);
    entry->title = document->title;
    entry->text = document->text;
    entry->length = document->length;
    entry->bytes += entry->length + 1 + (entry->title ? strlen(entry->title) + 1 : 0);
    document->title = NULL;
    document->text = NULL;
    return insert_take(t, entry, e);
}

int documents_table_put_invalid(struct documents_table *t, const char *ref, const char *why,
                                struct err *e)
{
    struct table_entry *entry = entry_new(ref);
    if (!entry || !(entry->why = strdup(why))) {
        entry_free(entry);
        return nomem(e);
    }
    entry->bytes += strlen(why) + 1;
    return insert_take(t, entry, e);
}

const struct table_entry *documents_table_find(const struct documents_table *t, const char *ref)
{
    return t->n_buckets ? *place_of(t, ref, hash_bytes(ref, strlen(ref))) : NULL;
}

static bool was_let_go(const struct documents_table *t, const char *ref)
{
    return hash_set_has(&t->let_go, hash_bytes(ref, strlen(ref)));
}

static int copy_entry(const struct table_entry *entry, struct document *out, struct err *e)
{
    *out = (struct document){.text = malloc(entry->length + 1), .length = entry->length};
    if (entry->title)
        out->title = strdup(entry->title);
    if (!out->text || (entry->title && !out->title)) {
        document_fini(out);
        return nomem(e);
    }
    memcpy(out->text, entry->text, entry->length + 1);
    return 0;
}

int documents_table_read(const struct documents_table *t, const char *ref,
                         enum find_answer *answer, struct document *out, struct err *why,
                         struct err *e)
{
    const struct table_entry *entry = documents_table_find(t, ref);
    *answer = entry ? FIND_HERE : was_let_go(t, ref) ? FIND_LET_GO : FIND_NOWHERE;
    if (!entry)
        return 0;
    if (entry->text)
        return out ? copy_entry(entry, out, e) : 0;
    *answer = FIND_INVALID;
    ERR_SET(why, ERR_FORMAT, "%s", entry->why);
    return 0;
}

void documents_table_fini(struct documents_table *t)
{
    for (size_t i = 0; i < t->n_buckets; i++)
        for (struct table_entry *entry = t->buckets[i], *next; entry; entry = next) {
            next = entry->next;
            entry_free(entry);
        }
    free(t->buckets);
    hash_set_fini(&t->let_go);
    *t = (struct documents_table){0};
}
