/* What the documents*.c files share. */
#ifndef SHEAF_DOCUMENTS_INT_H
#define SHEAF_DOCUMENTS_INT_H

#include "base/hash.h"
#include "document.h"
#include "documents.h"

enum find_answer {
    FIND_HERE,
    FIND_NOWHERE,
    FIND_INVALID, /* the text says why */
    FIND_LET_GO,  /* it did not fit */
};

/*
 * documents_table.c: documents by name, in bounded memory. A text that does not fit is let go,
 * whoever had the name before; the names of the first DOCUMENTS_LET_GO_MAX of those are kept as
 * hashes, so that at worst a name that was never there is said to have been let go, and one
 * beyond them is as one that was never there. Zeroed but for bytes_max is empty.
 */
enum { DOCUMENTS_LET_GO_MAX = 1 << 20 }; /* 16 MiB of hashes */
struct table_entry {
    struct table_entry *next; /* in its bucket */
    uint64_t hash;
    char *ref;
    char *title; /* or NULL */
    char *text;  /* NULL: why says what is wrong with it */
    char *why;
    size_t length;
    size_t bytes; /* as counted */
};
struct documents_table {
    struct table_entry **buckets;
    size_t n_buckets; /* a power of two, or 0 */
    size_t n;
    size_t bytes, bytes_max;
    struct hash_set let_go;
};
/* Takes title and text out of document; ERR_LIMIT: it did not fit. */
int documents_table_put_take(struct documents_table *t, const char *ref,
                             struct document *document, struct err *e);
int documents_table_put_invalid(struct documents_table *t, const char *ref, const char *why,
                                struct err *e);
void documents_table_remove(struct documents_table *t, const char *ref);
const struct table_entry *documents_table_find(const struct documents_table *t,
                                               const char *ref);
/* out: copies; NULL: only the answer. why: for FIND_INVALID. *answer only with return 0. The
 * other two sources' reads likewise. */
int documents_table_read(const struct documents_table *t, const char *ref,
                         enum find_answer *answer, struct document *out, struct err *why,
                         struct err *e);
void documents_table_fini(struct documents_table *t);

/* documents_folder.c: root is a path without links, as realpath gives it. out NULL: whether
 * there is something under the name, not whether it can be read. */
bool documents_folder_is_name(const char *ref); /* some file could have it */
int documents_folder_read(const char *root, const char *ref, enum find_answer *answer,
                          struct document *out, struct err *why, struct err *e);

/* documents_kafka.c */
struct documents_topic;
int documents_topic_open(const struct documents_options *o, struct documents_topic **out,
                         struct err *e);
int documents_topic_read(struct documents_topic *t, const char *ref, enum find_answer *answer,
                         struct document *out, struct err *why, struct err *e);
/* A broker has said whether there is such a topic. Thread: any. */
bool documents_topic_is_known(const struct documents_topic *t);
/* Its records were read to their end once, or there is no such topic. Thread: any. */
bool documents_topic_is_read(const struct documents_topic *t);
/* When the last record of the first reading came, or that reading began or ended. Thread: any.
 */
int64_t documents_topic_moved_us(const struct documents_topic *t);
uint64_t documents_topic_generation(const struct documents_topic *t);
void documents_topic_close(struct documents_topic *t); /* accepts NULL */

#endif
