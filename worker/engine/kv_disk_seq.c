#include "engine/kv_disk_seq.h"

enum { END_WAIT_US = 250000 };

/* n_kept: pages that wait in the tree for sequences before it. */
static bool has_room(const struct prefix_tree *t, const struct seq *seq, size_t n_kept)
{
    struct prefix_hit hit;
    prefix_find(t, seq->path, seq->tokens, seq->n_tokens, &hit);
    return hit.n_coming == 0 &&
           seq_pages_for(seq->n_tokens) + n_kept <= prefix_pages_available(t);
}

static void look_for(struct kv_disk *d, struct prefix_tree *t, struct seq *seq)
{
    seq->n_pages_loaded =
        kv_disk_load(d, t, seq->path, seq->salt, seq->tokens, seq->n_prompt) / KV_PAGE_TOKENS;
    seq->was_looked_for = true;
}

void kv_disk_load_waiting(struct kv_disk *d, struct prefix_tree *t, const struct sched *s,
                          size_t batch)
{
    if (!d)
        return;
    size_t n_places = batch - sched_n_running(s), n_kept = 0;
    const size_t n = sched_n_running(s) + sched_n_waiting(s);
    bool loaded = false;
    for (size_t i = sched_n_running(s); i < n; i++) {
        struct seq *seq = sched_at(s, i);
        seq->waits_for_disk = loaded && !seq->was_looked_for;
        if (seq->waits_for_disk || n_places == 0 ||
            (!seq->was_looked_for && !has_room(t, seq, n_kept)))
            continue;
        if (!seq->was_looked_for) {
            look_for(d, t, seq);
            loaded = seq->n_pages_loaded > 0;
        }
        n_kept += seq->n_pages_loaded;
        n_places--;
    }
}

void kv_disk_save_seq(struct kv_disk *d, struct seq *seq, bool ends)
{
    if (!d)
        return;
    const size_t n = kv_disk_pages_to_save(d, seq->n_cached, seq->n_prompt);
    const int64_t wait_us = ends ? END_WAIT_US : 0;
    if (seq->n_pages_saved < n && seq->n_pages >= n && seq->n_computed >= n * KV_PAGE_TOKENS)
        seq->n_pages_saved =
            kv_disk_save(d, seq->salt, seq->tokens, seq->n_pages_saved, seq->pages, n, wait_us);
}
