/* mesh.c - the degrees, and the groups of ranks they make (see mesh.h).
 *
 * auto: of all U x R that the heads allow, the one whose attention takes the least time by the formulas of volume.c, at the speed of the link
 * between ranks and of the attention kernel. Ulysses sends each token once and runs the plain kernel on whole documents; a ring may send more but
 * hides it behind arithmetic, which pays where links are slow. Within TIE of the best the larger U is taken: choices do not hang on noise. */
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

#define TIE 1.05
enum { HEAD_WIDTH = 128 };          /* as most models have it; it cancels but for the moment that every transfer costs */

struct link_speed link_speed_assumed(const struct spec *spec, const char *device)
{
    bool gpu = strcmp(device, "cuda") == 0;
    struct link_speed v = { gpu ? 200e9 : 5e9, gpu ? 400e12 : 50e9, "assumed" };      /* NVLink of an H100 node; memory and AVX-512 of a small machine */
    if (spec->link_speed_gb_s > 0) v = (struct link_speed){ spec->link_speed_gb_s * 1e9, v.attn_flops, "given" };
    return v;
}

static int group_size(const struct spec *spec)
{
    int64_t U = spec->ulysses_size > 0 ? spec->ulysses_size : 1, R = spec->ring_size > 0 ? spec->ring_size : 1;
    return (int)(spec->sequence_parallel_size > 0 ? spec->sequence_parallel_size : U * R);
}

bool mesh_undecided(const struct spec *spec, int64_t H, int64_t Hkv)
{
    int P = group_size(spec), most = largest_split(P, H, Hkv, P);
    return strcmp(spec->sequence_parallel_method, "auto") == 0 && spec->ulysses_size == 0 && spec->ring_size == 0 && most > 1;
}

static double seconds_of(const struct spec *spec, int64_t H, int64_t Hkv, int U, int R, const struct link_speed *v, double *share)
{
    int64_t b = strcmp(spec->torch_dtype, "float32") == 0 ? 4 : 2, T = spec->max_length * spec->per_device_train_batch_size / (U * R) * (U * R);
    struct volume_dims d = { H, Hkv, HEAD_WIDTH, b, 4, U, R };
    double exposed, s = volume_seconds(d, T > 0 ? T : U * R, v->link_Bps, v->attn_flops, spec->enable_sequence_overlap, &exposed);
    *share = exposed / s;
    return s;
}

/* The degrees with the least time, and why. */
static void weigh(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int P, const struct link_speed *v, int *U, int *R)
{
    double best = 0, share = 0, other_share = 0, s;
    int n = 0, first = 0;
    for (int u = P; u >= 1; u--) {
        double at;
        if (P % u != 0 || !volume_splits(H, Hkv, u)) continue;
        s = seconds_of(spec, H, Hkv, u, P / u, v, &at);
        if (n++ == 0) first = u, other_share = at;
        if (n == 1 || s * TIE < best) {
            best = s;
            share = at;
            *U = u;
        }
    }
    *R = P / *U;
    char chosen[48], link[80];
    (void)snprintf(chosen, sizeof chosen, *R == 1 ? "ulysses x %d" : *U == 1 ? "ring x %d" : "ulysses x %d, ring x %d", *U == 1 ? *R : *U, *R);
    (void)snprintf(link, sizeof link, "at %.3g GB/s between ranks (%s)", v->link_Bps / 1e9, v->how);
    if (n == 1)
        (void)snprintf(m->why, sizeof m->why, "auto: ring x %d, as %lld query and %lld key/value heads cannot be split over any factor of it", *R, (long long)H, (long long)Hkv);
    else if (*U == first)
        (void)snprintf(m->why, sizeof m->why, "auto: %s%s, the most that %lld/%lld heads allow: %.3g %% of attention's time is waiting, %s", chosen, *U > Hkv ? " (kv heads replicated)" : "",
                       (long long)H, (long long)Hkv, 100 * share, link);
    else
        (void)snprintf(m->why, sizeof m->why, "auto: %s: %.3g %% of attention's time is waiting, with ulysses x %d it would be %.3g %%, %s", chosen, 100 * share, first, 100 * other_share, link);
}

/* U and R within a group of P ranks. */
static int choose(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int P, const struct link_speed *speed, struct error *err)
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
        U = R = 1;
        if (P == 1) (void)snprintf(m->why, sizeof m->why, "one rank holds the whole row");
        else weigh(m, spec, H, Hkv, P, speed, &U, &R);
    }
    if ((int64_t)U * R != P)
        return error_set(err, E_INVALID, "ulysses_size x ring_size: %d x %d is not sequence_parallel_size, %d", U, R, P);
    if (!volume_splits(H, Hkv, U)) return refuse_heads(H, Hkv, U, spec->ulysses_size > 0 ? "ulysses_size" : "sequence_parallel_size", err);
    m->U = U;
    m->R = R;
    return OK;
}

int mesh_choose_at(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int rank, const struct link_speed *speed, struct error *err)
{
    *m = (struct mesh){ .world = (int)spec->nproc_per_node, .rank = rank };
    int64_t U = spec->ulysses_size > 0 ? spec->ulysses_size : 1, R = spec->ring_size > 0 ? spec->ring_size : 1;
    int64_t P = group_size(spec);
    if (P > m->world || m->world % P != 0)
        return error_set(err, E_INVALID, "sequence_parallel_size: %lld does not divide nproc_per_node, %d", (long long)P, m->world);
    if (P % U != 0) return error_set(err, E_INVALID, "ulysses_size: %lld does not divide sequence_parallel_size, %lld", (long long)U, (long long)P);
    if (P % R != 0) return error_set(err, E_INVALID, "ring_size: %lld does not divide sequence_parallel_size, %lld", (long long)R, (long long)P);
    int rc = choose(m, spec, H, Hkv, (int)P, speed, err);
    if (rc != OK) return rc;
    m->dp = m->world / (int)P;
    m->u = rank % m->U;
    m->r = rank / m->U % m->R;
    m->dp_rank = rank / (int)P;
    return OK;
}

int mesh_choose(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int rank, struct error *err)
{
    struct link_speed v = link_speed_assumed(spec, spec->device);
    return mesh_choose_at(m, spec, H, Hkv, rank, &v, err);
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
