#include <check.h>
#include <stdlib.h>

#include "worker/data/order.h"
#include "worker/data/pack.h"
#include "tests/suite.h"

/* The plain quadratic algorithm: what the tree must equal in number of rows. */
static int64_t plain_rows(const int64_t *length, int64_t n, int64_t capacity)
{
    int64_t *v = malloc((size_t)n * sizeof *v), *room = malloc((size_t)n * sizeof *room), rows = 0;
    for (int64_t i = 0; i < n; i++) v[i] = length[i];
    for (int64_t i = 1; i < n; i++)
        for (int64_t k = i; k > 0 && v[k] > v[k - 1]; k--) { int64_t t = v[k]; v[k] = v[k - 1]; v[k - 1] = t; }
    for (int64_t i = 0; i < n; i++) {
        int64_t best = -1;
        for (int64_t r = 0; r < rows; r++) if (room[r] >= v[i] && (best < 0 || room[r] < room[best])) best = r;
        if (best < 0) { best = rows++; room[best] = capacity; }
        room[best] -= v[i];
    }
    free(v);
    free(room);
    return rows;
}

START_TEST(every_document_once_and_no_row_too_long)
{
    uint64_t s = (uint64_t)_i + 1;
    int64_t n = (int64_t)(order_next(&s) % 700), capacity = 1 + (int64_t)(order_next(&s) % 300);
    int64_t length[700] = { 0 };
    int seen[700] = { 0 };
    for (int64_t i = 0; i < n; i++) length[i] = 1 + (int64_t)(order_next(&s) % (uint64_t)capacity);
    struct packing p;
    pack_best_fit(&p, length, n, capacity);
    for (int64_t r = 0; r < p.n_rows; r++) {
        int64_t sum = 0;
        ck_assert(p.first[r] < p.first[r + 1]);
        for (int64_t k = p.first[r]; k < p.first[r + 1]; k++) {
            sum += length[p.docs[k]];
            seen[p.docs[k]]++;
            ck_assert(k == p.first[r] || p.docs[k] > p.docs[k - 1]);
        }
        ck_assert(sum <= capacity);
        ck_assert(r == 0 || p.docs[p.first[r]] > p.docs[p.first[r - 1]]);
    }
    for (int64_t i = 0; i < n; i++) ck_assert_int_eq(seen[i], 1);
    if (n) ck_assert_int_eq(p.n_rows, plain_rows(length, n, capacity));
    packing_release(&p);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("pack");
    TCase *t = tcase_create("pack");
    tcase_add_loop_test(t, every_document_once_and_no_row_too_long, 0, 40);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
