/* What the kafka_*.c files share: configuration, reading of error codes, logging. */
#ifndef SHEAF_KAFKA_INT_H
#define SHEAF_KAFKA_INT_H

#include <librdkafka/rdkafka.h>
#include <pthread.h>

#include "kafka_burst.h"
#include "kafka_partitions.h"
#include "queue_kafka.h"

enum kafka_role { KAFKA_CONSUMER, KAFKA_PRODUCER };

/* A job of JOB_BYTES_MAX, its key, headers and framing. */
#define KAFKA_MESSAGE_BYTES_MAX "17825792"

/* *out: rd_kafka_conf_destroy it, unless rd_kafka_new took it. */
int kafka_conf_build(const struct kafka_options *o, enum kafka_role role, rd_kafka_conf_t **out,
                     struct err *e);
/* Takes conf, also when it fails. */
int kafka_conf_open_consumer(rd_kafka_conf_t *conf, rd_kafka_t **out, struct err *e);

/* Owns its bytes; NULL: no memory. */
struct kafka_record *kafka_record_copy(const rd_kafka_message_t *m);
/* 0: it has none. */
int64_t kafka_record_timestamp_us(const rd_kafka_message_t *m);

/* Does nothing, but makes the linker take kafka_tsan.c along. */
void kafka_tsan_link(void);

enum kafka_reaction {
    KAFKA_IGNORE,    /* librdkafka gets over it: log */
    KAFKA_PERMANENT, /* will not change by itself: stop */
    KAFKA_FATAL,     /* the handle is dead */
};
enum kafka_reaction kafka_error_reaction(rd_kafka_resp_err_t code);
/* A producer of the same transactional id has taken over. */
bool kafka_error_is_fenced(rd_kafka_resp_err_t code);

/* One message under way; librdkafka carries its address to the delivery report. */
struct kafka_delivery {
    rd_kafka_resp_err_t code;
    bool is_done;
};
/* A producer of a copy of conf. */
int kafka_produce_open(const rd_kafka_conf_t *conf, rd_kafka_t **out, struct err *e);
/* Produces all and waits for their reports. kafka_produce_on_delivery is the handle's callback.
 */
void kafka_produce_all(rd_kafka_t *rk, const struct kafka_message *messages, size_t n,
                       struct kafka_delivery *deliveries);
void kafka_produce_on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque);
/* One message, to a partition or RD_KAFKA_PARTITION_UA, whatever is in the queue; then its
 * report. */
void kafka_produce_to(rd_kafka_t *rk, const struct kafka_message *m, int32_t partition,
                      struct kafka_delivery *d);
void kafka_produce_wait(rd_kafka_t *rk, const struct kafka_delivery *d);
/* What a report means: 0, or an error that names the message and its topic. */
int kafka_produce_outcome(const struct kafka_message *m, rd_kafka_resp_err_t code,
                          struct err *e);

/* Steps of an open transaction, each bounded in time; the first two are repeated for a while
 * when they may be. NULL, or what went wrong: rd_kafka_error_destroy it. */
rd_kafka_error_t *kafka_produce_send_offsets(rd_kafka_t *rk,
                                             const rd_kafka_topic_partition_list_t *offsets,
                                             const rd_kafka_consumer_group_metadata_t *member);
rd_kafka_error_t *kafka_produce_commit(rd_kafka_t *rk);
rd_kafka_error_t *kafka_produce_abort(rd_kafka_t *rk);

/* kafka_undecided.c */
struct kafka_undecided {
    rd_kafka_conf_t *conf; /* of a consumer that sees open records */
    char *group;
    char *topics[2]; /* results, dead letters */
    size_t n_topics;
};
/* Also when it fails, kafka_undecided_close it. */
int kafka_undecided_open(const struct kafka_options *o, struct kafka_undecided *u,
                         struct err *e);
void kafka_undecided_close(struct kafka_undecided *u);
/* No transaction of the producer is open. are_all: false while a partition has no leader that
 * could be asked. ERR_RETRY: nothing is known. */
int kafka_undecided_end(const struct kafka_undecided *u, rd_kafka_t *producer, bool *are_all,
                        struct err *e);

/* The same trouble comes again and again while a broker is away: one line in 30 s per code. */
struct kafka_error_log {
    bool is_quiet;     /* whoever waits tells it */
    bool are_all_away; /* librdkafka has given every broker a try, and reaches none */
    rd_kafka_resp_err_t reason_code;
    char reason[320]; /* the latest, of one broker */
    struct {
        rd_kafka_resp_err_t code;
        int64_t logged_us;
    } lines[8];
    size_t oldest;
};
void kafka_error_log_line(struct kafka_error_log *l, rd_kafka_resp_err_t code,
                          const char *reason);

/* kafka_topic.c: one question to a broker. The number of partitions, 0 unless it is there. */
rd_kafka_resp_err_t kafka_topic_look_up(rd_kafka_t *rk, const char *topic, int wait_ms, int *n);
/* Adds the partitions that have a leader; are_led: all have. */
rd_kafka_resp_err_t kafka_topic_list_led(rd_kafka_t *rk, const char *topic, int wait_ms,
                                         rd_kafka_topic_partition_list_t *list, bool *are_led);
bool kafka_topic_is_unknown(rd_kafka_resp_err_t code);
/* 0: the topic is not there, -1: nobody says. */
int kafka_topic_count_partitions(rd_kafka_t *rk, const char *topic, int wait_ms,
                                 struct kafka_error_log *log);
/* ERR_NOTFOUND: the job topic is to be made by a submission. */
int kafka_topic_refuse_unknown(const char *topic, struct err *e);

/*
 * Waits until a broker answers, 10 s at most. ERR_CONFIG when the brokers are there but this
 * program may not talk to them (password, certificate), as soon as each was tried; else
 * ERR_BROKER with ERR_RETRY. log: what the handle's error callback fills.
 */
int kafka_reach(rd_kafka_t *rk, struct kafka_error_log *log, const char *brokers,
                struct err *e);

/* The consumer. Fields without a mark belong to the poll thread. */
struct kafka_source {
    rd_kafka_t *rk;
    rd_kafka_queue_t *commits; /* outcomes of asynchronous commits */
    char *jobs_topic;
    size_t jobs_max;
    uint64_t bytes_max;

    pthread_mutex_t lock;
    struct kafka_partitions partitions; /* Locks: lock */
    void *member; /* who we are in the group since its last assignment; Locks: lock */
    size_t member_bytes;
    uint64_t n_received, n_settled; /* Locks: lock */
    size_t n_settled_uncommitted;   /* Locks: lock */
    bool is_full;                   /* Locks: lock for writing */
    bool is_assigned;               /* likewise */

    struct kafka_lost lost[4]; /* and not told yet */
    size_t n_lost;
    struct kafka_held *held; /* records that their partition's span has no room for */
    rd_kafka_topic_partition_list_t *to_assign; /* until it is known what is committed of them;
                                                   or NULL */
    int64_t assigned_us;
    bool is_committing;
    int64_t committed_us; /* when the last commit was begun */
    rd_kafka_resp_err_t commit_code;
    int64_t unknown_topic_us; /* since when the topic is missing; 0: it is there */
    bool is_transactional;    /* offsets are committed by bursts, never here */
    bool is_tended;           /* nothing more is taken */
    bool is_closing;
    void (*on_committed)(void *ctx, const char *topic, int32_t partition,
                         const struct offset_bits *settled); /* or NULL */
    void *on_committed_ctx;
    _Atomic bool is_broken; /* nothing more is committed */
    struct err failure;
    struct kafka_error_log error_log;
};

struct kafka_held {
    struct kafka_record *record;
    struct kafka_held *next;
};

/* kafka_group.c: rebalances, commits, flow. Thread: kafka. */
void kafka_group_rebalance(rd_kafka_t *rk, rd_kafka_resp_err_t code,
                           rd_kafka_topic_partition_list_t *parts, void *source);
/* Adds a partition with what is settled of it, as it is committed. */
void kafka_group_add_settled(rd_kafka_topic_partition_list_t *list, const char *topic,
                             int32_t partition, const struct offset_bits *settled);
/* Fills list with what the group has committed; 0 only when that is known of every partition.
 */
rd_kafka_resp_err_t kafka_group_ask_committed(struct kafka_source *s,
                                              rd_kafka_topic_partition_list_t *list);
/* What is committed of a partition and could be read; base -1: nothing. found may be NULL. */
void kafka_group_read_committed(const rd_kafka_topic_partition_t *found,
                                struct offset_bits *out);
/* Assigns what the group has given to us once the brokers say what is committed of it. */
void kafka_group_serve_assignment(struct kafka_source *s);
/* Assigns nothing. */
void kafka_group_unassign(struct kafka_source *s);
/* Begins a commit when one is due, and reads the outcome of the one before. */
void kafka_group_serve_commits(struct kafka_source *s);
/* Commits every watermark and waits. 0, or what Kafka said. */
rd_kafka_resp_err_t kafka_group_commit_now(struct kafka_source *s, int wait_ms);
/* What is settled together with some answers, and who says so. */
struct kafka_snapshot {
    rd_kafka_topic_partition_list_t *offsets; /* of the partitions of open answers */
    rd_kafka_consumer_group_metadata_t *member;
};
void kafka_snapshot_fini(struct kafka_snapshot *snapshot);
/* Answers whose jobs are settled already become ANSWER_GIVEN, those of others' partitions
 * ANSWER_NOT_OURS, those that would need a longer text than brokers take ANSWER_DELAYED; the
 * rest stays open. Answers before others of their partition come first. ERR_RETRY while a
 * rebalance is under way. Thread: any.
 */
int kafka_source_snapshot(struct kafka_source *s, const struct kafka_answer *answers, size_t n,
                          enum kafka_answer_state *states, struct kafka_snapshot *out,
                          struct err *e);
/* The brokers refused the texts of these offsets (offset.metadata.max.bytes): shorter ones from
 * now on. False: there is none. Thread: any. */
bool kafka_source_shorten_texts(struct kafka_source *s,
                                const rd_kafka_topic_partition_list_t *offsets);
/* Tells whoever wants to know what is committed of a partition. Locks: none held. */
void kafka_group_tell_committed(const struct kafka_source *s, const char *topic,
                                int32_t partition, const struct offset_bits *settled);
/* Settles what the group has committed of the partitions that are ours. Thread: any. */
int kafka_source_take_over_committed(struct kafka_source *s, struct err *e);

/* Pauses and resumes partitions as the limits ask. */
void kafka_group_apply_flow(struct kafka_source *s);
void kafka_group_drop_held(struct kafka_source *s);

#endif
