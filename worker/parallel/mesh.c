/* mesh.c - the degrees, and the groups of ranks they make (see mesh.h).
 *
 * auto: Ulysses sends each token once and runs the plain kernel on whole documents, so it takes as many ranks as the heads allow;
 * the ring takes the rest. */
#include "worker/parallel/mesh.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/parallel/volume.h"

/* Largest U that divides P, can split the heads and is at most `most`. */
static int largest_split(int P, int64_t H, int64_t Hkv, int most)
{
    for (int U = most; U > 1; U--)
        if (P % U == 0 && volume_splits(H, Hkv, U)) return U;
    return 1;
}

static int refuse_heads(int64_t H, int64_t Hkv, int U, const char *field, struct error *err)
{
    return error_set(err, E_INVALID, "%s: %d ranks cannot share %lld query heads and %lld key/value heads: the query heads must divide by it, and the "
                     "key/value heads divide by it or it by them; the ring (ring_size) has no such limit", field, U, (long long)H, (long long)Hkv);
}

/* Bytes U x R sends in a training step, as a share of what a ring of P would. Neither T nor D matters for it. */
static double share_of_ring(int64_t H, int64_t Hkv, int U, int R)
{
    int P = U * R;
    struct volume_dims d = { H, Hkv, 1, 2, 4, U, R }, ring = { H, Hkv, 1, 2, 4, 1, P };
    struct volume a = volume_of_layer(d, (int64_t)P * P), b = volume_of_layer(ring, (int64_t)P * P);
    return (double)(a.fwd + a.bwd) / (double)(b.fwd + b.bwd);
}

/* U and R within a group of P ranks. */
static int choose(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int P, struct error *err)
{
    const char *method = spec->sequence_parallel_method;
    int U = (int)spec->ulysses_size, R = (int)spec->ring_size;
    if (strcmp(method, "ulysses") == 0) {
        if (R > 1) return error_set(err, E_INVALID, "ring_size: %d, but sequence_parallel_method is ulysses; expected 0 or 1, or the method hybrid", R);
        R = 1;
        U = P;
        (void)snprintf(m->why, sizeof m->why, "ulysses x %d, as asked for", U);
    } else if (strcmp(method, "ring") == 0) {
        if (U > 1) return error_set(err, E_INVALID, "ulysses_size: %d, but sequence_parallel_method is ring; expected 0 or 1, or the method hybrid", U);
        U = 1;
        R = P;
        (void)snprintf(m->why, sizeof m->why, "ring x %d, as asked for", R);
    } else if (U > 0 || R > 0) {
        if (U == 0) U = P / R;
        if (R == 0) R = P / U;
        (void)snprintf(m->why, sizeof m->why, "ulysses x %d, ring x %d, as asked for", U, R);
    } else if (strcmp(method, "hybrid") == 0) {
        U = largest_split(P, H, Hkv, P / 2);
        if (U == 1 && P > 1)
            return error_set(err, E_INVALID, "sequence_parallel_method: hybrid needs two degrees above 1, but %d ranks, %lld query and %lld key/value heads "
                             "allow none; use ring, or set ulysses_size and ring_size", P, (long long)H, (long long)Hkv);
        R = P / U;
        (void)snprintf(m->why, sizeof m->why, "hybrid: ulysses x %d (most that %lld/%lld heads and %d ranks allow), ring x %d", U, (long long)H,
                       (long long)Hkv, P, R);
    } else {
        U = largest_split(P, H, Hkv, P);
        R = P / U;
        int percent = (int)(100 * share_of_ring(H, Hkv, U, R) + 0.5);
        if (P == 1)
            (void)snprintf(m->why, sizeof m->why, "one rank holds the whole row");
        else if (U == 1)
            (void)snprintf(m->why, sizeof m->why, "auto: ring x %d, as %lld query and %lld key/value heads cannot be split over any factor of it", R, (long long)H, (long long)Hkv);
        else if (R == 1)
            (void)snprintf(m->why, sizeof m->why, "auto: ulysses x %d splits %lld query heads evenly%s and sends %d %% of what a ring would", U, (long long)H,
                           U > Hkv ? " (key/value heads replicated)" : "", percent);
        else
            (void)snprintf(m->why, sizeof m->why, "auto: ulysses x %d is the most that %lld/%lld heads allow, ring x %d takes the rest; sends %d %% of what a ring alone would", U,
                           (long long)H, (long long)Hkv, R, percent);
    }
    if ((int64_t)U * R != P)
        return error_set(err, E_INVALID, "ulysses_size x ring_size: %d x %d is not sequence_parallel_size, %d", U, R, P);
    if (!volume_splits(H, Hkv, U)) return refuse_heads(H, Hkv, U, spec->ulysses_size > 0 ? "ulysses_size" : "sequence_parallel_size", err);
    m->U = U;
    m->R = R;
    return OK;
}

int mesh_choose(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int rank, struct error *err)
{
    *m = (struct mesh){ .world = (int)spec->nproc_per_node, .rank = rank };
    int64_t U = spec->ulysses_size > 0 ? spec->ulysses_size : 1, R = spec->ring_size > 0 ? spec->ring_size : 1;
    int64_t P = spec->sequence_parallel_size > 0 ? spec->sequence_parallel_size : U * R;
    if (P > m->world || m->world % P != 0)
        return error_set(err, E_INVALID, "sequence_parallel_size: %lld does not divide nproc_per_node, %d", (long long)P, m->world);
    if (P % U != 0) return error_set(err, E_INVALID, "ulysses_size: %lld does not divide sequence_parallel_size, %lld", (long long)U, (long long)P);
    if (P % R != 0) return error_set(err, E_INVALID, "ring_size: %lld does not divide sequence_parallel_size, %lld", (long long)R, (long long)P);
    int rc = choose(m, spec, H, Hkv, (int)P, err);
    if (rc != OK) return rc;
    m->dp = m->world / (int)P;
    m->u = rank % m->U;
    m->r = rank / m->U % m->R;
    m->dp_rank = rank / (int)P;
    return OK;
}

/* n ranks from `first` on, `step` apart. */
static int group(struct comm **c, struct comm_world *w, int first, int n, int step, struct error *err)
{
    int *ranks = xmalloc((unsigned long)n * sizeof *ranks);
    for (int i = 0; i < n; i++) ranks[i] = first + i * step;
    int rc = comm_group(c, w, ranks, n, err);
    free(ranks);
    return rc;
}

int mesh_connect(struct mesh *m, struct comm_world *w, struct error *err)
{
    int P = m->R * m->U, sp0 = m->dp_rank * P;
    int rc = group(&m->all, w, 0, m->world, 1, err);
    if (rc == OK) rc = group(&m->sp, w, sp0, P, 1, err);
    if (rc == OK) rc = group(&m->uly, w, sp0 + m->r * m->U, m->U, 1, err);
    if (rc == OK) rc = group(&m->ring, w, sp0 + m->u, m->R, m->U, err);
    if (rc == OK) rc = group(&m->dpg, w, m->rank % P, m->dp, P, err);
    return rc;
}
