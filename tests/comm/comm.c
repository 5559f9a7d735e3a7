/* Collectives against what they say, over world sizes, in comm memory and elsewhere, in pieces and whole; counts are exact. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "tests/comm/ranks.h"
#include "tests/suite.h"

#define NEED(x) do { if (!(x)) { (void)fprintf(stderr, "rank %d: line %d: %s (%s)\n", rank, __LINE__, #x, err.text); return 1; } } while (0)

static struct comm *everyone(struct comm_world *w)
{
    int ranks[64];
    struct comm *c = NULL;
    struct error err;
    for (int i = 0; i < w->world; i++) ranks[i] = i;
    if (comm_group(&c, w, ranks, w->world, &err) != OK) abort();
    return c;
}

/* Unique integers out and back: rank p's slice for q holds (p, q, i). */
static int all_to_all(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct error err = { 0 };
    struct comm *c = everyone(w);
    int n = w->world;
    enum { M = 1001, K = 7 };
    int32_t *send = comm_memory(w), *send2 = send + M * n, *back = send2 + K * n;
    int32_t *recv = xcalloc((unsigned long)(M * n), 4), *recv2 = xcalloc((unsigned long)(K * n), 4), *home = xcalloc((unsigned long)(M * n), 4);
    for (int round = 0; round < 3; round++) {
        for (int q = 0; q < n; q++) {
            for (int i = 0; i < M; i++) send[q * M + i] = ((round * n + rank) * n + q) * M + i;
            for (int i = 0; i < K; i++) send2[q * K + i] = -(((round * n + rank) * n + q) * K + i);
        }
        struct comm_part parts[2] = { { recv, send, M * 4, 0, 0 }, { recv2, send2, K * 4, 0, 0 } };
        NEED(comm_all_to_all_parts(c, NULL, parts, 2, &err) == OK);
        for (int p = 0; p < n; p++) {
            for (int i = 0; i < M; i++) NEED(recv[p * M + i] == ((round * n + p) * n + rank) * M + i);
            for (int i = 0; i < K; i++) NEED(recv2[p * K + i] == -(((round * n + p) * n + rank) * K + i));
        }
        enum { PART = 300 };                                    /* the same in pieces */
        memset(recv, 0xff, (size_t)(M * n) * 4);
        for (int at = 0; at < M; at += PART) {
            struct comm_part piece = { recv + at, send + at, (M - at < PART ? M - at : PART) * 4, M * 4, M * 4 };
            NEED(comm_all_to_all_parts(c, NULL, &piece, 1, &err) == OK);
        }
        for (int p = 0; p < n; p++)
            for (int i = 0; i < M; i++) NEED(recv[p * M + i] == ((round * n + p) * n + rank) * M + i);
        memcpy(back, recv, (size_t)(M * n) * 4);
        NEED(comm_all_to_all(c, NULL, home, back, M * 4, &err) == OK);
        NEED(memcmp(home, send, (size_t)(M * n) * 4) == 0);
    }
    struct comm_count counts[COMM_KINDS];
    comm_counts(w, counts);
    NEED(counts[COMM_ALL_TO_ALL].calls == (n > 1 ? 18 : 0));
    NEED(counts[COMM_ALL_TO_ALL].bytes == 3 * (n - 1) * (3 * M * 4 + K * 4));
    free(recv);
    free(recv2);
    free(home);
    return 0;
}

/* A block goes round the ring and comes home; two chains of different size run at once. */
static int hops(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct error err = { 0 };
    struct comm *c = everyone(w);
    int n = w->world;
    enum { A = 300000, B = 17 };
    int32_t *a[2], *b[2];
    a[0] = comm_memory(w), a[1] = a[0] + A, b[0] = a[1] + A, b[1] = b[0] + B;
    for (int i = 0; i < A; i++) a[0][i] = rank * A + i;
    for (int i = 0; i < B; i++) b[0][i] = -rank;
    for (int t = 1; t <= n; t++) {
        struct comm_hop *ha, *hb;
        NEED(comm_hop_start(c, NULL, a[t & 1], a[(t - 1) & 1], A * 4, &ha, &err) == OK);
        NEED(comm_hop_start(c, NULL, b[t & 1], b[(t - 1) & 1], B * 4, &hb, &err) == OK);
        NEED(comm_hop_wait(c, NULL, ha, &err) == OK);
        NEED(comm_hop_wait(c, NULL, hb, &err) == OK);
        int owner = (rank - t + 2 * n) % n;
        NEED(a[t & 1][0] == owner * A && a[t & 1][A - 1] == owner * A + A - 1);
        NEED(b[t & 1][B - 1] == -owner);
    }
    /* one-way: only rank 0 sends, only rank 1 receives */
    struct comm_hop *h;
    NEED(comm_hop_start(c, NULL, rank == 1 ? a[0] : NULL, rank == 0 ? b[0] : NULL, B * 4, &h, &err) == OK);
    NEED(comm_hop_wait(c, NULL, h, &err) == OK);
    struct comm_count counts[COMM_KINDS];
    comm_counts(w, counts);
    NEED(counts[COMM_HOP].bytes == (n == 1 ? 0 : n * (A + B) * 4 + (rank == 0 ? B * 4 : 0)));
    return 0;
}

static double value(int rank, int64_t i) { return sin(1.0 + (double)i * 0.37 + rank * 11.0); }

/* f32 sums must be bitwise those of the loop 0…n-1, in comm memory and outside, shorter and longer than the staging area. */
static int reductions(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct error err = { 0 };
    struct comm *c = everyone(w);
    int n = w->world;
    static const int64_t sizes[] = { 1, 5, 1000, 3 * 1024 * 1024 + 7 };
    int64_t sent = 0, scattered = 0, gathered = 0;
    for (int k = 0; k < 4; k++) {
        int64_t m = sizes[k];
        for (int shared = 0; shared < 2; shared++) {
            float *x = shared ? comm_memory(w) : xmalloc((unsigned long)m * 4);
            for (int64_t i = 0; i < m; i++) x[i] = (float)value(rank, i);
            NEED(comm_all_reduce(c, NULL, DT_F32, x, m, &err) == OK);
            for (int64_t i = 0; i < m; i += k == 3 ? 997 : 1) {
                float want = (float)value(0, i);
                for (int p = 1; p < n; p++) want += (float)value(p, i);
                NEED(x[i] == want);
            }
            sent += 2 * (n - 1) * ((m + n - 1) / n) * 4;
            if (!shared) free(x);
        }
        if (k == 3) m = 300001;                 /* n * m elements below */
        for (int shared = 0; shared < 2; shared++) {
            double *in = shared ? comm_memory(w) : xmalloc((unsigned long)(m * n) * 8), *out = xmalloc((unsigned long)m * 8);
            for (int64_t i = 0; i < m * n; i++) in[i] = value(rank, i);
            NEED(comm_reduce_scatter(c, NULL, DT_F64, out, in, m, &err) == OK);
            for (int64_t i = 0; i < m; i++) {
                double want = value(0, rank * m + i);
                for (int p = 1; p < n; p++) want += value(p, rank * m + i);
                NEED(out[i] == want);
            }
            scattered += (n - 1) * m * 8;
            memcpy(in + rank * m, out, (size_t)m * 8);
            NEED(comm_all_gather(c, NULL, DT_F64, in, in + rank * m, m, &err) == OK);
            for (int64_t i = 0; i < m * n; i += 3) {
                double want = value(0, i);
                for (int p = 1; p < n; p++) want += value(p, i);
                NEED(in[i] == want);
            }
            gathered += (n - 1) * m * 8;
            if (!shared) free(in);
            free(out);
        }
    }
    bf16 h[33];
    for (int i = 0; i < 33; i++) h[i] = f32_to_bf16((float)value(rank, i));
    NEED(comm_all_reduce(c, NULL, DT_BF16, h, 33, &err) == OK);
    for (int i = 0; i < 33; i++) {
        float want = bf16_to_f32(f32_to_bf16((float)value(0, i)));
        for (int p = 1; p < n; p++) want += bf16_to_f32(f32_to_bf16((float)value(p, i)));
        NEED(h[i].bits == f32_to_bf16(want).bits);
    }
    sent += 2 * (n - 1) * ((33 + n - 1) / n) * 2;
    struct comm_count counts[COMM_KINDS];
    comm_counts(w, counts);
    NEED(counts[COMM_ALL_REDUCE].bytes == sent);
    NEED(counts[COMM_REDUCE_SCATTER].bytes == scattered);
    NEED(counts[COMM_ALL_GATHER].bytes == gathered);
    return 0;
}

/* Uneven pieces in the background, empty ones too, with hops between them and a front collective while they run. */
static int pieces(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct error err = { 0 };
    struct comm *c = everyone(w);
    int n = w->world;
    enum { N = 70000 };
    float *in = comm_memory(w), *shard = in + N, *ring = shard + N, *out = xcalloc(N, 4), *all = xcalloc(N, 4);
    int64_t cuts[65] = { 0 };
    for (int p = 1; p <= n; p++) cuts[p] = p == n ? N : p % 2 ? N * (int64_t)p / n / 2 * 2 : cuts[p - 1];
    int64_t mine = cuts[rank + 1] - cuts[rank];
    for (int round = 1; round <= 3; round++) {
        struct comm_hop *a, *b, *h;
        for (int i = 0; i < N; i++) in[i] = (float)value(rank, i);
        NEED(comm_reduce_pieces_start(c, NULL, out, in, cuts, &a, &err) == OK || n == 1);
        NEED(comm_hop_start(c, NULL, ring + 8, ring, 32, &h, &err) == OK);
        double one = 1;
        NEED(comm_all_reduce(c, NULL, DT_F64, &one, 1, &err) == OK && (int)one == n);
        NEED(comm_hop_wait(c, NULL, a, &err) == OK);
        NEED(comm_hop_wait(c, NULL, h, &err) == OK);
        for (int64_t i = 0; i < mine; i++) {
            float sum = (float)value(0, cuts[rank] + i), want = 0;
            for (int p = 1; p < n; p++) sum += (float)value(p, cuts[rank] + i);
            for (int k = 0; k < round; k++) want += sum;
            NEED(out[i] == want);
        }
        memcpy(shard, out, (size_t)mine * 4);
        NEED(comm_gather_pieces_start(c, NULL, DT_F32, all, shard, cuts, &b, &err) == OK);
        NEED(comm_hop_wait(c, NULL, b, &err) == OK);
        for (int64_t i = 0; i < N; i += 11) {
            float sum = (float)value(0, i), want = 0;
            for (int p = 1; p < n; p++) sum += (float)value(p, i);
            for (int k = 0; k < round; k++) want += sum;
            NEED(all[i] == want);
        }
    }
    struct comm_count counts[COMM_KINDS];
    comm_counts(w, counts);
    NEED(counts[COMM_REDUCE_SCATTER].bytes == (n > 1 ? 3 * (N - mine) * 4 : 0));
    NEED(counts[COMM_ALL_GATHER].bytes == 3 * (n - 1) * mine * 4);
    free(out);
    free(all);
    return 0;
}

/* Broadcast and barriers in overlapping groups: all, halves, pairs across. */
static int groups(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct error err = { 0 };
    struct comm *all = everyone(w), *half, *cross;
    int h = rank / 2 * 2, lo[2] = { h, h + 1 }, x[2] = { rank % 2, rank % 2 + 2 };
    NEED(comm_group(&half, w, lo, 2, &err) == OK);
    NEED(comm_group(&cross, w, x, 2, &err) == OK);
    for (int round = 0; round < 50; round++) {
        int32_t v[3] = { rank, rank, rank };
        NEED(comm_broadcast(all, NULL, v, sizeof v, round % 4, &err) == OK);
        NEED(v[2] == round % 4);
        double d = rank;
        NEED(comm_all_reduce(half, NULL, DT_F64, &d, 1, &err) == OK);
        NEED(d == h * 2 + 1);
        d = rank;
        NEED(comm_all_reduce(cross, NULL, DT_F64, &d, 1, &err) == OK);
        NEED(d == rank % 2 * 2 + 2);
        NEED(comm_barrier(cross, &err) == OK);
        d = rank;                               /* only two of the four: the others must not mind */
        if (rank < 2) NEED(comm_all_reduce(half, NULL, DT_F64, &d, 1, &err) == OK && d == 1);
    }
    return 0;
}

/* Ranks in different calls must stop with a message, not exchange the wrong bytes. */
static int mismatch(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct error err = { 0 };
    struct comm *c = everyone(w);
    float x[8] = { 0 };
    NEED(comm_all_reduce(c, NULL, DT_F32, x, rank == 1 ? 4 : 8, &err) == E_INTERNAL);
    return 0;
}

static const int worlds[] = { 1, 2, 3, 4, 8 };

START_TEST(exchange) { ck_assert_int_eq(ranks_run(worlds[_i], NULL, 1 << 20, 5000, all_to_all, NULL), 0); } END_TEST
START_TEST(ring) { ck_assert_int_eq(ranks_run(worlds[_i], NULL, 4 << 20, 5000, hops, NULL), 0); } END_TEST
START_TEST(reduce) { ck_assert_int_eq(ranks_run(worlds[_i], NULL, 32 << 20, 5000, reductions, NULL), 0); } END_TEST
START_TEST(background) { ck_assert_int_eq(ranks_run(worlds[_i + 1], NULL, 1 << 20, 5000, pieces, NULL), 0); } END_TEST
START_TEST(overlapping_groups) { ck_assert_int_eq(ranks_run(4, NULL, 4096, 5000, groups, NULL), 0); } END_TEST
START_TEST(different_calls) { ck_assert_int_eq(ranks_run(2, NULL, 4096, 5000, mismatch, NULL), 0); } END_TEST

int main(void)
{
    Suite *s = suite_create("comm");
    TCase *t = tcase_create("comm");
    tcase_set_timeout(t, 200);
    tcase_add_loop_test(t, exchange, 0, 5);
    tcase_add_loop_test(t, ring, 0, 5);
    tcase_add_loop_test(t, reduce, 0, 5);
    tcase_add_loop_test(t, background, 0, 4);
    tcase_add_test(t, overlapping_groups);
    tcase_add_test(t, different_calls);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
