/* The layout: every token once, exactly T/R each, spans that cover exactly the causal pairs, balanced work. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/parallel/layout.h"
#include "tests/parallel/even.h"
#include "tests/suite.h"

static uint64_t state;
static int64_t pick(int64_t lo, int64_t hi)
{
    state ^= state << 13, state ^= state >> 7, state ^= state << 17;
    return lo + (int64_t)(state % (uint64_t)(hi - lo + 1));
}

/* Documents of random lengths, empty and tiny ones among them, that fill T. */
static int64_t random_row(int64_t *cu, int64_t T, int64_t longest)
{
    int64_t n = 0;
    cu[0] = 0;
    while (cu[n] < T) {
        int64_t len = pick(0, 3) == 0 ? pick(0, 9) : pick(1, longest);
        cu[n + 1] = cu[n] + len < T ? cu[n] + len : T;
        n++;
    }
    return n;
}

/* Marks which (query, key) pairs of the row the spans of all rank pairs name; each causal pair within a document exactly once. */
START_TEST(spans_cover_causal_pairs)
{
    state = 88172645463325252u + (uint64_t)_i;
    int R = (int)pick(1, 6), U = (int)pick(1, 3);
    int64_t T = (int64_t)R * U * pick(1, 20), window = _i % 3 == 2 ? pick(1, 12) : 0, cu[512];
    int64_t n_docs = random_row(cu, T, 60);
    struct layout l;
    struct error err = { 0 };
    ck_assert_int_eq(layout_build(&l, cu, n_docs, T, R, U, &err), OK);
    int64_t *row_of = xmalloc((unsigned long)T * 8), *doc = xmalloc((unsigned long)T * 8), pairs = 0, wrong = 0;
    bool twice = false;
    uint8_t *seen = xcalloc((unsigned long)T, (unsigned long)T), *owned = xcalloc((unsigned long)T, 1);
    for (int64_t d = 0; d < n_docs; d++)
        for (int64_t t = cu[d]; t < cu[d + 1]; t++) doc[t] = d;
    for (int r = 0; r < R; r++)
        for (int u = 0; u < U; u++) layout_index(&l, r, u, row_of + (r * U + u) * (T / R / U));
    for (int64_t t = 0; t < T; t++) {
        ck_assert_int_eq(owned[row_of[t]]++, 0);
        if (t % (T / R) > 0) ck_assert_int_gt(row_of[t], row_of[t - 1]);        /* ring-local order ascends */
    }
    struct attn_span *spans = xmalloc((unsigned long)layout_spans_bound(n_docs, T, R) * sizeof *spans + 1);
    for (int rq = 0; rq < R; rq++) {
        int64_t all = 0;
        for (int rk = 0; rk < R; rk++) {
            int64_t n = layout_spans(&l, rq, rk, window, spans), *q = row_of + rq * (T / R), *k = row_of + rk * (T / R);
            ck_assert_int_le(n, layout_spans_bound(n_docs, T, R));
            all += n;
            ck_assert_int_le(all, layout_spans_bound_all(n_docs, T, R));
            for (int64_t i = 0; i < n; i++) {
                struct attn_span s = spans[i];
                ck_assert(s.q0 >= 0 && s.q0 + s.nq <= T / R && s.k0 >= 0 && s.k0 + s.nk <= T / R);
                if (i > 0) ck_assert(spans[i - 1].q0 < s.q0 || (spans[i - 1].q0 == s.q0 && spans[i - 1].k0 < s.k0));
                for (int64_t a = 0; a < s.nq; a++)
                    for (int64_t b = 0; b < s.nk; b++)
                        if (b <= a + s.diag && (window == 0 || b > a + s.diag - window)) twice |= seen[q[s.q0 + a] * T + k[s.k0 + b]]++ > 0;
            }
        }
    }
    for (int64_t a = 0; a < T; a++)
        for (int64_t b = 0; b < T; b++) {
            bool want = b <= a && doc[a] == doc[b] && (window == 0 || b > a - window);
            wrong += seen[a * T + b] != want;
            pairs += want;
        }
    ck_assert(!twice && wrong == 0);
    for (int r = 0; r < R; r++) pairs -= layout_work(&l, r, window);
    ck_assert_int_eq(pairs, 0);
    free(spans);
    free(row_of);
    free(doc);
    free(seen);
    free(owned);
    layout_release(&l);
}
END_TEST

static double evenness(const int64_t *cu, int64_t n_docs, int R)
{
    struct layout l;
    struct error err = { 0 };
    ck_assert_int_eq(layout_build(&l, cu, n_docs, cu[n_docs], R, 1, &err), OK);
    double ratio = slowest_over_mean(&l);
    layout_release(&l);
    return ratio;
}

START_TEST(dense_is_balanced)
{
    static const int64_t lengths[] = { 512, 4096, 32768, 131072 };
    for (int i = 0; i < 4; i++) {
        int64_t cu[2] = { 0, lengths[i] };
        ck_assert_double_le(evenness(cu, 1, 4), 1.02);
    }
    int64_t odd[3] = { 0, 32768 - 333, 32768 };         /* nothing divides, padding at the end */
    ck_assert_double_le(evenness(odd, 2, 4), 1.02);
}
END_TEST

/* Lengths as chat data has them: many short, few long. */
START_TEST(packed_is_balanced)
{
    state = 20240607u + (uint64_t)_i;
    int64_t T = 4096 << _i % 4, cu[8192], n = 0;
    for (cu[0] = 0; cu[n] < T; n++) {
        int64_t len = 1;
        for (int64_t k = pick(4, 11); k > 0; k--) len *= 2;
        len = pick(len / 2, len);
        cu[n + 1] = cu[n] + len < T ? cu[n] + len : T;
    }
    ck_assert_double_le(evenness(cu, n, 4), 1.1);
    ck_assert_double_le(evenness(cu, n, 8), 1.1);
}
END_TEST

START_TEST(refusals)
{
    struct layout l;
    struct error err = { 0 };
    int64_t cu[2] = { 0, 17 }, backwards[4] = { 0, 9, 4, 16 };
    ck_assert_int_eq(layout_build(&l, cu, 1, 17, 2, 2, &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "17 tokens"));
    layout_release(&l);
    ck_assert_int_eq(layout_build(&l, cu, 1, 16, 2, 2, &err), E_INVALID);
    layout_release(&l);
    ck_assert_int_eq(layout_build(&l, backwards, 3, 16, 2, 2, &err), E_INVALID);
    layout_release(&l);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("layout");
    TCase *t = tcase_create("layout");
    tcase_set_timeout(t, 200);
    tcase_add_loop_test(t, spans_cover_causal_pairs, 0, 120);
    tcase_add_test(t, dense_is_balanced);
    tcase_add_loop_test(t, packed_is_balanced, 0, 12);
    tcase_add_test(t, refusals);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
