#include "prompt.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "base/buf.h"
#include "base/check.h"

static const char question_heading[] = "Question: ";

static int nomem(struct err *e)
{
    return ERR_SET(e, ERR_NOMEM, "out of memory for a prompt");
}

static void append_documents(struct buf *text, const struct job *job)
{
    for (size_t i = 0; i < job->n_documents; i++) {
        const struct job_document *document = &job->documents[i];
        buf_printf(text, "Document %zu", i + 1);
        if (document->title && document->title[0] != '\0') {
            buf_append_str(text, ": ");
            buf_append_str(text, document->title);
        }
        buf_append_char(text, '\n');
        buf_append(text, document->text, document->length);
        buf_append_str(text, "\n\n");
    }
}

static size_t find_user(const struct job *job, bool last)
{
    size_t found = job->n_messages;
    for (size_t i = 0; i < job->n_messages; i++) {
        if (job->messages[i].role != JOB_USER)
            continue;
        found = i;
        if (!last)
            break;
    }
    return found;
}

/* The text of message i; *documents_bytes is what the documents' block takes of it. */
static int build_message(const struct job *job, size_t i, bool with_documents,
                         struct prompt_message *out, size_t *documents_bytes, struct err *e)
{
    const struct job_message *message = &job->messages[i];
    struct buf text = {0};
    buf_append(&text, "", 0);
    *documents_bytes = 0;
    if (with_documents) {
        append_documents(&text, job);
        *documents_bytes = text.length;
        buf_append_str(&text, question_heading);
    }
    buf_append(&text, message->content, message->length);
    out->role = message->role;
    out->length = text.length;
    out->text = buf_take(&text);
    return out->text ? 0 : nomem(e);
}

static int build_messages(const struct job *job, struct prompt *out, struct err *e)
{
    const size_t asked = find_user(job, false);
    out->shared_message = job->n_documents ? asked : find_user(job, true);
    /* No user turn: the last message is the one that differs. */
    if (out->shared_message == job->n_messages && job->n_messages > 0)
        out->shared_message = job->n_messages - 1;
    out->messages = calloc(job->n_messages + 1, sizeof *out->messages);
    if (!out->messages)
        return nomem(e);
    for (size_t i = 0; i < job->n_messages; i++) {
        size_t documents_bytes = 0;
        TRY(build_message(job, i, job->n_documents > 0 && i == asked, &out->messages[i],
                          &documents_bytes, e));
        out->n_messages++;
        if (i == out->shared_message)
            out->shared_bytes = documents_bytes;
    }
    return 0;
}

/* Each part goes in as role, length (8 bytes, little endian), bytes: no two different lists
 * of parts give the same bytes. */
static void hash_part(XXH3_state_t *hash, enum job_role role, const char *bytes, size_t length)
{
    unsigned char frame[9] = {(unsigned char)role};
    for (size_t i = 0; i < 8; i++)
        frame[1 + i] = (unsigned char)((uint64_t)length >> (8 * i));
    XXH3_128bits_update(hash, frame, sizeof frame);
    XXH3_128bits_update(hash, bytes, length);
}

static int hash_group(struct prompt *p, struct err *e)
{
    if (p->shared_message == 0 && p->shared_bytes == 0)
        return 0;
    XXH3_state_t *hash = XXH3_createState();
    if (!hash)
        return nomem(e);
    XXH3_128bits_reset(hash);
    for (size_t i = 0; i < p->shared_message; i++)
        hash_part(hash, p->messages[i].role, p->messages[i].text, p->messages[i].length);
    if (p->shared_bytes > 0) {
        const struct prompt_message *split = &p->messages[p->shared_message];
        hash_part(hash, split->role, split->text, p->shared_bytes);
    }
    XXH128_canonical_t digest;
    XXH128_canonicalFromHash(&digest, XXH3_128bits_digest(hash));
    XXH3_freeState(hash);
    for (size_t i = 0; i < sizeof digest.digest; i++)
        snprintf(p->group + 2 * i, 3, "%02x", digest.digest[i]);
    return 0;
}

int prompt_build(const struct job *job, struct prompt *out, struct err *e)
{
    *out = (struct prompt){0};
    ASSERT(!job_has_unresolved(job));
    int code = build_messages(job, out, e);
    if (code == 0)
        code = hash_group(out, e);
    if (code != 0)
        prompt_fini(out);
    return code;
}

void prompt_fini(struct prompt *p)
{
    for (size_t i = 0; i < p->n_messages; i++)
        free(p->messages[i].text);
    free(p->messages);
    *p = (struct prompt){0};
}
