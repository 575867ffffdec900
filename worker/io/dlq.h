/*
 * The dead-letter topic as a person handles it: looked at, sent again, deleted.
 *
 * A dead letter has key, value and headers of the job's record, byte for byte, then headers
 * that say why it failed (sheaf.error.*, and as other tools name them __connect.errors.* and
 * kafka_dlt-*).
 *
 * What was sent again is known by what the consumer group "<group>.dlq" has committed of the
 * dead-letter topic: everything below its offset, and above it what offset_metadata.h says.
 * Record and note are written in one transaction, so that a letter is sent again exactly once
 * however the sending ends. A letter of another group, or a record that is no dead letter, is
 * none of ours: the group's offset passes over it. A letter of another job topic stays for
 * whoever names that topic.
 *
 * Records are read one by one; nothing here grows with the topic. Thread: one.
 */
#ifndef SHEAF_DLQ_H
#define SHEAF_DLQ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "io/queue_kafka.h"

enum dlq_letter_state {
    LETTER_OPEN,      /* not sent again */
    LETTER_REDRIVEN,  /* sent again */
    LETTER_ELSEWHERE, /* of another group or job topic */
    LETTER_FOREIGN,   /* no dead letter of Sheaf's */
};

struct rd_kafka_headers_s;

/* One record; everything is borrowed until the callback returns. */
struct dlq_letter {
    int32_t partition;
    int64_t offset;
    int64_t timestamp_us; /* 0: it has none */
    const void *key;      /* NULL: it has none */
    size_t key_length;
    const void *value; /* NULL: it has none */
    size_t value_length;
    struct rd_kafka_headers_s *headers; /* NULL: it has none */
    enum dlq_letter_state state;
};

/* The i-th header; false behind the last. */
bool dlq_letter_header_at(const struct dlq_letter *letter, size_t i, struct kafka_header *out);
/* The last header of that name; false when there is none, or it has no value. */
bool dlq_letter_header(const struct dlq_letter *letter, const char *name,
                       struct kafka_header *out);
/* Is it a header that was added when the job failed? */
bool dlq_letter_is_added(const char *header_name);

struct dlq_options {
    const struct kafka_options *kafka; /* brokers, props, group, jobs_topic */
    const char *topic;                 /* of the dead letters */
};

/* "<group>.dlq"; free() it. NULL: no memory. */
char *dlq_notes_group(const char *group);

struct dlq;
/* ERR_NOTFOUND when the topic does not exist. Borrows what o points to. */
int dlq_open(const struct dlq_options *o, struct dlq **out, struct err *e);
void dlq_close(struct dlq *d); /* accepts NULL */
int dlq_count_partitions(const struct dlq *d);

/* Sets *stop when no more are wanted. */
typedef int (*dlq_visit)(void *ctx, const struct dlq_letter *letter, bool *stop, struct err *e);
/* All that were there at the call, by partition and offset. */
int dlq_walk(struct dlq *d, dlq_visit visit, void *ctx, struct err *e);
/* The one; ERR_NOTFOUND when there is none at that offset. */
int dlq_show(struct dlq *d, int32_t partition, int64_t offset, dlq_visit visit, void *ctx,
             struct err *e);

/* Which letters are sent again: those that agree with all that is given. */
struct dlq_choice {
    const char *code, *job_id; /* NULL: any */
    int32_t partition;         /* -1: any */
    int64_t offset;            /* -1: any */
    int64_t limit;             /* -1: none */
    bool again;                /* also those that were sent again before */
};
/* Of letters below the group's offset only those that the choice names count as already. */
struct redrive_report {
    uint64_t redriven;
    uint64_t already;   /* chosen, but sent again before */
    uint64_t elsewhere; /* chosen, but of another group or job topic */
    uint64_t beyond;    /* chosen, but too far above the first that is open to be noted */
};
/* The report holds also after an error: what it counts as redriven is. ERR_NOTFOUND: the job
 * topic does not exist; ERR_STATE: the group "<group>.dlq" has members, or another redrive has
 * begun. */
int dlq_redrive(struct dlq *d, const struct dlq_choice *choice, struct redrive_report *report,
                struct err *e);

struct purge_report {
    uint64_t letters;   /* of this group and job topic that are deleted */
    uint64_t open;      /* of them never sent again */
    uint64_t elsewhere; /* of other groups or job topics */
    uint64_t foreign;
};
/*
 * Deletes what lies below an offset of one partition (partition -1: all that is there in every
 * partition). Counts only, unless is_sure. What comes in meanwhile stays.
 */
int dlq_purge(struct dlq *d, int32_t partition, int64_t before, bool is_sure,
              struct purge_report *report, struct err *e);

#endif
