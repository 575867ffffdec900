/*
 * The engine: tokens in, tokens out. It knows nothing of JSON, Kafka or SQLite.
 *
 * One step computes a ragged list of rows: prefill chunks and decode tokens of any number of
 * sequences. The caller submits sequences, calls engine_step until it has what it wants, and
 * collects finished sequences. All large memory is taken in engine_open from a plan that
 * engine_plan describes; a step allocates nothing.
 *
 * A sequence's tokens are a function of the model, the kernel table, the engine's number
 * formats, its prompt and its sampling parameters; never of what runs beside it, of chunk
 * sizes or of the number of threads. On a device that is so with device_exact; without it they
 * may differ where two logits are nearly the same.
 *
 * Thread: one thread owns an engine; it drives a pool of helpers of its own.
 */
#ifndef SHEAF_ENGINE_H
#define SHEAF_ENGINE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "base/err.h"
#include "engine/draft.h"
#include "engine/draft_tally.h"
#include "engine/kv_disk.h"
#include "engine/prefix.h"
#include "engine/sample.h"
#include "kernels.h"
#include "model/model.h"

struct device_counters;
struct engine;
struct heads;

/* What drafts come from; bits. */
enum speculation {
    SPECULATION_OFF = 0,
    SPECULATION_LOOKUP = 1, /* prompts and answers (drafter.h) */
    SPECULATION_HEADS = 2,  /* networks beside the model (medusa.h) */
    SPECULATION_MODEL = 4,  /* a smaller model (draft_model.h) */
};

struct engine_options {
    size_t n_threads;    /* 0: one per online CPU */
    size_t batch;        /* sequences that decode together */
    size_t step_tokens;  /* rows of one step at most */
    size_t chunk_tokens; /* prompt tokens of one sequence per step at most; 0: calibrated */
    size_t context;      /* longest sequence; 0: the model's own */
    size_t kv_bytes;     /* memory of the KV pool; 0: enough for batch sequences of context,
                            at most a quarter of the machine's memory */
    enum kv_type kv_type;
    enum act_kind activations; /* ACT_INT8 is fast; ACT_F32 is the reference */
    /* The levers; each changes speed only. */
    bool prefix_cache;         /* computed prefixes are kept and shared */
    size_t prefix_tokens_min;  /* shorter ones are not */
    size_t prefix_bytes;       /* kept at most while no sequence uses them; 0: no limit but the
                                  pool */
    bool evicts_by_demand;     /* what queued prompts need goes last */
    bool shared_attention;     /* rows of several sequences read a shared page together */
    bool whole_prompts;        /* no chunks: a prompt runs alone until it is done */
    unsigned speculation;      /* bits of enum speculation (drafters.h) */
    const struct heads *heads; /* with SPECULATION_HEADS; borrowed until engine_open ends */
    /* With SPECULATION_MODEL; its vocabulary is that of the model. Borrowed, and outlives the
     * engine; may drop its weights after engine_open. */
    const struct model *draft_model;
    size_t draft_kv_bytes; /* of its KV pool; 0: as many pages as the KV pool has, at most an
                              eighth of the machine's memory */
    bool draft_always;     /* whatever it costs, for tests */
    struct draft_proposer proposer; /* drafts in its place, whatever it costs; its propose NULL:
                                       does not */
    size_t draft_tokens; /* rows for drafts, besides step_tokens; 0: one sequence's at most, or
                            those that STEP_ROWS_MAX leaves */
    /* Prefixes kept from run to run; needs prefix_cache and a context of a page or more. */
    const char *kv_disk;       /* folder; NULL or "": none. Borrowed until engine_open ends. */
    uint64_t kv_disk_bytes;    /* of its files at most */
    size_t kv_disk_tokens_min; /* shorter prefixes are not worth a file */
    bool kv_disk_always;       /* saves and loads whatever it costs, for tests */
    /* Where the model is computed: "cpu" (NULL is that); a device module's name, "cuda"; or
     * "auto": that device, or the CPU with a line that says why. Drafts are made by the CPU in
     * any case. Borrowed until engine_open ends. */
    const char *device;
    size_t device_ordinal;
    bool device_exact; /* what is computed of a sequence does not depend on what is beside it */
    bool device_graphs; /* small steps are launched as graphs, which changes no answer */
    bool device_ahead;  /* the next step is begun while one is computed (engine_ahead.h) */
    /* How a device keeps the layers' weights: "stored" (NULL is that), as the file does as far
     * as it has kernels for that; or "fp8". Borrowed until engine_open ends. */
    const char *device_weights;
};

enum { CALIBRATION_POINTS_MAX = 8 };

/* How long a step of so many rows took at start; rows rise, us is the shorter of two steps. */
struct calibration {
    size_t n_points;
    struct {
        size_t n_rows;
        int64_t us;
    } points[CALIBRATION_POINTS_MAX];
};

/* What engine_open took, for the start-up print and the database. */
struct engine_plan {
    const char *kernels;  /* "avx512", or "cuda"; a constant */
    const char *device;   /* "NVIDIA H200", or NULL; lives as the engine */
    size_t weights_bytes; /* with a device these three are of its memory */
    size_t kv_bytes;
    size_t activations_bytes;
    size_t drafts_bytes; /* of speculation, at most */
    size_t kv_pages;
    size_t context;
    size_t n_threads;
    size_t chunk_tokens;
    struct calibration calibration; /* no points when chunk_tokens was given */
};

enum finish_reason {
    FINISH_EOS,       /* the model ended its turn */
    FINISH_STOP,      /* a stop string or stop token of the request */
    FINISH_LENGTH,    /* max_tokens */
    FINISH_CONTEXT,   /* the context is full */
    FINISH_CANCELLED, /* engine_cancel, engine_cancel_all */
    FINISH_NOMEM, /* there was no memory for its text: the same request may be submitted again
                   */
};

struct seq_request {
    const int32_t *prompt; /* copied */
    size_t n_prompt;       /* >= 1 */
    size_t max_tokens;     /* >= 1 */
    size_t min_tokens;     /* ends and stops do not count before this many */
    bool ignore_eos;
    bool include_stop; /* keep the stop string in the text */
    struct sample_params sample;
    const char *const *stops; /* NUL-free byte strings, copied */
    size_t n_stops;
    const int32_t *stop_tokens; /* copied */
    size_t n_stop_tokens;
    const char *salt; /* prompts share cached prefixes only under the same salt; NULL is "" */
    /* What the answer may say, for lookup speculation; any numbers, and as many of them count
     * as there is room for. Read in engine_submit only. */
    const int32_t *prediction;
    size_t n_prediction;
    void *user; /* comes back with the result */
};

struct seq_result {
    void *user;
    enum finish_reason reason;
    int stop_index;        /* which stop string, or -1 */
    int32_t stop_token;    /* which token ended it, or TOKEN_NONE */
    const int32_t *tokens; /* generated, the ending token included */
    size_t n_tokens;
    const char *text; /* decoded bytes, cut before the stop string */
    size_t text_bytes;
    size_t n_prompt;
    size_t n_cached;       /* prompt tokens found in the prefix cache when first admitted */
    enum prefix_miss miss; /* why the token at miss_at was not among them */
    size_t miss_at;
    size_t n_steps;  /* engine steps that computed a row of it */
    size_t n_chunks; /* of them with prompt rows */
    size_t n_preempted;
    size_t n_drafted;   /* tokens that steps verified */
    size_t n_accepted;  /* of them, that are among tokens */
    size_t n_predicted; /* of n_drafted, that the request's prediction named */
    size_t n_predicted_accepted;
    const struct draft_tally *drafts; /* lives as the result */
    size_t kv_pages_peak;
    int64_t submitted_us; /* monotonic clock */
    int64_t scheduled_us; /* first step that computed a row of it */
    int64_t first_token_us;
    int64_t last_token_us;
    int64_t gap_us_max; /* longest time between two of its tokens */
};

/* Totals since engine_open; the accounting identities of the report rest on them. */
struct engine_counters {
    uint64_t steps;
    uint64_t rows;
    /* Of them, begun on a device while the one before was computed; and rows that were computed
     * of sequences that had ended by then, which are not among the rows. */
    uint64_t steps_ahead, rows_wasted;
    /* Prompt rows computed, recomputation after preemption and cancelled prompts included. */
    uint64_t computed_tokens;
    /* Of sequences that finished and were not cancelled. */
    uint64_t prompt_tokens, cached_tokens, generated_tokens;
    uint64_t preemptions;
    struct prefix_counters prefix;
    struct draft_counters drafts;
    struct kv_disk_counters disk; /* its loaded tokens are among the cached ones */
    int64_t busy_us;    /* inside engine_step; a device one step ahead works between, too */
    int64_t prefill_us; /* steps' time, shared out by rows */
    int64_t decode_us;
};

/* ERR_CONFIG when an option is out of range, or weights, KV pool and activations are more than
 * the machine's memory. The model is borrowed and must outlive the engine. Weights are packed
 * here: afterwards the caller may drop the model's own (model_drop_weights). */
int engine_open(const struct model *m, const struct engine_options *options,
                struct engine **out, struct err *e);
void engine_close(struct engine *eng);
struct engine_plan engine_plan(const struct engine *eng);
struct engine_counters engine_counters(const struct engine *eng);
/* What steps have cost the device since it was opened (device.h); false: there is none. */
bool engine_device_counters(const struct engine *eng, struct device_counters *out);
/* The CPU's, which computes a draft model even when there is a device. */
const struct kernels *engine_kernels(const struct engine *eng);

/*
 * Queues a sequence. ERR_CONTEXT with both numbers when the prompt leaves no room for a token,
 * ERR_LIMIT when it can never fit the pool; both with ERR_JOB.
 */
int engine_submit(struct engine *eng, const struct seq_request *req, struct err *e);
/* What engine_submit would say of the request, memory apart; never changes. Thread: any. */
int engine_check(const struct engine *eng, const struct seq_request *req, struct err *e);
/* What engine_submit refuses of a request whatever its options are: an empty prompt, ids
 * outside the vocabulary. ERR_INVALID with ERR_JOB. Thread: any. */
int engine_check_tokens(const struct model *m, const struct seq_request *req, struct err *e);
size_t engine_active(const struct engine *eng); /* submitted, result not yet collected */
/* Fewer sequences run or wait than batch. */
bool engine_has_room(const struct engine *eng);

/* Tells the cache of a prompt that will be submitted later, in the order of these calls as far
 * as anybody knows, so that its prefix is kept.
 * ERR_NOMEM only; end it with engine_unwant (accepts NULL) just before the prompt is submitted,
 * with no step in between, or when it is given up. */
int engine_want(struct engine *eng, const char *salt, const int32_t *prompt, size_t n_prompt,
                struct prefix_path **out, struct err *e);
void engine_unwant(struct engine *eng, struct prefix_path *path);

/* Computes one step; *worked is false when there was nothing to do. On a CPU nothing fails.
 * When a device has failed every step with something to compute is ERR_IO with its sentence:
 * what finished before may be collected, the rest can only be cancelled, which needs no device.
 */
int engine_step(struct engine *eng, bool *worked, struct err *e);

/* The next finished sequence, or false. The result lives until the next engine_collect,
 * engine_step or engine_close. */
bool engine_collect(struct engine *eng, struct seq_result *out);

/* Ends every unfinished sequence as FINISH_CANCELLED at the next step's border. */
void engine_cancel_all(struct engine *eng);
/* Likewise the one that was submitted with this user pointer. False: it is not there, or has
 * finished. */
bool engine_cancel(struct engine *eng, const void *user);

/*
 * Logits of every position of one token list, through the same steps (chunked) but outside the
 * queue; for golden tests and perplexity. logits: [n, V]. No sequence may be active.
 */
int engine_logits(struct engine *eng, const int32_t *tokens, size_t n, float *logits,
                  struct err *e);

#endif
