/* Disk to tree: the one place that knows both. */
#include "base/check.h"
#include "engine/kv_disk.h"

/* Pages for what a piece holds from first_page on; fewer when the pool has no more. */
static size_t acquire_pages(struct prefix_tree *t, size_t n, int32_t pages[KV_FILE_PAGES])
{
    ASSERT(n <= KV_FILE_PAGES);
    for (size_t i = 0; i < n; i++) {
        pages[i] = prefix_acquire_page(t);
        if (pages[i] == KVPOOL_NO_PAGE)
            return i;
    }
    return n;
}

/* Returns how many pages the tree has more; fewer than the piece holds end the loading. */
static size_t load_piece(struct kv_disk *d, struct prefix_tree *t, struct prefix_path *path,
                         const struct kv_piece *piece, size_t first_page)
{
    int32_t pages[KV_FILE_PAGES];
    const size_t n = piece->end_page - first_page;
    const size_t n_acquired = acquire_pages(t, n, pages);
    size_t n_good = 0;
    if (n_acquired == n)
        n_good = kv_disk_read(d, piece, first_page, pages);
    size_t n_added = 0;
    for (size_t i = 0; i < n_acquired; i++)
        if (i < n_good && n_added == i)
            n_added += prefix_insert_page(t, path, first_page + i, pages[i]);
        else
            kvpool_release_page(kv_disk_pool(d), pages[i]);
    return n_added;
}

size_t kv_disk_load(struct kv_disk *d, struct prefix_tree *t, struct prefix_path *path,
                    const char *salt, const int32_t *tokens, size_t n_tokens)
{
    struct prefix_hit hit;
    prefix_find(t, path, tokens, n_tokens, &hit);
    const size_t n_pages = n_tokens / KV_PAGE_TOKENS;
    size_t page = hit.n_pages_shared;
    if (hit.miss == PREFIX_MISS_NONE || hit.miss == PREFIX_MISS_OFF || hit.n_coming > 0)
        return 0;
    size_t n_pieces = 0;
    const struct kv_piece *pieces = kv_disk_find(d, salt, tokens, page, n_pages, &n_pieces);
    if (n_pieces == 0 || !kv_disk_pays(d))
        return 0;
    const size_t n_before = page;
    for (size_t i = 0; i < n_pieces; i++) {
        const size_t n = load_piece(d, t, path, &pieces[i], page);
        page += n;
        if (page < pieces[i].end_page)
            break;
    }
    return (page - n_before) * KV_PAGE_TOKENS;
}
