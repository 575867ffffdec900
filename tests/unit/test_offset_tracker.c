/*
 * The offset tracker against its definition: the watermark is the smallest received offset that
 * is not settled, or one past the last received. The model here keeps plain arrays and searches
 * them.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "base/rng.h"
#include "io/offset_tracker.h"

enum { SPAN = 64, MODEL_OFFSETS = 1 << 17 };

enum model_state { UNSEEN, UNSETTLED, SETTLED };

struct model {
    unsigned char state[MODEL_OFFSETS];
    int64_t start, next;
};

static int64_t model_watermark(const struct model *m)
{
    for (int64_t i = m->start < 0 ? 0 : m->start; i < m->next; i++)
        if (m->state[i] == UNSETTLED)
            return i;
    return m->next;
}

static void expect_equal(const struct offset_tracker *t, const struct model *m)
{
    size_t n = 0;
    for (int64_t i = 0; i < m->next; i++)
        n += m->state[i] == UNSETTLED;
    assert_int_equal(t->watermark, model_watermark(m));
    assert_int_equal(t->n_unsettled, n);
    assert_true(offset_tracker_is_sound(t));
}

/* Receives the given offsets, then settles them in the order of the permutation. */
static void run_order(const int64_t *offsets, const int *order, int n)
{
    struct offset_tracker t;
    static struct model m;
    memset(m.state, 0, 128);
    m.start = m.next = 40;
    assert_int_equal(offset_tracker_init(&t, 40, SPAN, NULL), 0);
    for (int i = 0; i < n; i++) {
        assert_true(offset_tracker_receive(&t, offsets[i], 1));
        m.state[offsets[i]] = UNSETTLED;
        m.next = offsets[i] + 1;
        expect_equal(&t, &m);
    }
    for (int i = 0; i < n; i++) {
        const int64_t offset = offsets[order[i]];
        assert_true(offset_tracker_settle(&t, offset));
        assert_false(offset_tracker_settle(&t, offset));
        m.state[offset] = SETTLED;
        expect_equal(&t, &m);
    }
    assert_int_equal(t.watermark, offsets[n - 1] + 1);
    offset_tracker_fini(&t);
}

static long permute(const int64_t *offsets, int *order, int n, int fixed)
{
    if (fixed == n) {
        run_order(offsets, order, n);
        return 1;
    }
    long runs = 0;
    for (int i = fixed; i < n; i++) {
        const int a = order[fixed], b = order[i];
        order[fixed] = b;
        order[i] = a;
        runs += permute(offsets, order, n, fixed + 1);
        order[fixed] = a;
        order[i] = b;
    }
    return runs;
}

/* Every subset of gaps between up to 6 offsets, every order of completion. Offsets from 40 on
 * cross the ring's end at 64 when the gaps are wide. */
static void watermark_is_right_in_every_order_of_completion(void **state)
{
    (void)state;
    static const int64_t gap_sizes[] = {1, 7};
    long runs = 0;
    for (int n = 1; n <= 6; n++)
        for (unsigned gaps = 0; gaps < 1u << n; gaps++)
            for (int size = 0; size < 2; size++) {
                int64_t offsets[6], at = 40;
                int order[6];
                for (int i = 0; i < n; i++) {
                    at += gaps >> i & 1 ? gap_sizes[size] : 0;
                    offsets[i] = at++;
                    order[i] = i;
                }
                runs += permute(offsets, order, n, 0);
            }
    /* sum over n of 2 * 2^n * n! */
    assert_int_equal(runs, 2 * (2 + 8 + 48 + 384 + 3840 + 46080));
}

struct random_run {
    struct offset_tracker t;
    struct model m;
    uint64_t seed, draws;
};

static uint64_t draw(struct random_run *r, uint64_t below)
{
    return rng_bits(r->seed, 0, r->draws++) % below;
}

static void receive_some(struct random_run *r)
{
    for (uint64_t n = draw(r, 8); n > 0; n--) {
        const int64_t offset = r->m.next + (int64_t)(draw(r, 5) == 0 ? draw(r, 20) : 0);
        if (!offset_tracker_has_room(&r->t, offset)) {
            assert_true(offset - model_watermark(&r->m) >= (int64_t)r->t.span);
            return;
        }
        assert_true(offset_tracker_receive(&r->t, offset, (uint32_t)draw(r, 1000)));
        r->m.state[offset] = UNSETTLED;
        r->m.next = offset + 1;
    }
}

/* Mostly near the watermark, sometimes anywhere, also below and above what is known. */
static void settle_some(struct random_run *r)
{
    for (uint64_t n = draw(r, 10); n > 0; n--) {
        const uint64_t reach = draw(r, 10) == 0 ? 2 * r->t.span : 12;
        const int64_t offset = model_watermark(&r->m) - 2 + (int64_t)draw(r, reach);
        const bool unsettled =
            offset >= 0 && offset < r->m.next && r->m.state[offset] == UNSETTLED;
        assert_int_equal(offset_tracker_settle(&r->t, offset), unsettled);
        if (unsettled)
            r->m.state[offset] = SETTLED;
    }
}

static void random_runs_agree_with_the_model(void **state)
{
    (void)state;
    struct random_run *r = calloc(1, sizeof *r);
    assert_non_null(r);
    for (uint64_t seed = 1; seed <= 12; seed++) {
        memset(&r->m, 0, sizeof r->m);
        r->seed = seed;
        r->draws = 0;
        assert_int_equal(offset_tracker_init(&r->t, 0, seed % 2 ? 64 : 1024, NULL), 0);
        print_message("seed %d\n", (int)seed);
        for (int step = 0; step < 1500; step++) {
            const int64_t before = r->t.watermark;
            receive_some(r);
            settle_some(r);
            assert_int_equal(r->t.watermark, model_watermark(&r->m));
            assert_true(r->t.watermark >= before);
            if (step % 50 == 0)
                expect_equal(&r->t, &r->m);
        }
        offset_tracker_fini(&r->t);
    }
    free(r);
}

static void span_is_bounded_by_the_oldest_unsettled(void **state)
{
    (void)state;
    struct offset_tracker t;
    assert_int_equal(offset_tracker_init(&t, 1000, SPAN, NULL), 0);
    assert_true(offset_tracker_receive(&t, 1000, 1));
    for (int64_t i = 1; i < SPAN; i++) {
        assert_true(offset_tracker_has_room(&t, 1000 + i));
        assert_true(offset_tracker_receive(&t, 1000 + i, 1));
        assert_true(offset_tracker_settle(&t, 1000 + i));
    }
    assert_int_equal(t.watermark, 1000);
    assert_false(offset_tracker_has_room(&t, 1000 + SPAN));
    assert_true(offset_tracker_settle(&t, 1000));
    assert_int_equal(t.watermark, 1000 + SPAN);
    /* with nothing unsettled any leap is fine */
    assert_true(offset_tracker_has_room(&t, 1000000));
    assert_true(offset_tracker_receive(&t, 1000000, 1));
    assert_int_equal(t.watermark, 1000000);
    assert_true(offset_tracker_is_sound(&t));
    offset_tracker_fini(&t);
}

static void weights_add_up(void **state)
{
    (void)state;
    struct offset_tracker t;
    assert_int_equal(offset_tracker_init(&t, -1, SPAN, NULL), 0);
    assert_int_equal(t.watermark, -1);
    assert_true(offset_tracker_receive(&t, 5, 100));
    assert_true(offset_tracker_receive(&t, 6, UINT32_MAX));
    assert_false(offset_tracker_receive(&t, 6, 1)); /* seen before */
    assert_int_equal(t.weight_unsettled, 100 + (uint64_t)UINT32_MAX);
    assert_true(offset_tracker_settle(&t, 6));
    assert_int_equal(t.weight_unsettled, 100);
    assert_int_equal(t.watermark, 5);
    offset_tracker_fini(&t);
}

static void end_of_partition_moves_past_trailing_gaps(void **state)
{
    (void)state;
    struct offset_tracker t;
    assert_int_equal(offset_tracker_init(&t, -1, SPAN, NULL), 0);
    offset_tracker_skip_to(&t, 0); /* an empty partition */
    assert_int_equal(t.watermark, 0);
    assert_true(offset_tracker_receive(&t, 0, 1));
    offset_tracker_skip_to(&t, 2); /* offset 1 is a transaction marker */
    assert_int_equal(t.watermark, 0);
    assert_int_equal(t.next, 2);
    assert_true(offset_tracker_settle(&t, 0));
    assert_int_equal(t.watermark, 2);
    offset_tracker_skip_to(&t, 1); /* never backwards */
    assert_int_equal(t.watermark, 2);
    offset_tracker_fini(&t);
}

static void another_owners_progress_is_taken_over(void **state)
{
    (void)state;
    struct offset_tracker t;
    assert_int_equal(offset_tracker_init(&t, 10, SPAN, NULL), 0);
    for (int64_t i = 10; i < 20; i++)
        assert_true(offset_tracker_receive(&t, i, 1));
    offset_tracker_settle_below(&t, 15);
    assert_int_equal(t.watermark, 15);
    assert_int_equal(t.n_unsettled, 5);
    assert_false(offset_tracker_settle(&t, 12));
    offset_tracker_settle_below(&t, 400);
    assert_int_equal(t.watermark, 400);
    assert_int_equal(t.next, 400);
    offset_tracker_restart(&t, 0);
    assert_int_equal(t.watermark, 0);
    assert_true(offset_tracker_receive(&t, 0, 1));
    assert_true(offset_tracker_is_sound(&t));
    offset_tracker_fini(&t);
}

/* A log with gaps, and who has answered what of it. */
enum { LOG_OFFSETS = 3000 };
struct log {
    bool is_record[LOG_OFFSETS];
    int n_answered[LOG_OFFSETS];
};

/* One owner of the partition: takes over what the last one committed, reads on from there,
 * answers some in any order, and commits at some moment, with more answered afterwards or not.
 */
static void own_for_a_while(struct random_run *r, struct log *log,
                            struct offset_bits *committed)
{
    struct offset_tracker *t = &r->t;
    assert_int_equal(offset_tracker_init(t, committed->base, INFLIGHT_SPAN_MAX, NULL), 0);
    offset_tracker_settle_known(t, committed);
    int64_t at = t->next;
    int64_t taken[LOG_OFFSETS];
    size_t n_taken = 0;
    for (uint64_t n = draw(r, 300); n > 0 && at < LOG_OFFSETS; n--, at++) {
        if (log->is_record[at] && offset_tracker_receive(t, at, 1))
            taken[n_taken++] = at;
        if (n_taken > 0 && draw(r, 3) > 0) {
            const size_t k = (size_t)draw(r, n_taken);
            assert_true(offset_tracker_settle(t, taken[k]));
            log->n_answered[taken[k]]++;
            taken[k] = taken[--n_taken];
        }
        if (draw(r, 20) == 0)
            assert_true(offset_tracker_is_sound(t));
    }
    offset_tracker_settled(t, committed);
    offset_tracker_fini(t);
}

static void no_settled_offset_is_handed_out_by_the_next_owner(void **state)
{
    (void)state;
    struct random_run r = {0};
    static struct log log;
    for (r.seed = 1; r.seed <= 40; r.seed++) {
        memset(&log, 0, sizeof log);
        r.draws = 0;
        for (int i = 0; i < LOG_OFFSETS; i++)
            log.is_record[i] = draw(&r, 8) > 0 || i == LOG_OFFSETS - 1;
        struct offset_bits committed = {.base = 0};
        while (committed.base < LOG_OFFSETS) {
            char text[OFFSET_METADATA_MAX + 1];
            const size_t length = offset_metadata_encode(&committed, text);
            const int64_t base = committed.base;
            assert_null(offset_metadata_decode(text, length, base, &committed));
            own_for_a_while(&r, &log, &committed);
            assert_true(committed.base >= base);
        }
        for (int i = 0; i < LOG_OFFSETS; i++)
            assert_int_equal(log.n_answered[i], log.is_record[i]);
    }
}

/* The twin of the claim above: without what was said of the offsets above the committed one,
 * some are handed out again. */
static void without_what_is_known_offsets_are_handed_out_again(void **state)
{
    (void)state;
    struct random_run r = {.seed = 1};
    static struct log log;
    memset(&log, 0, sizeof log);
    for (int i = 0; i < LOG_OFFSETS; i++)
        log.is_record[i] = true;
    struct offset_bits committed = {.base = 0};
    while (committed.base < LOG_OFFSETS) {
        committed = (struct offset_bits){.base = committed.base};
        own_for_a_while(&r, &log, &committed);
    }
    int n_twice = 0;
    for (int i = 0; i < LOG_OFFSETS; i++)
        n_twice += log.n_answered[i] > 1;
    assert_true(n_twice > 100);
}

/* The partition left and came back before its offsets were received again. */
static void what_is_known_above_the_next_offset_is_committed_again(void **state)
{
    (void)state;
    struct offset_tracker t;
    static struct offset_bits known, out;
    known = (struct offset_bits){.base = 100, .n_bits = 6, .bits = {0x2a}}; /* 101 103 105 */
    assert_int_equal(offset_tracker_init(&t, 100, SPAN, NULL), 0);
    offset_tracker_settle_known(&t, &known);
    offset_tracker_settled(&t, &out);
    assert_memory_equal(&out, &known, sizeof out);
    assert_true(offset_tracker_receive(&t, 100, 1));
    assert_int_equal(t.next, 102); /* 101 needs no receiving */
    assert_true(offset_tracker_settle(&t, 100));
    assert_int_equal(t.watermark, 102);
    offset_tracker_settled(&t, &out);
    assert_int_equal(out.base, 102);
    assert_int_equal(out.n_bits, 4);
    assert_int_equal(out.bits[0], 0x0a);              /* 103 105 */
    assert_false(offset_tracker_receive(&t, 103, 1)); /* 102 was a gap */
    assert_int_equal(t.watermark, 104);
    offset_tracker_restart(&t, 0);
    offset_tracker_settled(&t, &out);
    assert_int_equal(out.n_bits, 0);
    assert_true(offset_tracker_is_sound(&t));
    offset_tracker_fini(&t);
}

/* What another owner settled of offsets that are in work here, too. */
static void offsets_in_work_are_settled_by_what_another_owner_says(void **state)
{
    (void)state;
    struct offset_tracker t;
    static struct offset_bits known;
    known = (struct offset_bits){.base = 12, .n_bits = 9, .bits = {0x0a, 0x01}}; /* 13 15 20 */
    assert_int_equal(offset_tracker_init(&t, 10, SPAN, NULL), 0);
    for (int64_t i = 10; i < 18; i++)
        assert_true(offset_tracker_receive(&t, i, 1));
    offset_tracker_settle_known(&t, &known);
    assert_int_equal(t.watermark, 12);
    assert_int_equal(t.n_unsettled, 4); /* 12 14 16 17 */
    assert_false(offset_tracker_settle(&t, 15));
    assert_true(offset_tracker_receive(&t, 18, 1));
    assert_true(offset_tracker_receive(&t, 19, 1));
    assert_int_equal(t.next, 21);
    assert_true(offset_tracker_is_sound(&t));
    offset_tracker_fini(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(watermark_is_right_in_every_order_of_completion),
        cmocka_unit_test(random_runs_agree_with_the_model),
        cmocka_unit_test(span_is_bounded_by_the_oldest_unsettled),
        cmocka_unit_test(no_settled_offset_is_handed_out_by_the_next_owner),
        cmocka_unit_test(without_what_is_known_offsets_are_handed_out_again),
        cmocka_unit_test(what_is_known_above_the_next_offset_is_committed_again),
        cmocka_unit_test(offsets_in_work_are_settled_by_what_another_owner_says),
        cmocka_unit_test(weights_add_up),
        cmocka_unit_test(end_of_partition_moves_past_trailing_gaps),
        cmocka_unit_test(another_owners_progress_is_taken_over),
    };
    return cmocka_run_group_tests_name("offset_tracker", tests, NULL, NULL);
}
