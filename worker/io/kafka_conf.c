/*
 * librdkafka's configuration: settings that the delivery promises rest on, defaults that suit
 * jobs of seconds to minutes, the user's properties in between.
 *
 * Eager assignors only: cooperative-sticky of librdkafka 2.0.2 loses assignments and loops.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/clock.h"
#include "base/fault.h"
#include "base/log.h"
#include "kafka_int.h"

enum { SECRET_BYTES_MAX = 65536, REASON_BYTES = 512 };

struct property {
    const char *key, *value;
};

/* Set before the user's properties, which may change them. Small prefetch, because a pause
 * throws it away; short back-offs, because a restarting broker is back in seconds. */
static const struct property common_defaults[] = {
    {"client.id", "sheaf"},
    {"message.max.bytes", KAFKA_MESSAGE_BYTES_MAX},
    {"socket.keepalive.enable", "true"},
    {"socket.nagle.disable", "true"}, /* else 40 ms stalls of small requests */
    {"reconnect.backoff.max.ms", "2000"},
};
static const struct property consumer_defaults[] = {
    {"partition.assignment.strategy", "range"},
    {"session.timeout.ms", "45000"},
    {"max.poll.interval.ms", "300000"},
    {"queued.min.messages", "64"},
    {"queued.max.messages.kbytes", "16384"},
    {"fetch.wait.max.ms", "100"},
    {"check.crcs", "true"},
};
static const struct property producer_defaults[] = {
    {"linger.ms", "5"},
    {"message.timeout.ms", "60000"},
};

/* Set last. */
static const struct property consumer_fixed[] = {
    {"enable.auto.commit", "false"},   {"enable.auto.offset.store", "false"},
    {"auto.offset.reset", "earliest"}, {"isolation.level", "read_committed"},
    {"enable.partition.eof", "true"},  {"allow.auto.create.topics", "false"},
};
/* A transaction is open for as long as a burst takes; after a kill, readers wait that long. */
static const struct property transaction_defaults[] = {
    {"message.timeout.ms", "12000"},
    {"transaction.timeout.ms", "15000"},
};
static const struct property producer_fixed[] = {
    {"enable.idempotence", "true"},
    {"partitioner", "murmur2_random"},
};

/* Properties that the user may not set, and why. */
static const struct property refused[] = {
    {"bootstrap.servers", "it is the setting brokers"},
    {"metadata.broker.list", "it is the setting brokers"},
    {"group.id", "it is the setting group"},
    {"enable.auto.commit", "only offsets of answered jobs are committed"},
    {"enable.auto.offset.store", "only offsets of answered jobs are committed"},
    {"auto.offset.reset", "a group reads on where it stopped, or from the beginning"},
    {"isolation.level", "jobs of aborted transactions are no jobs"},
    {"enable.partition.eof", "the end of the topic is found by it"},
    {"allow.auto.create.topics", "a misspelt topic would be created instead of reported"},
    {"enable.idempotence", "a resent result would be written twice"},
    {"acks", "a result counts when every in-sync replica has it"},
    {"request.required.acks", "a result counts when every in-sync replica has it"},
    {"partitioner", "jobs of one document go to one partition, also from other clients"},
    {"transactional.id", "it is made of the group and the worker's database"},
    {"delivery.report.only.error", "a result counts when it is acknowledged"},
    {"plugin.library.paths", "it would load code into the worker"},
    {"test.mock.num.brokers", "the mock cluster drops old records"},
};

/* Never inline, where a process list or a config dump would show them: KEY.file names the file
 * with the value. */
static const char *const secrets[] = {
    "sasl.password", "ssl.key.password",        "ssl.keystore.password",
    "ssl.key.pem",   "sasl.oauthbearer.config", "sasl.oauthbearer.client.secret",
};

static bool is_secret(const char *key, size_t length)
{
    for (size_t i = 0; i < sizeof secrets / sizeof *secrets; i++)
        if (strlen(secrets[i]) == length && strncmp(secrets[i], key, length) == 0)
            return true;
    return false;
}

static int set(rd_kafka_conf_t *conf, const char *key, const char *value, struct err *e)
{
    char reason[REASON_BYTES];
    if (rd_kafka_conf_set(conf, key, value, reason, sizeof reason) == RD_KAFKA_CONF_OK)
        return 0;
    return ERR_SET(e, ERR_CONFIG, "Kafka property %s: %s", key, reason);
}

static int set_all(rd_kafka_conf_t *conf, const struct property *list, size_t n, struct err *e)
{
    for (size_t i = 0; i < n; i++)
        TRY(set(conf, list[i].key, list[i].value, e));
    return 0;
}
#define SET_ALL(conf, list, e) set_all((conf), (list), sizeof(list) / sizeof *(list), (e))

/* The file's bytes without the newline at the end that editors put there. */
static int read_secret(const char *path, char *value, struct err *e)
{
    FILE *f = fopen(path, "re");
    if (!f)
        return ERR_SET(e, ERR_CONFIG, "cannot open %s: %s", path, strerror(errno));
    struct stat status;
    if (fstat(fileno(f), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0)
        log_warn("%s holds a secret and others may read it: chmod 600 it", path);
    size_t length = fread(value, 1, SECRET_BYTES_MAX, f);
    const bool failed = ferror(f) != 0;
    fclose(f);
    if (failed || length == SECRET_BYTES_MAX)
        return ERR_SET(e, ERR_CONFIG, "%s: %s", path,
                       failed ? "cannot be read" : "too long for a secret");
    while (length > 0 && (value[length - 1] == '\n' || value[length - 1] == '\r'))
        length--;
    value[length] = '\0';
    if (length == 0 || strlen(value) != length)
        return ERR_SET(e, ERR_CONFIG, "%s: %s", path, length ? "holds a NUL byte" : "is empty");
    return 0;
}

/* librdkafka's own message might repeat the value, so none is passed on. */
static int set_secret(rd_kafka_conf_t *conf, const char *key, size_t length, const char *path,
                      struct err *e)
{
    char *value = malloc(SECRET_BYTES_MAX + 1);
    if (!value)
        return ERR_SET(e, ERR_NOMEM, "no memory for %s", key);
    char name[64], reason[REASON_BYTES];
    snprintf(name, sizeof name, "%.*s", (int)length, key);
    int code = read_secret(path, value, e);
    err_prefix(e, "Kafka property %s", key);
    if (code == 0 &&
        rd_kafka_conf_set(conf, name, value, reason, sizeof reason) != RD_KAFKA_CONF_OK)
        code = ERR_SET(e, ERR_CONFIG, "Kafka property %s: librdkafka does not take it", key);
    explicit_bzero(value, SECRET_BYTES_MAX + 1);
    free(value);
    return code;
}

static int set_user(rd_kafka_conf_t *conf, const char *key, const char *value, struct err *e)
{
    for (size_t i = 0; i < sizeof refused / sizeof *refused; i++)
        if (strcmp(key, refused[i].key) == 0)
            return ERR_SET(e, ERR_CONFIG, "Kafka property %s cannot be set: %s", key,
                           refused[i].value);
    if (strcmp(key, "partition.assignment.strategy") == 0 && strstr(value, "cooperative"))
        return ERR_SET(e, ERR_CONFIG,
                       "Kafka property %s cannot be cooperative: librdkafka loses assignments "
                       "with it; use range or roundrobin",
                       key);
    const size_t length = strlen(key);
    if (is_secret(key, length))
        return ERR_SET(e, ERR_CONFIG,
                       "Kafka property %s is a secret: write it to a file and set %s.file", key,
                       key);
    if (length > 5 && strcmp(key + length - 5, ".file") == 0 && is_secret(key, length - 5))
        return set_secret(conf, key, length - 5, value, e);
    return set(conf, key, value, e);
}

static void log_librdkafka(const rd_kafka_t *rk, int level, const char *facility,
                           const char *text)
{
    (void)rk;
    /* Connection trouble comes through the error callback too; and the user's properties go to
     * both sides, of which each warns about the other's. */
    const bool is_noise = strcmp(facility, "FAIL") == 0 || strcmp(facility, "ERROR") == 0 ||
                          strcmp(facility, "CONFWARN") == 0;
    log_line(level <= 4 && !is_noise ? LOG_WARN : LOG_DEBUG, "librdkafka: %s: %s", facility,
             text);
}

static int fill(rd_kafka_conf_t *conf, const struct kafka_options *o, enum kafka_role role,
                struct err *e)
{
    TRY(set(conf, "bootstrap.servers", o->brokers, e));
    TRY(SET_ALL(conf, common_defaults, e));
    if (role == KAFKA_CONSUMER) {
        TRY(set(conf, "group.id", o->group, e));
        TRY(SET_ALL(conf, consumer_defaults, e));
    } else {
        TRY(SET_ALL(conf, producer_defaults, e));
        if (o->transactional_id)
            TRY(SET_ALL(conf, transaction_defaults, e));
        if (set(conf, "compression.type", "zstd", NULL) != 0) /* built without it */
            TRY(set(conf, "compression.type", "lz4", e));
    }
    for (const char *const *p = o->props; p && p[0]; p += 2)
        TRY(set_user(conf, p[0], p[1] ? p[1] : "", e));
    if (role == KAFKA_CONSUMER) {
        TRY(SET_ALL(conf, consumer_fixed, e));
        return GUARD("stable-offsets") ? 0
                                       : set(conf, "isolation.level", "read_uncommitted", e);
    }
    if (o->transactional_id)
        TRY(set(conf, "transactional.id", o->transactional_id, e));
    return SET_ALL(conf, producer_fixed, e);
}

int kafka_conf_build(const struct kafka_options *o, enum kafka_role role, rd_kafka_conf_t **out,
                     struct err *e)
{
    *out = NULL;
    if (!o->brokers || !o->brokers[0])
        return ERR_SET(e, ERR_CONFIG, "no Kafka brokers are given (brokers)");
    if (role == KAFKA_CONSUMER && (!o->group || !o->group[0]))
        return ERR_SET(e, ERR_CONFIG, "no consumer group is given (group)");
    kafka_tsan_link();
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_log_cb(conf, log_librdkafka);
    const int code = fill(conf, o, role, e);
    if (code != 0) {
        rd_kafka_conf_destroy(conf);
        return code;
    }
    *out = conf;
    return 0;
}

int kafka_conf_open_consumer(rd_kafka_conf_t *conf, rd_kafka_t **out, struct err *e)
{
    char reason[256];
    *out = rd_kafka_new(RD_KAFKA_CONSUMER, conf, reason, sizeof reason);
    if (!*out) {
        rd_kafka_conf_destroy(conf);
        return ERR_SET(e, ERR_CONFIG, "Kafka consumer: %s", reason);
    }
    rd_kafka_poll_set_consumer(*out);
    return 0;
}

enum kafka_reaction kafka_error_reaction(rd_kafka_resp_err_t code)
{
    switch (code) {
    case RD_KAFKA_RESP_ERR__FATAL:
    case RD_KAFKA_RESP_ERR__FENCED: return KAFKA_FATAL;
    case RD_KAFKA_RESP_ERR_GROUP_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_TOPIC_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_CLUSTER_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_TRANSACTIONAL_ID_AUTHORIZATION_FAILED:
    case RD_KAFKA_RESP_ERR_INVALID_TRANSACTION_TIMEOUT: /* longer than the brokers allow */
    case RD_KAFKA_RESP_ERR_TOPIC_EXCEPTION:             /* a name that no topic can have */
    case RD_KAFKA_RESP_ERR_INVALID_GROUP_ID:
    case RD_KAFKA_RESP_ERR_INVALID_SESSION_TIMEOUT:
    case RD_KAFKA_RESP_ERR_INCONSISTENT_GROUP_PROTOCOL: return KAFKA_PERMANENT;
    default: return KAFKA_IGNORE;
    }
}

bool kafka_error_is_fenced(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR__FENCED || code == RD_KAFKA_RESP_ERR_PRODUCER_FENCED ||
           code == RD_KAFKA_RESP_ERR_INVALID_PRODUCER_EPOCH;
}

static void note_reason(struct kafka_error_log *l, rd_kafka_resp_err_t code, const char *reason)
{
    if (code == RD_KAFKA_RESP_ERR__ALL_BROKERS_DOWN) {
        l->are_all_away = true;
        return;
    }
    l->reason_code = code;
    snprintf(l->reason, sizeof l->reason, "%s", reason ? reason : rd_kafka_err2str(code));
    char *state = strstr(l->reason, " (after "); /* which of librdkafka's states it was in */
    if (state)
        *state = '\0';
}

void kafka_error_log_line(struct kafka_error_log *l, rd_kafka_resp_err_t code,
                          const char *reason)
{
    enum { QUIET_US = 30000000, N_LINES = sizeof l->lines / sizeof *l->lines };
    note_reason(l, code, reason);
    if (l->is_quiet)
        return;
    const int64_t now_us = clock_mono_us();
    size_t at = 0;
    while (at < N_LINES && (l->lines[at].code != code || l->lines[at].logged_us == 0))
        at++;
    if (at < N_LINES && now_us - l->lines[at].logged_us < QUIET_US)
        return;
    if (at == N_LINES) {
        at = l->oldest;
        l->oldest = (l->oldest + 1) % N_LINES;
        l->lines[at].code = code;
    }
    l->lines[at].logged_us = now_us;
    log_warn("Kafka: %s (%s); going on", reason, rd_kafka_err2name(code));
}
