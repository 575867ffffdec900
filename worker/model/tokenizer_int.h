/*
 * Private parts of the tokenizer: vocabulary tables, the search for special tokens, the merge
 * loop that both algorithms share, and the two algorithms.
 *
 * Everything in struct tokenizer is written while opening and only read after, so that any
 * number of threads may encode and decode at once. Scratch memory belongs to one call.
 *
 * The promise that content never becomes a control token rests on two tables. `by_text` finds
 * every token and is asked only by the search for special tokens, which looks at the mask of
 * the spans. `matchable` says which ids that search may yield from content (user-defined ones)
 * and which only from template text (reserved ones). The algorithms themselves see a token
 * only if it is not reserved, whatever merges or scores a file has.
 */
#ifndef SHEAF_TOKENIZER_INT_H
#define SHEAF_TOKENIZER_INT_H

#define PCRE2_CODE_UNIT_WIDTH 8
#include <pcre2.h>

#include "model/tokenizer.h"

enum token_type {
    TOKEN_NORMAL = 1,
    TOKEN_UNKNOWN = 2,
    TOKEN_CONTROL = 3,
    TOKEN_USER = 4,
    TOKEN_UNUSED = 5,
    TOKEN_BYTE = 6
};

enum tokenizer_model { TOKENIZER_BPE, TOKENIZER_SPM };

/* Strings one after the other; string i is bytes[starts[i] .. starts[i + 1]). */
struct string_table {
    char *bytes;
    size_t *starts; /* [n + 1] */
};

/* The length of some special token that begins with a certain byte. */
struct special_length {
    size_t length;
    bool first[256]; /* first bytes of the special tokens of this length */
};

/* Open addressing; left TOKEN_NONE marks a free slot. */
struct merge_slot {
    int32_t left;
    int32_t right;
    int32_t merged;
    uint32_t rank;
};

enum { PRETOK_PATTERNS_MAX = 4 };

struct pretok {
    pcre2_code *patterns[PRETOK_PATTERNS_MAX];
    size_t n_patterns;
    pcre2_match_context *context; /* limits; only read while matching */
};

struct tokenizer {
    enum tokenizer_model model;
    char kind[64];
    size_t n_vocab;
    struct string_table texts;  /* as stored */
    struct string_table pieces; /* as decoded */
    uint8_t *types;             /* [n_vocab] enum token_type */
    bool *reserved;             /* [n_vocab] never from content, decoded as nothing */
    bool *end;                  /* [n_vocab] ends a generation */
    int32_t *by_text;           /* hash slots; TOKEN_NONE when free */
    size_t by_text_mask;
    int32_t byte_ids[256]; /* the token of a byte, or TOKEN_NONE */
    size_t text_bytes_max; /* longest token text */

    struct special_length *special_lengths; /* longest first */
    size_t n_special_lengths;
    bool special_first[256]; /* bytes that begin a special token */

    int32_t bos, eos, eot, eom, unk;
    bool add_bos;

    /* byte-level BPE */
    struct pretok pretok;
    struct merge_slot *merges;
    size_t merges_mask;
    bool ignore_merges; /* a piece that is a token is taken whole */

    /* SentencePiece */
    float *scores; /* [n_vocab] */
    bool add_space_prefix;
};

/* tokenizer_vocab.c: the tables of a file. */
int vocab_load(struct tokenizer *tok, const struct gguf *g, struct err *e);
void vocab_free(struct tokenizer *tok);
/* The id of a text, or TOKEN_NONE. */
int32_t vocab_find(const struct tokenizer *tok, const char *text, size_t length);
/* The same, but never a reserved token: what text from a job may become. */
int32_t vocab_find_ordinary(const struct tokenizer *tok, const char *text, size_t length);

/* tokenizer_special.c */
struct special_hit {
    size_t start;
    int32_t id;
};
struct special_hits {
    struct special_hit *items; /* owned, ascending by start, not overlapping */
    size_t length;
    size_t capacity;
};
int special_index(struct tokenizer *tok, struct err *e);
/* mask[i]: byte i comes from a span where special tokens are allowed. */
int special_search(const struct tokenizer *tok, const char *text, const bool *mask,
                   size_t length, struct special_hits *out, struct err *e);

/* tokenizer_merge.c: symbols of one piece, merged best pair first, ties leftmost. */
struct merge_symbol {
    uint32_t start;
    uint32_t length; /* 0 when it was merged into its left neighbour */
    int32_t id;      /* TOKEN_NONE: no token has this text */
    int32_t previous, next;
};
struct merge_pair {
    uint64_t order; /* rank, then index of the left symbol */
    uint32_t left_bytes, right_bytes;
    int32_t id;
};
struct merge {
    struct merge_symbol *symbols; /* owned, grows to the longest piece of a call */
    size_t n_symbols;
    size_t symbols_capacity;
    struct merge_pair *heap; /* owned */
    size_t n_heap;
    size_t heap_capacity;
};
/* Rank (lower merges first) and token of two neighbours, or false when they never merge. */
typedef bool merge_lookup(const void *context, const struct merge_symbol *left,
                          const struct merge_symbol *right, uint32_t *rank, int32_t *id);
int merge_reserve(struct merge *m, size_t n_symbols, struct err *e);
void merge_add_symbol(struct merge *m, size_t start, size_t length, int32_t id);
/* Runs to the end; the symbols with length > 0 are the result, in order. */
void merge_run(struct merge *m, merge_lookup *lookup, const void *context);
void merge_fini(struct merge *m);

/* pretok.c: cutting by the patterns of a pre-tokenizer. */
typedef int pretok_piece(void *context, const char *text, size_t length, struct err *e);
struct pretok_traits {
    bool ignore_merges;
    bool add_bos;
};
/* ERR_UNSUPPORTED with the list of names when the name is not known. */
int pretok_open(struct pretok *p, const char *name, size_t length, struct pretok_traits *traits,
                struct err *e);
void pretok_close(struct pretok *p);
/* text must be valid UTF-8. Calls back for each piece in order; together they are the text. */
int pretok_split(const struct pretok *p, const char *text, size_t length, pretok_piece *piece,
                 void *context, struct err *e);

/* bpe.c and spm.c: one stretch between special tokens. */
int bpe_load(struct tokenizer *tok, const struct gguf *g, struct err *e);
int bpe_encode(const struct tokenizer *tok, const char *text, size_t length, struct merge *m,
               struct token_list *out, struct err *e);
/* Writes the byte that a GPT-2 table code point stands for; false when it stands for none. */
bool bpe_byte_of(uint32_t code_point, unsigned char *byte);
/* The UTF-8 form of a byte in the GPT-2 table; returns its length, 1 or 2. */
size_t bpe_text_of(unsigned char byte, char out[2]);

int spm_load(struct tokenizer *tok, const struct gguf *g, struct err *e);
int spm_encode(const struct tokenizer *tok, const char *text, size_t length, bool text_start,
               struct merge *m, struct token_list *out, struct err *e);

#endif
