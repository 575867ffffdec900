/*
 * A batch job: a document once, its cells shared by all its questions, which decode together.
 * The file and what is printed: driver.c.
 */
#include <errno.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "driver.h"

/* Tails of all n questions in as few batches as can be; leaves the first answer tokens. */
static int decode_asks(struct driver *d, const struct document *doc, size_t first, size_t n,
                       size_t *positions)
{
    for (size_t s = 0; s < n;) {
        int rows[SEQUENCES_MAX];
        const size_t begin = s;
        d->batch.n_tokens = 0;
        for (; s < n; s++) {
            const struct ids *ask = &doc->asks[first + s];
            if ((size_t)d->batch.n_tokens + ask->n > BATCH_TOKENS)
                break;
            for (size_t i = 0; i < ask->n; i++)
                add(d, ask->ids[i], doc->text.n + i, s + 1, i + 1 == ask->n);
            rows[s] = d->batch.n_tokens - 1;
            positions[s] = doc->text.n + ask->n;
            d->ask_tokens += ask->n;
        }
        if (s == begin || decode(d) != 0)
            return -1;
        for (size_t k = begin; k < s; k++)
            d->out[k][0] = next_token(d, rows[k]);
    }
    return 0;
}

static void print_answers(struct driver *d, size_t n)
{
    for (size_t s = 0; s < n; s++, d->n_answers++) {
        printf("%s[", d->n_answers ? ",\n" : "");
        for (int i = 0; i < d->o.answer; i++)
            printf("%s%d", i ? "," : "", d->out[s][i]);
        printf("]");
    }
}

static int answer_group(struct driver *d, const struct document *doc, size_t first, size_t n)
{
    size_t positions[SEQUENCES_MAX];
    const double began_s = now_s();
    for (size_t s = 0; s < n; s++)
        share(d, (int)s + 1);
    if (decode_asks(d, doc, first, n, positions) != 0)
        return -1;
    const double asked_s = now_s();
    for (int step = 1; step < d->o.answer; step++)
        if (decode_step(d, n, positions, (size_t)step) != 0)
            return -1;
    d->asks_s += asked_s - began_s;
    d->decode_s += now_s() - asked_s;
    d->decode_tokens += n * (size_t)(d->o.answer - 1);
    print_answers(d, n);
    return 0;
}

static int answer_document(struct driver *d, const struct document *doc)
{
    const double began_s = now_s();
    if (prefill(d, doc->text.ids, doc->text.n) != 0)
        return -1;
    d->prefill_s += now_s() - began_s;
    d->prefill_tokens += doc->text.n;
    const size_t width = (size_t)d->o.width;
    for (size_t first = 0; first < doc->n_asks; first += width) {
        const size_t left = doc->n_asks - first;
        if (answer_group(d, doc, first, left < width ? left : width) != 0)
            return -1;
    }
    return 0;
}

static int parse_line(struct ids *out, const char *text)
{
    size_t room = 0;
    for (char *end;; text = end) {
        errno = 0;
        const long id = strtol(text, &end, 10);
        if (end == text)
            return out->n > 0 ? 0 : fails("a line without tokens", text);
        if (errno != 0 || id < 0 || id > INT32_MAX)
            return fails("not a token", text);
        if (out->n == room) {
            room = room ? 2 * room : 64;
            out->ids = realloc(out->ids, room * sizeof out->ids[0]);
            if (!out->ids)
                return fails("no memory", "tokens");
        }
        out->ids[out->n++] = (llama_token)id;
    }
}

static int read_job(struct driver *d, const char *path)
{
    char *line = NULL;
    size_t room = 0;
    int rc = 0;
    FILE *in = fopen(path, "r");
    if (!in)
        return fails("cannot read", path);
    while (rc == 0 && getline(&line, &room, in) > 0) {
        struct document *doc = d->n_docs ? &d->docs[d->n_docs - 1] : NULL;
        if (strncmp(line, "DOC ", 4) == 0) {
            if (d->n_docs == DOCUMENTS_MAX || (int)d->n_docs == d->o.documents)
                break;
            rc = parse_line(&d->docs[d->n_docs++].text, line + 4);
        } else if (strncmp(line, "ASK ", 4) == 0 && doc && doc->n_asks < ASKS_MAX) {
            rc = parse_line(&doc->asks[doc->n_asks++], line + 4);
        } else {
            rc = fails("neither DOC nor ASK, or too many", path);
        }
    }
    free(line);
    fclose(in);
    return rc == 0 && d->n_docs == 0 ? fails("no documents", path) : rc;
}

static size_t cells_of_job(const struct driver *d)
{
    size_t text = 0, ask = 0;
    for (size_t i = 0; i < d->n_docs; i++) {
        text = d->docs[i].text.n > text ? d->docs[i].text.n : text;
        for (size_t k = 0; k < d->docs[i].n_asks; k++)
            ask = d->docs[i].asks[k].n > ask ? d->docs[i].asks[k].n : ask;
    }
    return text + (size_t)d->o.width * (ask + (size_t)d->o.answer + 8);
}

int run_job(struct driver *d, const char *path)
{
    if (read_job(d, path) != 0 || open_context(d, cells_of_job(d), (size_t)d->o.width) != 0)
        return -1;
    if (prefill(d, d->docs[0].text.ids, 64 < d->docs[0].text.n ? 64 : d->docs[0].text.n) != 0)
        return -1; /* the first touch of the memory */
    printf("{\"peer\": \"%s\", \"answers\": [", peer_name());
    const double began_s = now_s();
    for (size_t i = 0; i < d->n_docs; i++)
        if (answer_document(d, &d->docs[i]) != 0)
            return -1;
    const double seconds = now_s() - began_s;
    printf("],\n\"seconds\": %.4f, \"prefill_s\": %.4f, \"asks_s\": %.4f, \"decode_s\": %.4f, "
           "\"prefill_tokens\": %zu, \"ask_tokens\": %zu, \"decode_tokens\": %zu}\n",
           seconds, d->prefill_s, d->asks_s, d->decode_s, d->prefill_tokens, d->ask_tokens,
           d->decode_tokens);
    return 0;
}
