/* Tests of daemon/store.c: what is committed stays, what is damaged or newer is refused. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/metrics.h"
#include "daemon/store.h"
#include "tests/suite.h"

static char dir[64], path[100];

static void setup(void)
{
    strcpy(dir, "/tmp/rm-store-XXXXXX");
    ck_assert_ptr_nonnull(mkdtemp(dir));
    (void)snprintf(path, sizeof path, "%s/t.db", dir);
}

static void teardown(void) { (void)remove_tree(dir, NULL); }

static struct store *open_ok(void)
{
    struct store *s;
    struct error err;
    ck_assert_msg(store_open(&s, path, &err) == OK, "%s", err.text);
    return s;
}

START_TEST(rows_and_binds)
{
    struct store *s = open_ok();
    struct error err;
    cJSON *row;
    struct stat st;
    ck_assert_int_eq(stat(path, &st), 0);
    ck_assert_int_eq(st.st_mode & 0777, 0600);
    ck_assert_int_eq(store_exec(s, &err, "INSERT INTO jobs(name,labels,priority,spec,state,desired,ranks,device,created_ms) VALUES(?,?,1,'{}','queued','run',?,'cpu',?)", "ssii", "n\"'--",
                                "{\"a\":1}", (int64_t)4, INT64_C(1700000000123)), OK);
    ck_assert_int_eq(store_one(s, &row, &err, "SELECT name,labels AS \"j:labels\",ranks,created_ms AS \"t:at\",plan,ranks>3 AS \"b:many\" FROM jobs", ""), OK);
    ck_assert_str_eq(json_str(row, "name"), "n\"'--");
    ck_assert_double_eq(json_num(json_get(row, "labels"), "a", 0), 1);
    ck_assert_str_eq(json_str(row, "at"), "2023-11-14T22:13:20.123Z");
    ck_assert(cJSON_IsNull(json_get(row, "plan")));
    ck_assert(cJSON_IsTrue(json_get(row, "many")));
    cJSON_Delete(row);
    ck_assert_int_eq(store_int(s, -7, "SELECT id FROM jobs WHERE id=99", ""), -7);
    ck_assert_int_eq(store_exec(s, &err, "INSERT INTO tokens(id,name,hash,scope,kind,created_ms) VALUES(1,'a','h','read','token',0)", ""), OK);
    ck_assert_int_eq(store_exec(s, &err, "INSERT INTO tokens(id,name,hash,scope,kind,created_ms) VALUES(2,'a','h','read','token',0)", ""), E_CONFLICT);
    ck_assert_int_eq(store_begin(s, &err), OK);
    ck_assert_int_eq(store_exec(s, &err, "DELETE FROM jobs", ""), OK);
    store_rollback(s);
    ck_assert_int_eq(store_int(s, 0, "SELECT count(*) FROM jobs", ""), 1);
    store_close(s);
}
END_TEST

START_TEST(acknowledged_rows_survive_sigkill)
{
    int pipes[2];
    ck_assert_int_eq(pipe(pipes), 0);
    pid_t pid = fork();
    if (pid == 0) {
        struct store *s = open_ok();
        for (int64_t i = 1;; i++) {
            struct error err;
            if (store_begin(s, &err) != OK || store_exec(s, &err, "INSERT INTO metric_names(id,name) VALUES(?,'n'||?)", "ii", i, i) != OK || store_commit(s, &err) != OK) _exit(1);
            if (write(pipes[1], &i, sizeof i) != sizeof i) _exit(1);
        }
    }
    int64_t last = 0;
    while (last < 40) ck_assert_int_eq(read(pipes[0], &last, sizeof last), sizeof last);
    (void)kill(pid, SIGKILL);
    (void)waitpid(pid, NULL, 0);
    (void)close(pipes[1]);
    for (int64_t more; read(pipes[0], &more, sizeof more) == sizeof more;) last = more;
    (void)close(pipes[0]);
    struct store *s = open_ok();
    ck_assert_int_ge(store_int(s, 0, "SELECT count(*) FROM metric_names", ""), last);
    ck_assert_int_eq(store_int(s, 0, "SELECT max(id)-count(*) FROM metric_names", ""), 0);
    store_close(s);
}
END_TEST

START_TEST(newer_and_damaged_are_refused)
{
    struct store *s = open_ok();
    struct error err;
    ck_assert_int_eq(store_exec(s, &err, "PRAGMA user_version=1000", ""), OK);
    store_close(s);
    ck_assert_int_eq(store_open(&s, path, &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "newer"));
    ck_assert_ptr_null(s);
    ck_assert_int_eq(file_write(path, "no database at all, but long enough to look at: 0123456789 0123456789 0123456789 0123456789 0123456789", 100, &err), OK);
    ck_assert_int_eq(store_open(&s, path, &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "damaged"));
}
END_TEST

START_TEST(backup_is_whole)
{
    struct store *s = open_ok();
    struct error err;
    char copy[120];
    (void)snprintf(copy, sizeof copy, "%s/copy.db", dir);
    for (int64_t i = 1; i < 500; i++) ck_assert_int_eq(store_exec(s, &err, "INSERT INTO metric_names VALUES(?,?)", "is", i, "x"), i == 1 ? OK : E_CONFLICT);
    ck_assert_int_eq(store_backup(s, copy, &err), OK);
    ck_assert_int_eq(store_backup(s, copy, &err), E_CONFLICT);
    store_close(s);
    ck_assert_int_eq(store_open(&s, copy, &err), OK);
    ck_assert_int_eq(store_int(s, 0, "SELECT count(*) FROM metric_names", ""), 1);
    store_close(s);
}
END_TEST

static cJSON *record(int step, const char *rest)
{
    char text[200];
    (void)snprintf(text, sizeof text, "{\"t\":\"metrics\",\"step\":%d,%s}", step, rest);
    return cJSON_Parse(text);
}

static void put(struct store *s, int64_t attempt, int64_t seq, int step, const char *rest)
{
    struct error err;
    cJSON *m = record(step, rest);
    ck_assert_int_eq(metrics_store(s, 1, 0, attempt, seq, 1, m, &err), OK);
    cJSON_Delete(m);
}

START_TEST(series_after_a_restart)
{
    struct store *s = open_ok();
    struct error err;
    cJSON *o;
    char *names[] = { "loss", "mem.weights", "unheard" };
    for (int i = 1; i <= 6; i++) put(s, 1, i, i, "\"loss\":1,\"mem\":{\"weights\":7}");
    put(s, 1, 6, 6, "\"loss\":99");                                  /* a repeat changes nothing */
    put(s, 2, 1, 5, "\"loss\":2");                                   /* attempt 2 goes on after step 4 */
    put(s, 2, 2, 6, "\"loss\":null,\"loss_nonfinite\":\"inf\"");
    ck_assert_int_eq(metrics_series(s, 1, names, 3, 0, 0, 1000, 100, &o, &err), OK);
    char *text = json_line(o);
    cJSON_Delete(o);
    o = cJSON_Parse(text);
    free(text);
    const cJSON *series = json_get(o, "series"), *loss = cJSON_GetArrayItem(series, 0), *points = json_get(loss, "points");
    ck_assert_int_eq(cJSON_GetArraySize(points), 6);
    ck_assert_double_eq(cJSON_GetArrayItem(cJSON_GetArrayItem(points, 3), 1)->valuedouble, 1);
    ck_assert_double_eq(cJSON_GetArrayItem(cJSON_GetArrayItem(points, 4), 1)->valuedouble, 2);
    ck_assert(cJSON_IsNull(cJSON_GetArrayItem(cJSON_GetArrayItem(points, 5), 1)));
    ck_assert_str_eq(cJSON_GetArrayItem(cJSON_GetArrayItem(json_get(loss, "nonfinite"), 0), 1)->valuestring, "inf");
    ck_assert_double_eq(cJSON_GetArrayItem(json_get(loss, "restarts"), 0)->valuedouble, 5);
    ck_assert_int_eq(cJSON_GetArraySize(json_get(cJSON_GetArrayItem(series, 1), "points")), 4);
    ck_assert_int_eq(cJSON_GetArraySize(json_get(cJSON_GetArrayItem(series, 2), "points")), 0);
    cJSON_Delete(o);
    store_close(s);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("store");
    TCase *c = tcase_create("store");
    tcase_add_checked_fixture(c, setup, teardown);
    tcase_set_timeout(c, 60);
    tcase_add_test(c, rows_and_binds);
    tcase_add_test(c, acknowledged_rows_survive_sigkill);
    tcase_add_test(c, newer_and_damaged_are_refused);
    tcase_add_test(c, backup_is_whole);
    tcase_add_test(c, series_after_a_restart);
    suite_add_tcase(suite, c);
    return suite_run(suite, CK_FORK_GETENV);
}
