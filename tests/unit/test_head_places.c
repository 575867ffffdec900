/*
 * Whose hidden row stands in which place of a device: what it is told is written down by a
 * backend that does nothing else, and held against a plain list of who was noted when.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "base/rng.h"
#include "engine/engine_device.h"
#include "engine/head_drafts.h"
#include "engine/head_places.h"

enum { PLACES = 4, SEQS = 11 };

/* The row that stands in each place of the device: step and logits row. */
static struct {
    int64_t rows[PLACES];
    int64_t step;
    size_t n_calls;
} told;

static int keep_hidden(struct device *d, size_t n, const int32_t *logits_rows,
                       const int32_t *places, struct err *e)
{
    (void)d;
    (void)e;
    bool is_used[PLACES] = {0};
    told.n_calls++;
    for (size_t i = 0; i < n; i++) {
        assert_in_range(places[i], 0, PLACES - 1);
        assert_false(is_used[places[i]]);
        is_used[places[i]] = true;
        told.rows[places[i]] = 1000 * told.step + logits_rows[i];
    }
    return 0;
}

static const struct device_backend backend = {.keep_hidden = keep_hidden};
static struct engine_device device = {.backend = &backend};

static void open_all(struct head_places **p, struct head_seq *seqs)
{
    assert_int_equal(head_places_open(&device, PLACES, p, NULL), 0);
    for (size_t i = 0; i < SEQS; i++)
        seqs[i] = (struct head_seq){.place = HEAD_PLACE_NONE};
    told.step = 1;
    told.n_calls = 0;
}

static void note(struct head_places *p, struct head_seq *h, size_t logits_row)
{
    head_places_note(p, h, logits_row);
    h->hidden_for = (size_t)(1000 * told.step) + logits_row; /* so that it can be found again */
}

static void keep(struct head_places *p)
{
    head_places_keep(p);
    told.step++;
}

/* Who says to have a row has that one. */
static size_t count_right(const struct head_seq *seqs)
{
    size_t n = 0;
    for (size_t i = 0; i < SEQS; i++) {
        if (seqs[i].hidden_for == 0)
            continue;
        assert_in_range(seqs[i].place, 0, PLACES - 1);
        n += told.rows[seqs[i].place] == (int64_t)seqs[i].hidden_for;
    }
    return n;
}

static size_t count_held(const struct head_seq *seqs)
{
    size_t n = 0;
    for (size_t i = 0; i < SEQS; i++)
        n += seqs[i].hidden_for != 0;
    return n;
}

static void a_step_is_one_call_and_none_without_rows(void **state)
{
    (void)state;
    struct head_places *p;
    struct head_seq seqs[SEQS];
    open_all(&p, seqs);
    keep(p);
    assert_int_equal(told.n_calls, 0);
    for (size_t i = 0; i < PLACES; i++)
        note(p, &seqs[i], 7 - i);
    keep(p);
    assert_int_equal(told.n_calls, 1);
    assert_int_equal(count_right(seqs), PLACES);
    keep(p);
    assert_int_equal(told.n_calls, 1);
    head_places_close(p);
}

static void the_oldest_row_makes_room(void **state)
{
    (void)state;
    struct head_places *p;
    struct head_seq seqs[SEQS];
    open_all(&p, seqs);
    for (size_t i = 0; i < PLACES; i++) {
        note(p, &seqs[i], i);
        keep(p);
    }
    note(p, &seqs[0], 3); /* again: now the second is the oldest */
    note(p, &seqs[4], 5);
    assert_int_equal(seqs[1].place, HEAD_PLACE_NONE);
    assert_int_equal(seqs[1].hidden_for, 0);
    keep(p);
    assert_int_equal(count_held(seqs), PLACES);
    assert_int_equal(count_right(seqs), PLACES);
    head_places_drop(p, &seqs[3]);
    seqs[3].hidden_for = 0;
    note(p, &seqs[5], 1); /* into the free one */
    keep(p);
    assert_true(seqs[2].hidden_for != 0);
    assert_int_equal(count_right(seqs), PLACES);
    head_places_drop(p, &seqs[1]); /* which has none */
    head_places_close(p);
}

static void whoever_has_a_row_has_the_right_one(void **state)
{
    (void)state;
    struct head_places *p;
    struct head_seq seqs[SEQS];
    uint64_t n = 0;
    open_all(&p, seqs);
    for (size_t step = 0; step < 2000; step++) {
        bool is_noted[SEQS] = {0};
        for (size_t i = 0; i < PLACES; i++) {
            const size_t who = rng_bits(1, 2, n++) % SEQS;
            if (!is_noted[who])
                note(p, &seqs[who], rng_bits(1, 2, n++) % 100);
            is_noted[who] = true;
        }
        keep(p);
        for (size_t i = 0; i < SEQS; i++)
            assert_true(!is_noted[i] || seqs[i].hidden_for >= 1000 * step);
        assert_int_equal(count_right(seqs), count_held(seqs));
        const size_t who = rng_bits(1, 2, n++) % SEQS;
        if (step % 3 == 0) {
            head_places_drop(p, &seqs[who]);
            seqs[who].hidden_for = 0;
        }
    }
    for (size_t i = 0; i < PLACES; i++) /* and wrong ones are seen */
        told.rows[i]++;
    assert_true(count_held(seqs) > 0 && count_right(seqs) == 0);
    head_places_close(p);
}

static void a_device_that_has_failed_is_not_called(void **state)
{
    (void)state;
    struct head_places *p;
    struct head_seq seqs[SEQS];
    open_all(&p, seqs);
    ERR_SET(&device.failure, ERR_IO, "planted");
    note(p, &seqs[0], 0);
    keep(p);
    assert_int_equal(told.n_calls, 0);
    device.failure = (struct err){0};
    head_places_close(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_step_is_one_call_and_none_without_rows),
        cmocka_unit_test(the_oldest_row_makes_room),
        cmocka_unit_test(whoever_has_a_row_has_the_right_one),
        cmocka_unit_test(a_device_that_has_failed_is_not_called),
    };
    return cmocka_run_group_tests_name("places of hidden rows", tests, NULL, NULL);
}
