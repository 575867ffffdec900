/*
 * The first contact with the brokers. A wrong password or certificate does not change by
 * itself; librdkafka would try for ever, so it is told here, where somebody may be watching.
 */
#include <string.h>

#include "base/clock.h"
#include "kafka_int.h"

enum { REACH_US_MAX = 10000000, REACH_SLICE_MS = 250 };

static bool is_refused(rd_kafka_resp_err_t code)
{
    return code == RD_KAFKA_RESP_ERR__AUTHENTICATION || code == RD_KAFKA_RESP_ERR__SSL ||
           code == RD_KAFKA_RESP_ERR_SASL_AUTHENTICATION_FAILED ||
           code == RD_KAFKA_RESP_ERR_UNSUPPORTED_SASL_MECHANISM;
}

/* Before 2.6.1 librdkafka sends a nonce that brokers from 4.1 on refuse, and these say the same
 * as for a wrong password. */
static bool is_scram_broken(const struct kafka_error_log *log)
{
    enum { MENDED = 0x020601ff };
    return rd_kafka_version() < MENDED && strstr(log->reason, "SCRAM") &&
           strstr(log->reason, "invalid credentials");
}

static const char *advice_on(const struct kafka_error_log *log)
{
    if (log->reason_code == RD_KAFKA_RESP_ERR__SSL)
        return "check ssl.ca.location, and that the broker's certificate is for this host name";
    if (is_scram_broken(log))
        return "check sasl.username and sasl.password.file; and SCRAM with Kafka 4.1 or later "
               "needs librdkafka 2.6.1, sasl.mechanism=PLAIN does not";
    return "check sasl.mechanism, sasl.username and sasl.password.file";
}

static int report(const struct kafka_error_log *log, const char *brokers, struct err *e)
{
    if (is_refused(log->reason_code))
        return ERR_SET_FLAGS(e, ERR_CONFIG, ERR_FATAL, "no Kafka broker lets us in: %s; %s",
                             log->reason, advice_on(log));
    return ERR_SET_FLAGS(e, ERR_BROKER, ERR_RETRY, "no Kafka broker answers at %s%s%s", brokers,
                         log->reason[0] ? ": " : "", log->reason);
}

static bool is_answered(rd_kafka_t *rk)
{
    const struct rd_kafka_metadata *found;
    if (rd_kafka_metadata(rk, 0, NULL, &found, REACH_SLICE_MS) != RD_KAFKA_RESP_ERR_NO_ERROR)
        return false;
    rd_kafka_metadata_destroy(found);
    return true;
}

/* Errors come through the queue that the handle's owner polls. */
static void serve_errors(rd_kafka_t *rk)
{
    if (rd_kafka_type(rk) == RD_KAFKA_PRODUCER) {
        rd_kafka_poll(rk, 0);
        return;
    }
    rd_kafka_message_t *m = rd_kafka_consumer_poll(rk, 0);
    if (m)
        rd_kafka_message_destroy(m); /* nothing is subscribed to yet */
}

int kafka_reach(rd_kafka_t *rk, struct kafka_error_log *log, const char *brokers, struct err *e)
{
    const int64_t deadline_us = clock_mono_us() + REACH_US_MAX;
    int rc = 0;
    log->is_quiet = true;
    while (!is_answered(rk)) {
        serve_errors(rk);
        const bool is_hopeless = log->are_all_away && is_refused(log->reason_code);
        if (is_hopeless || clock_mono_us() > deadline_us) {
            rc = report(log, brokers, e);
            break;
        }
    }
    log->is_quiet = false;
    return rc;
}
