/* What several commands open in the same way: model, engine, store, from the settings. */
#ifndef SHEAF_SETUP_H
#define SHEAF_SETUP_H

#include "answer.h"
#include "base/settings.h"
#include "engine/engine.h"
#include "io/documents.h"
#include "pipeline.h"
#include "running.h"
#include "setup_drafts.h"
#include "suspects.h"
#include "transport.h"

/* The model of the setting, or the demo model that ops/setup fetched; free() it. */
char *setup_model_path(const struct settings *s);
int setup_open_model(const struct settings *s, struct model **out, struct err *e);
size_t setup_threads(const struct settings *s); /* of the setting, or one per CPU */
int setup_engine_options(const struct settings *s, struct engine_options *out, struct err *e);

struct file_line;
/* The job of a file's line, parsed as a worker would. */
int setup_parse_line(const struct settings *s, const char *path, const struct file_line *line,
                     struct job **out, struct err *e);

/* The documents that jobs refer to: the setting's file or folder, and with kafka (borrowed
 * until they are closed) the topic. */
int setup_open_documents(const struct settings *s, const struct kafka_options *kafka,
                         struct documents **out, struct err *e);

/* That every command takes which answers jobs with what is opened here. */
#define SETUP_SETTINGS                                                                         \
    "model db chat_template threads batch step_tokens prefill.chunk_tokens context kv.mb "     \
    "kv.type activations device device.ordinal device.exact device.graphs device.ahead "       \
    "device.weights max_tokens seed strict run_id "                                            \
    "drain.timeout_s deadline_s watchdog.timeout_s documents documents.mb kv.disk "            \
    "kv.disk_mb kv.disk.min_tokens chunked_prefill prefix_cache prefix_cache.min_tokens "      \
    "prefix_cache.mb prefix_cache.evict shared_attention speculation speculation.heads "       \
    "speculation.model grouping group.open group.max_wait_s window.jobs window.tokens "        \
    "window.mb"

/* A model with its engine and a database, ready for a pipeline. */
struct setup {
    struct model *model;
    struct setup_drafts drafts;
    struct engine *engine;
    struct answer_context answers;
    struct shared_store store;
    struct suspects suspects;
    struct running *running;
    struct documents *documents; /* of setup_open_documents, or NULL; closed with the setup */
    char worker_id[128];         /* host:pid */
    int64_t began_us;            /* opening, by the monotonic clock */
    char run_id[JOB_ID_BYTES_MAX + 1];
};

/* Begins the run; says the memory plan unless quiet. */
int setup_open(struct setup *setup, const struct settings *s, const char *db_path,
               const char *run_id, bool quiet, struct err *e);
void setup_close(struct setup *setup);

/* Ends a run whose transport could not be opened. */
void setup_abandon_run(struct setup *setup);

/* Runs the pipeline over a transport, ends the run in the store, says the totals unless quiet.
 * Returns the exit code; takes nothing. */
int setup_run(struct setup *setup, const struct settings *s, struct transport *transport,
              bool quiet, struct pipeline_totals *totals, struct err *e);

#endif
