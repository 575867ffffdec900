/*
 * The loop of sheaf sink: records of a result topic -> one database, a transaction for each
 * batch. What is no result is counted, logged and left out; its offset moves on all the same.
 */
#ifndef SHEAF_SINK_H
#define SHEAF_SINK_H

#include "io/kafka_reader.h"

struct sink_options {
    const struct kafka_options *kafka;
    const char *topic;
    bool exit_when_empty;
    bool quiet;
};

struct sink_totals {
    struct receive_counts counts;
    uint64_t refused; /* no results */
};

/* Until the topic is read to its end, or a signal. ERR_NOTFOUND: exit_when_empty, and there is
 * no such topic. */
int sink_run(const struct sink_options *o, struct store *store, struct sink_totals *totals,
             struct err *e);

#endif
