/*
 * Sequences over a paged pool as the engine plans them, run through attend(), and the same rows
 * by plain softmax in double. Keys and values are a function of who wrote them and where, so
 * that a row's answer is known without a pool.
 */
#ifndef SHEAF_TESTS_CUDA_ATTEND_RIG_H
#define SHEAF_TESTS_CUDA_ATTEND_RIG_H

#include <vector>

#include "ops.cuh"

enum { PAGE = 32 };

/* A sequence has its parent's contents before n_shared, and its pages that end there. */
struct rig_sequence {
    int parent, n_shared; /* -1, 0: none */
    int n_slots;          /* that have pages; drafts stand behind the positions */
    int writer;           /* whose contents follow */
    std::vector<int> pages;
};

/* Nodes of a draft, one below another, off the sequence's own line. */
struct rig_branch {
    int sequence, first_position;
    std::vector<int> slots;
};

struct rig_row {
    int sequence, position, branch; /* branch -1: the sequence's own line */
};

struct rig {
    kv_type type = KV_BF16;
    int n_heads, n_kv_heads, head_dim;
    std::vector<rig_sequence> sequences;
    std::vector<rig_branch> branches;
    std::vector<rig_row> rows;
    uint64_t content = 1; /* of keys, values and queries */
    float reach = 2.0f;   /* of queries */
};

/* How the rows are stacked, and where. */
struct rig_way {
    uint64_t pages_seed = 1; /* page numbers, and the order of sequences */
    int block_rows = 1000;
    bool is_shared = true; /* rows that share pages stand in one block */
    bool exact = true;
    int n_processors = 0;
    size_t scratch_bytes = 0;
    size_t shared_bytes_max = 227 << 10; /* or what the device has, if that is less */
    /* Counts are rounded up as for a graph, with so many blocks and rows that are nothing. */
    int n_padding = 0;
};

int rig_add_sequence(rig *r, int n_slots, int parent = -1, int n_shared = 0);
/* Below the sequence; first_position and slots as struct device_branch has them. */
int rig_add_branch(rig *r, int sequence, int first_position, const std::vector<int> &slots);
/* A plain sequence with the contents of a branch's path. */
int rig_add_path(rig *r, int branch);
void rig_add_row(rig *r, int sequence, int position, int branch = -1);

/* [rows, H * HD] bits of bfloat16 */
std::vector<uint16_t> rig_run(const rig &r, const rig_way &way);

/* Every element within what rounding may do; fails the test if not. */
void rig_check(const rig &r, const std::vector<uint16_t> &got);
void rig_check_row(const rig &r, size_t row, const std::vector<uint16_t> &got);
/* Are a row's bits of one run those of a row of another one? */
bool rig_is_same_row(const rig &r, const std::vector<uint16_t> &a, size_t row_a,
                     const std::vector<uint16_t> &b, size_t row_b);
/* Fails the test where bits differ. */
void rig_same(const rig &r, const std::vector<uint16_t> &want,
              const std::vector<uint16_t> &got);

/* The key or value, in all dims, that is at a position of a sequence instead of its own. */
struct rig_change {
    int sequence = -1, position = -1;
    bool is_key = false;
    float x = 0;
};
extern rig_change rig_changed;

#endif
