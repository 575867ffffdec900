/*
 * The documents that jobs refer to: a reference -> title and text.
 *
 * Sources, asked in this order:
 *
 *   a file      lines {"id", "title", "text"}, read once, when it is opened
 *   a folder    one document a file: the reference is the file's name relative to the folder,
 *               its bytes are the text. Names that lead out of the folder are refused, be it
 *               by "..", by a leading "/", or by a symbolic link; but what no file below the
 *               folder can be called ("/a", "a/../b") is looked for in the topic when there is
 *               one, whose keys may be anything
 *   a topic     compacted: key = reference, value as in document.h, a tombstone takes the
 *               document away. Read from its beginning, by a consumer and a thread of its own,
 *               from the first reference on that asks for it; never commits anything
 *
 * A reference that a file or folder does not have fails at once; with a topic it is waited for,
 * wait_us long, from when the job asked or, while the topic is still being read for the first
 * time, from the last record that came (then 10 s at least). As long as no broker says whether
 * there is such a topic, a job waits 240 s at least.
 *
 * Texts are held in memory, up to bytes_max for the topic and as much for the file. A file that
 * does not fit is refused. Of a topic, what does not fit is let go, is said in the log, and
 * fails the jobs that refer to it; after a million such documents the jobs wait before they
 * fail, as for a document that nobody has.
 *
 * A reference stands for one text for good: a job that was answered is not answered again
 * because its document changed. Partitions that a topic gains while it is read are seen at the
 * next start.
 *
 * document errors of a job (param documents[i].ref):
 *
 *   document_not_found     404
 *   document_invalid       400  what is there is no document: not UTF-8, too long, a folder
 *   documents_too_large    413  a job's texts together have more than JOB_BYTES_MAX
 *   documents_memory_full  500  bytes_max is reached
 */
#ifndef SHEAF_DOCUMENTS_H
#define SHEAF_DOCUMENTS_H

#include <stdbool.h>
#include <stdint.h>

#include "io/queue_kafka.h"
#include "job.h"

struct documents_options {
    const char *path;  /* a file or folder; NULL or "": none */
    const char *topic; /* NULL or "": none; else with kafka, of which brokers, group, props */
    const struct kafka_options *kafka; /* borrowed until close */
    size_t bytes_max;
    int64_t wait_us; /* for the topic */
};

struct documents;
/* Reads the file. ERR_NOTFOUND, ERR_FORMAT, ERR_LIMIT name the path and line. */
int documents_open(const struct documents_options *o, struct documents **out, struct err *e);

/*
 * Puts title (unless the job has one) and text into every reference of the job. *waits: one of
 * them may still come, and none was put in; ask again after documents_generation has changed or
 * time has passed; since_us (monotonic) is when the job asked first. Otherwise the job is whole
 * or has an error. d NULL: no document is found. A failure is none of the job: no memory, no
 * thread, a property that Kafka refuses; with ERR_RETRY a document that is there and could not
 * be read now (EIO and its like).
 *
 * Thread: one.
 */
int documents_resolve(struct documents *d, struct job *job, int64_t since_us, bool *waits,
                      struct err *e);
/* Changes whenever a document comes in. Thread: any. */
uint64_t documents_generation(const struct documents *d);
void documents_close(struct documents *d); /* accepts NULL */

#endif
