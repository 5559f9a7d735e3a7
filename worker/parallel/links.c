#include "worker/parallel/links.h"

#include <math.h>
#include <stdlib.h>
#include <time.h>

enum {
    SLICE = 512 << 10, MOST = 8 << 20,      /* bytes to one peer; of all slices together */
    ROUNDS = 5,                             /* the first warms up, the best counts */
    TOKENS = 1024, HEADS = 4, WIDTH = 64,   /* of the attention that is timed: 0.5 GFLOP */
};

/* This thread's own time: on a CPU rank copying and computing are its work, whatever else runs on the machine. */
static double worked_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* Seconds of work in the quickest of ROUNDS exchanges. */
static int time_exchange(struct comm *c, struct comm_world *w, struct stream *s, int64_t slice, double *best, struct error *err)
{
    char *send = comm_memory(w), *recv = xmalloc((unsigned long)(slice * comm_size(c)));
    int rc = OK;
    *best = INFINITY;
    for (int i = 0; i <= ROUNDS && rc == OK; i++) {
        double from = worked_s();
        rc = comm_all_to_all(c, s, recv, send, slice, err);
        double took = worked_s() - from;
        if (i > 0 && took > 0 && took < *best) *best = took;
    }
    free(recv);
    return rc;
}

static int time_attention(const struct kernel_ops *ops, struct stream *s, double *best, struct error *err)
{
    struct attn_shape n = { .Tq = TOKENS, .Tk = TOKENS, .H = HEADS, .Hkv = HEADS, .D = WIDTH, .scale = 0.125f };
    struct attn_span span = { .q0 = 0, .nq = TOKENS, .k0 = 0, .nk = TOKENS, .diag = 0 };
    struct attn_spans spans = { &span, &span, 1 };
    size_t one = (size_t)TOKENS * HEADS * WIDTH * sizeof(float), lse = (size_t)TOKENS * HEADS * sizeof(float), ws = ops->attn_ws(DT_F32, n, 1);
    void *m;
    int rc = ops->mem_alloc(&m, 4 * one + lse + ws, err);
    if (rc != OK) return rc;
    char *q = m, *k = q + one, *v = k + one, *o = v + one, *l = o + one, *room = l + lse;
    *best = INFINITY;
    for (int i = 0; i < 3 && rc == OK; i++) {
        double from = worked_s();
        rc = ops->attn_fwd(s, DT_F32, DT_F32, o, l, q, k, v, n, spans, false, room);
        if (rc == OK) rc = ops->stream_wait(s, err);
        else (void)error_set(err, (enum status)rc, "attention: %s", ops->error(s));
        if (worked_s() - from < *best) *best = worked_s() - from;
    }
    ops->mem_free(m, 4 * one + lse + ws);
    return rc;
}

int links_measure(struct link_speed *out, const char *transport, const struct kernel_ops *ops, struct link *link, int rank, int world, int deadline_ms, struct error *err)
{
    struct comm_world *w = NULL;
    struct comm *c = NULL;
    struct stream *s = NULL;
    int64_t slice = SLICE < MOST / world ? SLICE : MOST / world / 64 * 64;
    int *ranks = xmalloc((unsigned long)world * sizeof *ranks);
    double mine[2] = { 0, 0 }, *all = xcalloc((unsigned long)world, sizeof mine);
    for (int i = 0; i < world; i++) ranks[i] = i;
    int rc = ops->stream_new(&s, true, err);
    if (rc == OK) rc = comm_open(&w, "links", transport, ops, link, rank, world, slice * world, deadline_ms, err);
    if (rc == OK) rc = comm_group(&c, w, ranks, world, err);
    if (rc == OK) rc = time_exchange(c, w, s, slice, &mine[0], err);
    if (rc == OK) rc = time_attention(ops, s, &mine[1], err);
    if (rc == OK) rc = comm_all_gather(c, s, DT_F64, all, mine, 2, err);
    double exchange = 0, attention = 0;
    for (int i = 0; i < world && rc == OK; i++) {
        if (all[2 * i] > exchange && isfinite(all[2 * i])) exchange = all[2 * i];
        if (all[2 * i + 1] > attention) attention = all[2 * i + 1];
    }
    if (rc == OK) {
        double flops = 4.0 * WIDTH * HEADS * TOKENS * (TOKENS + 1) / 2;
        *out = (struct link_speed){ .link_Bps = exchange > 0 ? (double)slice * (world - 1) / exchange : 1e12, .attn_flops = attention > 0 ? flops / attention : 1e15, .how = "measured" };
    }
    if (w) comm_close(w);
    if (s) ops->stream_free(s);
    free(ranks);
    free(all);
    return rc;
}
