#include "job.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

static void free_messages(struct job *job)
{
    for (size_t i = 0; i < job->n_messages; i++)
        free(job->messages[i].content);
    free(job->messages);
}

static void free_documents(struct job *job)
{
    for (size_t i = 0; i < job->n_documents; i++) {
        free(job->documents[i].id);
        free(job->documents[i].title);
        free(job->documents[i].ref);
        free(job->documents[i].text);
    }
    free(job->documents);
}

static void free_params(struct job_params *params)
{
    for (size_t i = 0; i < params->n_stops; i++)
        free(params->stops[i]);
    free(params->stops);
    free(params->stop_tokens);
    free(params->bias);
}

void job_free(struct job *job)
{
    if (!job)
        return;
    free_messages(job);
    free_documents(job);
    free_params(&job->params);
    job_record_fini(&job->record);
    free(job->source.topic);
    free(job->custom_id);
    free(job->run_id);
    free(job->model);
    free(job->url);
    free(job->prompt);
    free(job->prompt_tokens);
    free(job->cache_salt);
    free(job->metadata);
    free(job->expect);
    free(job->prediction);
    free(job->warnings);
    free(job->prefix_group);
    free(job->tokens);
    free(job->prediction_tokens);
    free(job);
}

const char *job_dialect_name(enum job_dialect dialect)
{
    switch (dialect) {
    case DIALECT_NATIVE: return "native";
    case DIALECT_OPENAI_CHAT: return "openai-chat";
    case DIALECT_OPENAI_COMPLETION: return "openai-completion";
    }
    return "unknown";
}

const char *job_document_id(const struct job_document *document)
{
    return document->id && (*document->id || !document->ref) ? document->id : document->ref;
}

bool job_has_unresolved(const struct job *job)
{
    for (size_t i = 0; i < job->n_documents; i++)
        if (!job->documents[i].text)
            return true;
    return false;
}

void job_free_document_texts(struct job *job)
{
    for (size_t i = 0; i < job->n_documents; i++) {
        free(job->documents[i].text);
        job->documents[i].text = NULL;
    }
}

void job_free_prediction_text(struct job *job)
{
    free(job->prediction);
    job->prediction = NULL;
}

void job_fail(struct job *job, int status, const char *code, const char *param,
              const char *format, ...)
{
    struct job_error *error = &job->error;
    if (error->status != 0)
        return;
    error->status = status;
    snprintf(error->code, sizeof error->code, "%s", code);
    snprintf(error->type, sizeof error->type, "%s",
             status < 500 ? "invalid_request_error" : "server_error");
    snprintf(error->param, sizeof error->param, "%s", param);
    va_list args;
    va_start(args, format);
    vsnprintf(error->message, sizeof error->message, format, args);
    va_end(args);
}
