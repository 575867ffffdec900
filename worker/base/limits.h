/*
 * Every limit of the program in one place. A limit that is a matter of taste is a setting
 * (schema/settings.def); these are the hard ones.
 */
#ifndef SHEAF_LIMITS_H
#define SHEAF_LIMITS_H

#include <assert.h>
#include <stdint.h>

/* Job input. */
#define JOB_BYTES_MAX          (16u << 20) /* one job line or record value */
#define JOB_JSON_DEPTH_MAX     64          /* nesting of objects and arrays */
#define JOB_NUMBER_BYTES_MAX   64          /* length of one number token */
#define JOB_ID_BYTES_MAX       512         /* custom_id, run_id */
#define JOB_SALT_BYTES_MAX     256         /* cache_salt */
#define JOB_DOCUMENTS_MAX      1024
#define JOB_MESSAGES_MAX       1024
#define JOB_STOPS_MAX          16
#define JOB_STOP_BYTES_MAX     256
#define JOB_BIAS_MAX           1024
#define JOB_STOP_TOKENS_MAX    32
#define JOB_PREDICTION_BYTES   65536 /* that are read of a prediction */
#define JOB_METADATA_PAIRS     16
#define JOB_METADATA_BYTES_MAX 65536

/* Model files; the reasons are in model/gguf.h. */
#define GGUF_KV_MAX           65536
#define GGUF_TENSORS_MAX      65536
#define GGUF_KEY_BYTES_MAX    256
#define GGUF_STRING_BYTES_MAX (16u << 20)
#define GGUF_ARRAY_ITEMS_MAX  (1u << 24)
#define MODEL_LAYERS_MAX      512
#define MODEL_HEAD_DIM_MAX    512
#define MODEL_CONTEXT_MAX     (1u << 24)
#define TOKEN_BYTES_MAX       65536

/* safetensors files; the reasons are in model/safetensors.h. */
#define SAFETENSORS_HEADER_BYTES_MAX (8u << 20)
#define SAFETENSORS_NAME_BYTES_MAX   255
#define SAFETENSORS_NUMBER_BYTES_MAX 20  /* 2^64 has as many digits */
#define SAFETENSORS_DEPTH_MAX        3   /* the header, a tensor, its shape */
#define SAFETENSORS_FILES_MAX        256 /* of one checkpoint */

/* Engine. */
#define KV_PAGE_TOKENS         32 /* tokens of one KV page: also attention's key block */
#define KV_PAGES_MAX           (INT32_MAX / KV_PAGE_TOKENS)
#define ENGINE_SEQS_MAX        256 /* sequences in flight */
#define ENGINE_THREADS_MAX     64
#define STEP_ROWS_MAX          4096        /* rows of one step */
#define DRAFT_NODES_MAX        63          /* drafted tokens of one sequence in one step */
#define SPEC_PROMPTS_BYTES_MAX (64u << 20) /* indexes of prompts that speculation looks up */
#define SPEC_ANSWERS_BYTES_MAX (32u << 20) /* and of predicted answers */

/* Delivery. */
#define INFLIGHT_SPAN_MAX    16384 /* offsets between the low watermark and the newest job */
#define TOPIC_NAME_BYTES_MAX 249   /* Kafka takes no longer ones */

static_assert((KV_PAGE_TOKENS & (KV_PAGE_TOKENS - 1)) == 0, "page arithmetic uses shifts");
static_assert((KV_PAGES_MAX - 1) * KV_PAGE_TOKENS <= INT32_MAX - (KV_PAGE_TOKENS - 1),
              "page * KV_PAGE_TOKENS + slot is an int32_t");
static_assert(STEP_ROWS_MAX >= ENGINE_SEQS_MAX, "every sequence can decode in one step");
static_assert(JOB_STOP_BYTES_MAX < JOB_BYTES_MAX, "a stop string is part of a job");

#endif
