#include "engine/seq_output.h"

#include <math.h>
#include <string.h>

#include "base/check.h"
#include "engine/stop.h"

static void forbid_ends(const struct tokenizer *tok, float *logits)
{
    for (size_t id = 0; id < tokenizer_vocab_size(tok); id++)
        if (tokenizer_is_end(tok, (int32_t)id))
            logits[id] = -INFINITY;
}

int32_t seq_draw_token(const struct seq *seq, const struct tokenizer *tok,
                       struct sampler *sampler, float *logits, size_t n_drawn)
{
    if (seq_n_output(seq) + n_drawn < seq->req.min_tokens)
        forbid_ends(tok, logits);
    return sample_token(sampler, &seq->req.sample, logits, seq->tokens, seq->n_prompt,
                        seq->n_tokens + n_drawn);
}

bool seq_draw_candidate(const struct seq *seq, struct sampler *sampler,
                        const struct device_candidates *found, const float *logits,
                        size_t n_drawn, int32_t *token)
{
    ASSERT(seq_n_output(seq) + n_drawn >= seq->req.min_tokens);
    return sample_candidate(sampler, &seq->req.sample, found, logits, seq->n_tokens + n_drawn,
                            token);
}

/* Adds the token's text; returns how many bytes came. */
static size_t append_text(const struct tokenizer *tok, struct seq *seq, int32_t token)
{
    const struct gguf_str piece = tokenizer_next_piece(tok, token, &seq->text_start);
    const size_t before = seq->text.length;
    buf_append(&seq->text, piece.data, piece.length);
    return seq->text.length - before; /* 0 when there was no memory */
}

static bool is_stop_token(const struct seq *seq, int32_t token)
{
    for (size_t i = 0; i < seq->req.n_stop_tokens; i++)
        if (seq->stop_tokens[i] == token)
            return true;
    return false;
}

/* True when the sequence ends with this token; says why. */
static bool ends_with(const struct tokenizer *tok, struct seq *seq, int32_t token,
                      size_t new_bytes, enum finish_reason *reason)
{
    const bool may_stop = seq_n_output(seq) > seq->req.min_tokens || seq->req.min_tokens == 0;
    struct stop_match match;
    if (may_stop && stop_find(buf_str(&seq->text), seq->text.length, new_bytes, seq->stops,
                              seq->req.n_stops, &match)) {
        seq->stop_index = (int)match.index;
        const size_t kept =
            match.offset + (seq->req.include_stop ? strlen(seq->stops[match.index]) : 0);
        buf_truncate(&seq->text, kept);
        *reason = FINISH_STOP;
        return true;
    }
    if (may_stop && is_stop_token(seq, token)) {
        seq->stop_token = token;
        buf_truncate(&seq->text, seq->text.length - new_bytes);
        *reason = FINISH_STOP;
        return true;
    }
    if (!seq->req.ignore_eos && tokenizer_is_end(tok, token)) {
        seq->stop_token = token;
        buf_truncate(&seq->text, seq->text.length - new_bytes);
        *reason = FINISH_EOS;
        return true;
    }
    if (seq_n_output(seq) == seq->req.max_tokens) {
        *reason = FINISH_LENGTH;
        return true;
    }
    *reason = FINISH_CONTEXT;
    return seq->n_tokens == seq->capacity;
}

bool seq_accept_token(struct seq *seq, const struct tokenizer *tok, int32_t token,
                      int64_t now_us, enum finish_reason *reason)
{
    seq->tokens[seq->n_tokens++] = token;
    if (seq_n_output(seq) == 1)
        seq->first_token_us = now_us;
    else if (now_us - seq->last_token_us > seq->gap_us_max)
        seq->gap_us_max = now_us - seq->last_token_us;
    seq->last_token_us = now_us;
    const size_t new_bytes = append_text(tok, seq, token);
    if (buf_ok(&seq->text))
        return ends_with(tok, seq, token, new_bytes, reason);
    *reason = FINISH_NOMEM;
    return true;
}
