/* Degrees from specs: what is chosen, where each rank stands, what is refused and in which words. */
#include <check.h>
#include <stdio.h>
#include <string.h>

#include "worker/parallel/mesh.h"
#include "worker/parallel/volume.h"
#include "tests/suite.h"

/* What spec_parse would refuse on its own is judged here too: the fields are set behind its back. */
struct asked { int world, sp, U, R; const char *method; };

static int choose(struct mesh *m, struct asked a, int64_t H, int64_t Hkv, int rank, struct error *err)
{
    static const char text[] = "{\"model\":\"x\",\"dataset\":[\"x\"],\"output_dir\":\"x\"}";
    struct spec s;
    struct problems p = { 0 };
    ck_assert_int_eq(spec_parse(&s, text, sizeof text - 1, &p), OK);
    char *given = s.sequence_parallel_method, method[16];
    (void)snprintf(method, sizeof method, "%s", a.method);
    s.nproc_per_node = a.world, s.sequence_parallel_size = a.sp, s.ulysses_size = a.U, s.ring_size = a.R;
    s.sequence_parallel_method = method;
    int rc = mesh_choose(m, &s, H, Hkv, rank, err);
    s.sequence_parallel_method = given;
    spec_release(&s);
    return rc;
}

static const struct { struct asked asked; int64_t H, Hkv; int dp, R, U; } good[] = {
    { { 1, 0, 0, 0, "auto" }, 8, 2, 1, 1, 1 },
    { { 4, 0, 0, 0, "auto" }, 8, 2, 4, 1, 1 },                                              /* no degree asked for: data parallel */
    { { 8, 4, 0, 0, "ulysses" }, 8, 2, 2, 1, 4 },
    { { 8, 8, 0, 0, "ring" }, 8, 2, 1, 8, 1 },
    { { 4, 0, 2, 2, "auto" }, 8, 2, 1, 2, 2 },
    { { 8, 8, 2, 0, "auto" }, 8, 2, 1, 4, 2 },
    { { 8, 8, 0, 0, "hybrid" }, 8, 2, 1, 2, 4 },
    { { 6, 6, 0, 0, "auto" }, 12, 4, 1, 3, 2 },                /* 6 and 4 kv heads do not fit: 2, ring 3 */
    { { 5, 5, 0, 0, "auto" }, 8, 2, 1, 5, 1 },
};
START_TEST(chosen)
{
    for (int rank = 0; rank < good[_i].dp * good[_i].R * good[_i].U; rank++) {
        struct mesh m;
        struct error err = { 0 };
        ck_assert_msg(choose(&m, good[_i].asked, good[_i].H, good[_i].Hkv, rank, &err) == OK, "%s", err.text);
        ck_assert_int_eq(m.dp, good[_i].dp);
        ck_assert_int_eq(m.R, good[_i].R);
        ck_assert_int_eq(m.U, good[_i].U);
        ck_assert_int_eq((m.dp_rank * m.R + m.r) * m.U + m.u, rank);
        ck_assert(m.u < m.U && m.r < m.R && m.dp_rank < m.dp && m.why[0] != 0);
    }
}
END_TEST

static const struct { struct asked asked; int64_t H, Hkv; const char *says; } bad[] = {
    { { 6, 4, 0, 0, "auto" }, 8, 2, "sequence_parallel_size: 4" },
    { { 8, 8, 0, 0, "ulysses" }, 12, 4, "12 query heads" },
    { { 3, 0, 3, 0, "auto" }, 8, 2, "ulysses_size: 3 ranks" },
    { { 8, 8, 2, 2, "auto" }, 8, 2, "2 x 2 is not sequence_parallel_size" },
    { { 8, 4, 3, 0, "auto" }, 8, 2, "ulysses_size: 3" },
    { { 2, 2, 2, 0, "ring" }, 8, 2, "ulysses_size: 2" },
    { { 2, 2, 0, 2, "ulysses" }, 8, 2, "ring_size: 2" },
    { { 3, 3, 0, 0, "hybrid" }, 8, 2, "hybrid needs two degrees" },
};
START_TEST(refused)
{
    struct mesh m;
    struct error err = { 0 };
    ck_assert_int_eq(choose(&m, bad[_i].asked, bad[_i].H, bad[_i].Hkv, 0, &err), E_INVALID);
    ck_assert_msg(strstr(err.text, bad[_i].says) != NULL, "%s", err.text);
}
END_TEST

/* auto by the speed between ranks: 8 ranks, 32/8 heads, bfloat16. Fast links: Ulysses, which computes whole documents; slow ones: what hides most. */
static const struct { double link, attn; int64_t T; int U, R; bool overlap; } weighed[] = {
    { 360e9, 600e12, 131072, 8, 1, true },          /* NVLink */
    { 360e9, 600e12, 4096, 8, 1, true },
    { 20e9, 400e12, 131072, 1, 8, true },           /* PCIe: the ring's hops are hidden */
    { 1e9, 600e12, 131072, 8, 1, true },            /* nothing is: what sends least */
    { 5e9, 50e9, 32768, 8, 1, true },               /* CPU ranks */
    { 20e9, 400e12, 131072, 8, 1, false },          /* nothing hides without overlap */
};
START_TEST(auto_weighs_the_links)
{
    static const char text[] = "{\"model\":\"x\",\"dataset\":[\"x\"],\"output_dir\":\"x\",\"nproc_per_node\":8,\"sequence_parallel_size\":8,\"torch_dtype\":\"bfloat16\"}";
    struct spec s;
    struct problems p = { 0 };
    struct mesh m, again;
    struct error err = { 0 };
    ck_assert_int_eq(spec_parse(&s, text, sizeof text - 1, &p), OK);
    s.max_length = weighed[_i].T, s.enable_sequence_overlap = weighed[_i].overlap;
    struct link_speed v = { weighed[_i].link, weighed[_i].attn, "given" };
    ck_assert(mesh_undecided(&s, 32, 8));
    ck_assert_int_eq(mesh_choose_at(&m, &s, 32, 8, 0, &v, &err), OK);
    ck_assert_msg(m.U == weighed[_i].U && m.R == weighed[_i].R, "U %d R %d: %s", m.U, m.R, m.why);
    ck_assert_ptr_nonnull(strstr(m.why, "GB/s between ranks (given)"));
    for (int r = 1; r < 8; r++) {                   /* the same everywhere, and a little noise changes nothing */
        struct link_speed noisy = { v.link_Bps * (r % 2 ? 1.01 : 0.99), v.attn_flops * (r % 3 ? 1.01 : 0.99), "measured" };
        ck_assert_int_eq(mesh_choose_at(&again, &s, 32, 8, r, &noisy, &err), OK);
        ck_assert(again.U == m.U && again.R == m.R);
    }
    s.link_speed_gb_s = weighed[_i].link / 1e9;
    struct link_speed given = link_speed_assumed(&s, "cuda");
    ck_assert_double_eq_tol(given.link_Bps, weighed[_i].link, 1);
    ck_assert_str_eq(given.how, "given");
    s.ring_size = 8;
    ck_assert(!mesh_undecided(&s, 32, 8));
    spec_release(&s);
}
END_TEST

/* The examples of the reference: Llama-8B (32/8 heads, d 128), S = 131072, MB per rank and layer. It keeps the output twice, where we exchange delta. */
static const struct { int64_t H, Hkv; int U, R; double fwd, bwd; } published[] = {
    { 32, 8, 2, 1, 671, 671 }, { 32, 8, 8, 1, 294, 294 }, { 32, 8, 1, 2, 268, 1342 }, { 32, 8, 1, 8, 470, 1544 }, { 16, 2, 8, 1, 176, 176 }, { 16, 2, 1, 8, 117, 386 },
};
START_TEST(volumes)
{
    struct volume_dims d = { published[_i].H, published[_i].Hkv, 128, 2, 4, published[_i].U, published[_i].R };
    struct volume v = volume_of_layer(d, 131072);
    ck_assert_double_eq_tol((double)v.fwd / 1e6, published[_i].fwd, 0.51);
    v.bwd -= 4 * (131072 / d.U / d.R) * d.H * (d.U - 1) / d.U;
    ck_assert_double_eq_tol((double)v.bwd / 1e6, published[_i].bwd, 0.51);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("mesh");
    TCase *t = tcase_create("mesh");
    tcase_add_loop_test(t, chosen, 0, (int)(sizeof good / sizeof good[0]));
    tcase_add_loop_test(t, refused, 0, (int)(sizeof bad / sizeof bad[0]));
    tcase_add_loop_test(t, auto_weighs_the_links, 0, (int)(sizeof weighed / sizeof weighed[0]));
    tcase_add_loop_test(t, volumes, 0, (int)(sizeof published / sizeof published[0]));
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
