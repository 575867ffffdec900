#include "engine/kv_disk_seq.h"

void kv_disk_load_waiting(struct kv_disk *d, struct prefix_tree *t, const struct sched *s,
                          size_t batch)
{
    if (!d)
        return;
    size_t n_places = batch - sched_n_running(s);
    const size_t n = sched_n_running(s) + sched_n_waiting(s);
    for (size_t i = sched_n_running(s); i < n && n_places > 0; i++) {
        struct seq *seq = sched_at(s, i);
        struct prefix_hit hit;
        if (!seq->was_looked_for) {
            prefix_find(t, seq->path, seq->tokens, seq->n_tokens, &hit);
            if (hit.n_coming > 0 || seq_pages_for(seq->n_tokens) > prefix_pages_available(t))
                continue;
            kv_disk_load(d, t, seq->path, seq->salt, seq->tokens, seq->n_prompt);
            seq->was_looked_for = true;
        }
        n_places--;
    }
}

void kv_disk_save_seq(struct kv_disk *d, struct seq *seq, bool ends)
{
    if (!d)
        return;
    const size_t n = kv_disk_pages_to_save(d, seq->n_cached, seq->n_prompt);
    if (seq->n_pages_saved < n && seq->n_pages >= n && seq->n_computed >= n * KV_PAGE_TOKENS)
        seq->n_pages_saved =
            kv_disk_save(d, seq->salt, seq->tokens, seq->n_pages_saved, seq->pages, n, ends);
}
