/* Loading: what the files of a prefix hold becomes pages of the tree. */
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

/* False when the pool has no more pages; n_added are the tree's. */
static bool load_piece(struct kv_disk *d, struct prefix_tree *t, struct prefix_path *path,
                       const struct kv_piece *piece, size_t first_page, size_t *n_added)
{
    int32_t pages[KV_FILE_PAGES];
    const size_t n = piece->end_page - first_page;
    const size_t n_acquired = acquire_pages(t, n, pages);
    size_t n_good = 0;
    if (n_acquired == n)
        n_good = kv_disk_read(d, piece, first_page, pages);
    for (size_t i = 0; i < n_acquired; i++)
        if (i < n_good)
            *n_added += prefix_insert_page(t, path, first_page + i, pages[i]);
        else
            kvpool_release_page(kv_disk_pool(d), pages[i]);
    return n_acquired == n;
}

size_t kv_disk_load(struct kv_disk *d, struct prefix_tree *t, struct prefix_path *path,
                    const char *salt, const int32_t *tokens, size_t n_tokens)
{
    struct prefix_hit hit;
    prefix_find(t, path, tokens, n_tokens, &hit);
    if (hit.miss == PREFIX_MISS_NONE || hit.miss == PREFIX_MISS_OFF || hit.n_coming > 0)
        return 0;
    const size_t n_pages = n_tokens / KV_PAGE_TOKENS;
    size_t first_page = hit.n_pages_shared, n_pieces = 0, n_added = 0;
    const struct kv_piece *pieces =
        kv_disk_find(d, salt, tokens, first_page, n_pages, &n_pieces);
    if (n_pieces == 0 || !kv_disk_pays(d))
        return 0;
    /* Behind a bad file the others are of no use now, but are judged all the same: so all bad
     * ones are out of the way when the prefix is saved again. */
    for (size_t i = 0; i < n_pieces; i++) {
        if (!load_piece(d, t, path, &pieces[i], first_page, &n_added))
            break;
        first_page = pieces[i].end_page;
    }
    return n_added * KV_PAGE_TOKENS;
}
