/* Tests of a rank's log (daemon/keeper/ranklog.c): what its file of times may take, and that it belongs to the log beside it. */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/error.h"
#include "api/file.h"
#include "daemon/keeper/ranklog.h"
#include "tests/suite.h"

static int64_t bytes_of(const char *dir, const char *name)
{
    struct stat st;
    char path[300];
    (void)snprintf(path, sizeof path, "%s/%s", dir, name);
    return stat(path, &st) == 0 ? (int64_t)st.st_size : -1;
}

/* Byte by byte, each as if a second had passed since the last. */
static void drip(struct ranklog *g, int n)
{
    for (int i = 0; i < n; i++) {
        if (g->noted_ms > 1000) g->noted_ms -= 1000;
        ranklog_write(g, "x", 1);
    }
}

START_TEST(times_are_no_larger_than_the_log)
{
    char dir[] = "/tmp/rm-ranklog-XXXXXX", path[300];
    struct ranklog g;
    ck_assert_ptr_nonnull(mkdtemp(dir));
    ranklog_open(&g, dir, 0, 1600);
    drip(&g, 1600);
    ck_assert_int_eq(bytes_of(dir, "rank-0.log"), 1600);
    ck_assert_int_eq(bytes_of(dir, "rank-0.log.times"), 1600);
    drip(&g, 100);                              /* a new one */
    ck_assert_int_eq(g.rotations, 1);
    ck_assert_int_eq(bytes_of(dir, "rank-0.log.1.times"), 1600);
    ck_assert_int_eq(bytes_of(dir, "rank-0.log.times"), 7 * 16);
    (void)snprintf(path, sizeof path, "%s/rank-0.log", dir);
    ck_assert_int_eq(unlink(path), 0);          /* somebody makes room: the times go with the log */
    ranklog_check(&g);
    drip(&g, 1);
    ck_assert_int_eq(bytes_of(dir, "rank-0.log"), 1);
    ck_assert_int_eq(bytes_of(dir, "rank-0.log.times"), 16);
    ranklog_close(&g);
    (void)remove_tree(dir, NULL);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("ranklog");
    TCase *c = tcase_create("ranklog");
    tcase_add_test(c, times_are_no_larger_than_the_log);
    suite_add_tcase(suite, c);
    return suite_run(suite, CK_FORK_GETENV);
}
