/*
 * A job: what one input line or record asks for, in one struct whatever dialect it came in.
 *
 * Dialects are told apart by their keys:
 *   custom_id + body        OpenAI batch line (also as Azure, Mistral, Fireworks, vLLM write
 * it); body with messages: chat, body with prompt: completion question or messages    the
 * native RAG line (schema/job.schema.json)
 *
 * Ownership: a struct job owns everything it points to; job_free releases it. A job is owned
 * by one stage at a time.
 */
#ifndef SHEAF_JOB_H
#define SHEAF_JOB_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "job_record.h"

enum job_dialect { DIALECT_NATIVE, DIALECT_OPENAI_CHAT, DIALECT_OPENAI_COMPLETION };

/* Where the bytes came from. For files: topic = path, partition = 0, offset = line number. */
struct job_source {
    char *topic;
    int32_t partition;
    int64_t offset;       /* Kafka offset, or 1-based line number */
    int64_t timestamp_us; /* wall; when the job was submitted, or read from the file */
    uint64_t lease;       /* of the partition, as its reader counts; 0 for files */
    bool is_file;
};

enum job_role { JOB_SYSTEM, JOB_USER, JOB_ASSISTANT };

struct job_message {
    enum job_role role;
    char *content; /* UTF-8, NUL-terminated; no NUL inside */
    size_t length;
};

struct job_document {
    char *id;    /* or NULL */
    char *title; /* or NULL */
    char *ref;   /* or NULL: the text is kept elsewhere, under this name */
    char *text;  /* NULL: a reference is not resolved, or the prompt was made */
    size_t length;
};

struct job_bias {
    int32_t id;
    double bias;
};

/* A parameter that the job did not give keeps the setting's default; has_* tells them apart
 * where the default matters. */
struct job_params {
    int64_t max_tokens; /* 0 = not given */
    int64_t min_tokens;
    double temperature, top_p, min_p;
    int64_t top_k; /* 0 = off */
    double repetition_penalty, presence_penalty, frequency_penalty;
    bool has_temperature, has_top_p, has_seed;
    int64_t seed;
    bool ignore_eos, include_stop;
    char **stops;
    size_t n_stops;
    int32_t *stop_tokens;
    size_t n_stop_tokens;
    struct job_bias *bias;
    size_t n_bias;
};

/* The four keys of OpenAI's error object and the status that goes with it. */
struct job_error {
    int status;      /* 400, 404, 408, 413, 500, ... ; 0 = no error */
    char code[64];   /* "invalid_json_line", "context_length_exceeded", ... */
    char type[40];   /* "invalid_request_error", "server_error" */
    char param[128]; /* JSON path, "" = none */
    char message[ERR_TEXT_BYTES];
};

struct job {
    enum job_dialect dialect;
    struct job_source source;
    char *custom_id; /* never NULL: the given one, or topic-partition-offset / line-N */
    bool has_custom_id;
    char *run_id; /* or NULL: the worker's default */
    char *model;  /* as asked for, or NULL */
    char *url;    /* OpenAI: "/v1/chat/completions"; else NULL */

    struct job_message *messages; /* system and turns; the native question is the last one */
    size_t n_messages;
    struct job_document *documents;
    size_t n_documents;
    char *prompt; /* completion: raw text */
    size_t prompt_length;
    int32_t *prompt_tokens; /* completion: raw ids instead of text */
    size_t n_prompt_tokens;
    bool echo; /* completion: prompt in front of the text */

    struct job_params params;
    char *cache_salt; /* or NULL: jobs of another salt share no cached prefix with this one */
    char *metadata;   /* JSON text of the object, passed through; or NULL */
    char *expect; /* JSON text of the reference answer(s); never shown to the model; or NULL */
    char *prediction;         /* what the answer may say, never shown to the model; or NULL */
    size_t prediction_length; /* 0: none; stays when the text is gone */
    int64_t priority;
    int64_t deadline_us; /* wall; 0 = none */

    char *warnings;           /* unknown or ignored fields, comma separated; or NULL */
    char payload_sha256[65];  /* of the input bytes */
    struct job_error error;   /* set when the job is already known to be bad */
    struct job_record record; /* all zero: it came from a file */

    /* Filled by later stages. */
    int64_t attempts;    /* that came to nothing so far */
    int64_t admitted_us; /* monotonic */
    int64_t admitted_wall_us;
    char *prefix_group; /* hex hash of system + documents; or NULL */
    int32_t *tokens;    /* the prompt */
    size_t n_tokens;
    int32_t *prediction_tokens; /* or NULL: none, or nobody drafts from it */
    size_t n_prediction_tokens;
    size_t group_jobs;    /* of its group in the window when its turn came */
    size_t shared_tokens; /* that they share */
};

/* What the job calls the document: its id, else its reference; NULL: neither. */
const char *job_document_id(const struct job_document *document);

void job_free(struct job *job);                         /* accepts NULL */
const char *job_dialect_name(enum job_dialect dialect); /* "native", "openai-chat", ... */
/* Some document is a reference without its text: no prompt can be built. */
bool job_has_unresolved(const struct job *job);
/* Once there is a prompt nothing reads the texts; lengths, ids and titles stay. */
void job_free_document_texts(struct job *job);
void job_free_prediction_text(struct job *job);

/* Sets an error unless one is set; message is a printf format. */
void job_fail(struct job *job, int status, const char *code, const char *param,
              const char *format, ...) __attribute__((format(printf, 5, 6)));

#endif
