/*
 * A step's metadata: gathered in pinned memory and copied in one go, in sections that follow
 * each other.
 *
 *     tokens, kv_slots, cos_sin, attend rows, spans, blocks, branches, logits rows,
 *     temperatures, slots, pages
 *
 * A section has room for the shape that the step is computed as, which may be more than it has:
 * then what is left is filled with what does no harm, and steps of one shape find all sections
 * at the same places. Pages come last, so that their number moves nothing.
 *
 * One buffer on the device is enough, since its stream orders copies and kernels; two in pinned
 * memory, so that a step may be filled in while the copy of the one before is under way.
 */
#include <string.h>

#include "device_int.cuh"

extern "C" {
#include "base/check.h"
}

enum { SECTION_ALIGN = 16, SECTIONS = 11 };

size_t device_step_bytes(const device_options *o, const device_model *m)
{
    const size_t row = 2 * sizeof(int32_t) + m->n_rot * sizeof(float) +
                       sizeof(device_attend_row) + SPANS_OF_ROW * sizeof(device_span) +
                       sizeof(device_block) + sizeof(device_branch);
    return o->n_rows_max * row +
           (o->n_logits_max + o->n_page_refs_max + o->n_slots_max) * sizeof(int32_t) +
           o->n_logits_max * sizeof(float) + SECTIONS * SECTION_ALIGN;
}

int device_meta_open(device *d, struct err *e)
{
    stage *m = &d->meta;
    const char *what = "a step's metadata";
    m->bytes = device_step_bytes(&d->options, &d->model);
    TRY(device_take_array(d, m->bytes, what, &m->on_device, e));
    for (int i = 0; i < STAGES; i++)
        TRY(device_take_pinned_array(d, m->bytes, what, &m->pinned[i], e));
    return 0;
}

/* ------------------------------------------------------------------ sections */

/* Puts an array behind the others, in a section with room for so many, and says where it will
 * be on the device. */
template <class T>
static const T *put(stage *m, const T *array, size_t n, size_t room, const T &filling)
{
    const size_t at = m->used, bytes = room * sizeof(T);
    ASSERT(n <= room && at + bytes <= m->bytes);
    T *section = (T *)(m->pinned[m->current] + at);
    if (n > 0)
        memcpy(section, array, n * sizeof(T));
    for (size_t i = n; i < room; i++)
        section[i] = filling;
    m->used = (at + bytes + SECTION_ALIGN - 1) / SECTION_ALIGN * SECTION_ALIGN;
    return (const T *)(m->on_device + at);
}

/* Pinned memory is filled again only when its last copy is known to have ended. */
static int next_stage(device *d, struct err *e)
{
    stage *m = &d->meta;
    if (m->n_in_flight == STAGES)
        TRY(device_settle(d, "a step before failed", e));
    m->current = (m->current + 1) % STAGES;
    m->n_in_flight++;
    m->used = 0;
    return 0;
}

/* A row that fills up is token 0 at a slot that is none, and no block has it. */
int device_copy_metadata(device *d, const device_step *s, const step_shape *as,
                         step_on_device *out, struct err *e)
{
    const size_t n_rows = (size_t)as->n_rows, n_rot = d->model.n_rot;
    const device_attend_row no_row = {-1, 0, -1};
    const int32_t no_slot = -1;
    TRY(next_stage(d, e));
    stage *m = &d->meta;
    out->tokens = put(m, s->tokens, s->n_rows, n_rows, 0);
    out->kv_slots = put(m, s->kv_slots, s->n_rows, n_rows, no_slot);
    out->cos_sin = put(m, s->cos_sin, s->n_rows * n_rot, n_rows * n_rot, 0.0f);
    out->rows = put(m, s->attend_rows, s->n_attend_rows, n_rows, no_row);
    out->spans = put(m, s->spans, s->n_spans, (size_t)as->n_spans, {});
    out->blocks = put(m, s->blocks, s->n_blocks, (size_t)as->n_blocks, {});
    out->branches = put(m, s->branches, s->n_branches, (size_t)as->n_branches, {});
    out->logits_rows = put(m, s->logits_rows, s->n_logits, (size_t)as->n_logits, 0);
    out->temperatures = put(m, s->temperatures, s->n_logits, (size_t)as->n_logits, 0.0f);
    out->slots = put(m, s->slots, s->n_slots, (size_t)as->n_slots, 0);
    out->pages = put(m, s->pages, s->n_pages, s->n_pages, 0);
    copy_to_device(d->stream, m->on_device, m->pinned[m->current], m->used);
    d->counters.copies++;
    return 0;
}
