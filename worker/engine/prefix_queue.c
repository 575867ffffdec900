/*
 * Who wants a node, in the order of their turns: a list through the steps of the paths.
 *
 * Paths mostly come with the latest turn of all, and go from the front; those that were
 * preempted, and submitted ones, whose turn is before that of everything in the window, come
 * back near the front.
 */
#include "base/check.h"
#include "engine/prefix_int.h"

void prefix_queue_join(struct prefix_path *path, size_t step)
{
    struct prefix_step *mine = &path->steps[step];
    struct prefix_node *node = mine->node;
    struct prefix_path *after = node->last_wanting;
    if (after && after->turn > path->turn) {
        struct prefix_path *before = node->first_wanting;
        while (before->turn < path->turn)
            before = before->steps[step].later;
        after = before->steps[step].earlier;
    }
    mine->earlier = after;
    mine->later = after ? after->steps[step].later : node->first_wanting;
    *(mine->earlier ? &mine->earlier->steps[step].later : &node->first_wanting) = path;
    *(mine->later ? &mine->later->steps[step].earlier : &node->last_wanting) = path;
    node->n_wanted++;
}

void prefix_queue_leave(struct prefix_path *path, size_t step)
{
    struct prefix_step *mine = &path->steps[step];
    struct prefix_node *node = mine->node;
    ASSERT(node->n_wanted > 0);
    *(mine->earlier ? &mine->earlier->steps[step].later : &node->first_wanting) = mine->later;
    *(mine->later ? &mine->later->steps[step].earlier : &node->last_wanting) = mine->earlier;
    mine->earlier = mine->later = NULL;
    node->n_wanted--;
}

bool prefix_queue_check(const struct prefix_node *node)
{
    size_t depth = 0, n = 0;
    for (const struct prefix_node *up = node->parent; up->parent; up = up->parent)
        depth++;
    const struct prefix_path *earlier = NULL;
    for (const struct prefix_path *path = node->first_wanting; path;
         path = path->steps[depth].later) {
        const struct prefix_step *step = &path->steps[depth];
        if (step->node != node || step->earlier != earlier ||
            (earlier && earlier->turn >= path->turn))
            return false;
        earlier = path;
        n++;
    }
    return n == node->n_wanted && node->last_wanting == earlier;
}
