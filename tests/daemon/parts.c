/* Tests of the daemon's small parts: states, cursors, routes, hashes, thinning, hosts, paths. */
#include <check.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/api.h"
#include "daemon/auth.h"
#include "daemon/daemon.h"
#include "daemon/metrics.h"
#include "daemon/paths.h"
#include "daemon/routes.h"
#include "daemon/sha256.h"
#include "tests/suite.h"

START_TEST(states)
{
    int final = 0;
    for (int a = 0; a < JOB_STATES; a++) {
        enum job_state s;
        ck_assert(job_state_parse(job_state_name((enum job_state)a), &s));
        ck_assert_int_eq(s, a);
        final += job_state_final((enum job_state)a);
        for (int b = 0; b < JOB_STATES; b++) {
            if (job_state_final((enum job_state)a)) ck_assert(!job_can((enum job_state)a, (enum job_state)b));
            if (job_state_final((enum job_state)b) && job_can((enum job_state)a, (enum job_state)b)) ck_assert_int_eq(a, JOB_STOPPING);   /* the only door out */
        }
    }
    ck_assert_int_eq(final, 3);
    enum job_state s;
    ck_assert(!job_state_parse("lost", &s) && !job_state_parse("", &s) && !job_state_parse("Queued", &s));
}
END_TEST

START_TEST(ids_and_cursors)
{
    int64_t v;
    ck_assert(job_id_parse("j1", &v) && v == 1);
    ck_assert(job_id_parse("j9007199254740991", &v) && v == INT64_C(9007199254740991));
    static const char *const bad[] = { "", "j", "j0", "j01", "1", "J1", "j1 ", "j-1", "j1x", "j99999999999999999999", "j1/..", "jj1" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) ck_assert_msg(!job_id_parse(bad[i], &v), "%s", bad[i]);
    static const int64_t ids[] = { 1, 77, INT64_C(1) << 40, INT64_MAX };
    for (size_t i = 0; i < 4; i++) {
        char c[40];
        cursor_make(c, ids[i]);
        ck_assert(cursor_parse(c, &v) && v == ids[i]);
        c[0] ^= 1;
        ck_assert_msg(!cursor_parse(c, &v), "%s", c);
    }
    static const char *const odd[] = { "", "-", "1", "1-", "0-00000000", "ffffffffffffffffff-0", " 1-00000000", "1-000000001", "%s%n" };
    for (size_t i = 0; i < sizeof odd / sizeof odd[0]; i++) ck_assert_msg(!cursor_parse(odd[i], &v), "%s", odd[i]);
}
END_TEST

START_TEST(route_patterns)
{
    char *p[REQUEST_PARAMS] = { NULL };
    ck_assert(route_match("/v1/jobs", "/v1/jobs", p) && p[0] == NULL);
    ck_assert(route_match("/v1/jobs/{id}", "/v1/jobs/j1", p));
    ck_assert_str_eq(p[0], "j1");
    free(p[0]);
    p[0] = NULL;
    ck_assert(route_match("/v1/jobs/{id}/artifacts/{name*}", "/v1/jobs/j1/artifacts/a/b/c", p));
    ck_assert_str_eq(p[1], "a/b/c");
    free(p[0]);
    free(p[1]);
    memset(p, 0, sizeof p);
    static const char *const no[] = { "/v1/jobs/", "/v1/jobs", "/v1/jobs/j1/", "/v1/jobs/j1/x", "/v1/jobsj1", "" };
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) ck_assert_msg(!route_match("/v1/jobs/{id}", no[i], p) && p[0] == NULL, "%s", no[i]);
    for (int a = 0; a < n_routes; a++)          /* no two rows answer the same */
        for (int b = 0; b < a; b++) ck_assert(strcmp(routes[a].method, routes[b].method) != 0 || strcmp(routes[a].pattern, routes[b].pattern) != 0);
    for (int a = 0; a < n_routes; a++) ck_assert(strcmp(routes[a].method, "GET") == 0 || routes[a].scope >= SCOPE_SUBMIT);    /* no change without a token */
}
END_TEST

START_TEST(hashes)
{
    char h[65], big[1000];
    sha256_hex(h, "", 0);
    ck_assert_str_eq(h, "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
    sha256_hex(h, "abc", 3);
    ck_assert_str_eq(h, "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
    memset(big, 'a', sizeof big);
    sha256_hex(h, big, 119);
    ck_assert_str_eq(h, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb");
    hmac_sha256_hex(h, "Jefe", 4, "what do ya want for nothing?", 28);     /* RFC 4231, case 2 */
    ck_assert_str_eq(h, "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}
END_TEST

START_TEST(thinning_keeps_spikes)
{
    enum { N = 10000 };
    struct point *p = malloc(N * sizeof *p);
    for (int i = 0; i < N; i++) p[i] = (struct point){ i, sin(i * 0.01) };
    p[4321].v = 1e6;
    p[7777].v = -1e6;
    p[5000].v = NAN;
    size_t n = points_thin(p, N, 200);
    bool high = false, low = false, nan = false;
    ck_assert_uint_le(n, 200);
    ck_assert_uint_ge(n, 100);
    for (size_t i = 0; i < n; i++) {
        if (i) ck_assert_int_gt(p[i].step, p[i - 1].step);
        high |= p[i].v == 1e6;
        low |= p[i].v == -1e6;
        nan |= isnan(p[i].v);
    }
    ck_assert(high && low && nan);
    ck_assert_int_eq(p[0].step, 0);
    ck_assert_int_eq(p[n - 1].step, N - 1);
    for (size_t max = 4; max < 40; max++)
        for (size_t len = 0; len < 60; len++) {
            for (size_t i = 0; i < len; i++) p[i] = (struct point){ (int64_t)i, i % 3 ? (double)i : NAN };
            ck_assert_uint_le(points_thin(p, len, max), max > len ? len : max);
        }
    free(p);
}
END_TEST

START_TEST(hosts)
{
    static struct daemon d;
    d.set.bind = (char[]){ "127.0.0.1" };
    static const char *const yes[] = { "localhost", "LocalHost:80", "127.0.0.1", "127.0.0.1:7070", "[::1]", "[::1]:7070" };
    static const char *const no[] = { "", ":", "localhost:", "localhost:x", "127.0.0.1.evil", "evil", "127.0.0.2", "::1", "[::1", "localhost@evil", "127.0.0.1:1:2", "localhost.", "0.0.0.0" };
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) ck_assert_msg(auth_host_ok(&d, yes[i]), "%s", yes[i]);
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) ck_assert_msg(!auth_host_ok(&d, no[i]), "%s", no[i]);
}
END_TEST

START_TEST(paths_stay_beneath)
{
    char root[] = "/tmp/rm-paths-XXXXXX", a[200], b[200], want[300];
    ck_assert_ptr_nonnull(mkdtemp(root));
    (void)snprintf(a, sizeof a, "%s/in", root);
    (void)snprintf(b, sizeof b, "%s/in2", root);
    (void)mkdir(a, 0755);
    (void)mkdir(b, 0755);
    char *list[] = { a };
    struct strlist roots = { list, 1 }, none = { NULL, 0 };
    (void)snprintf(want, sizeof want, "%s/out", a);
    ck_assert_int_eq(symlink(b, want), 0);
    (void)snprintf(want, sizeof want, "%s/same", a);
    ck_assert_int_eq(symlink(".", want), 0);
    static const char *const no[] = { "", "..", "../in2", "out", "out/x", "x/../../in2", "/etc", "/", "new/../../x", "out/../in2" };
    for (size_t i = 0; i < sizeof no / sizeof no[0]; i++) {
        char *p = path_under(no[i], &roots);
        ck_assert_msg(p == NULL, "%s became %s", no[i], p);
    }
    static const char *const yes[][2] = { { ".", "" }, { "new", "/new" }, { "new/deep/file", "/new/deep/file" }, { "same/same/x", "/x" }, { "./a//b", "/a/b" } };
    for (size_t i = 0; i < sizeof yes / sizeof yes[0]; i++) {
        char *p = path_under(yes[i][0], &roots);
        (void)snprintf(want, sizeof want, "%s%s", a, yes[i][1]);
        ck_assert_msg(p && strcmp(p, want) == 0, "%s became %s", yes[i][0], p ? p : "nothing");
        free(p);
    }
    ck_assert_ptr_null(path_under("x", &none));
    (void)remove_tree(root, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("parts");
    TCase *c = tcase_create("parts");
    tcase_add_test(c, states);
    tcase_add_test(c, ids_and_cursors);
    tcase_add_test(c, route_patterns);
    tcase_add_test(c, hashes);
    tcase_add_test(c, thinning_keeps_spikes);
    tcase_add_test(c, hosts);
    tcase_add_test(c, paths_stay_beneath);
    suite_add_tcase(suite, c);
    return suite_run(suite, CK_FORK_GETENV);
}
