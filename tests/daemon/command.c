/* Tests of command.h: a program's answer comes once, whatever it leaves behind. */
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/json.h"
#include "daemon/command.h"
#include "tests/suite.h"

struct answer { int times; int64_t code; int signal; bool late, too_long; char out[100], err[100]; };

static void on_end(void *arg, const struct command_end *e)
{
    struct answer *a = arg;
    a->times++;
    a->code = e->code;
    a->signal = e->signal;
    a->late = e->late;
    a->too_long = e->too_long;
    (void)snprintf(a->out, sizeof a->out, "%.90s", e->out);
    (void)snprintf(a->err, sizeof a->err, "%.90s", e->err);
}

static struct answer run_shell(const char *script, int64_t limit_ms)
{
    uv_loop_t loop;
    struct answer a = { 0 };
    char *text = xstrdup(script), *argv[] = { "/bin/sh", "-c", text, NULL };
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    (void)command_run(&loop, argv, NULL, -1, limit_ms, on_end, &a);
    ck_assert_int_eq(a.times, 0);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(a.times, 1);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
    free(text);
    return a;
}

START_TEST(answers)
{
    struct answer a = run_shell("echo 17; echo no >&2; exit 3", 20000);
    ck_assert(a.code == 3 && !a.late && !a.too_long);
    ck_assert_str_eq(a.out, "17\n");
    ck_assert_str_eq(a.err, "no");
    a = run_shell("exec sleep 100", 300);
    ck_assert(a.late && a.signal == 9);
    a = run_shell("head -c 5000000 /dev/zero", 20000);
    ck_assert(a.too_long && !a.late && a.code == 0);
}
END_TEST

/* What a program leaves behind with its pipes must not keep the answer from coming. */
START_TEST(a_grandchild_holds_the_pipes)
{
    struct answer a = run_shell("sleep 60 & echo $!", 1000);      /* longer than this test may take */
    int child = atoi(a.out);
    ck_assert_int_gt(child, 1);
    ck_assert_int_eq(kill(child, SIGKILL), 0);
    ck_assert(a.code == 0 && !a.late && a.signal == 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("command");
    TCase *c = tcase_create("command");
    tcase_set_timeout(c, 20);
    tcase_add_test(c, answers);
    tcase_add_test(c, a_grandchild_holds_the_pipes);
    suite_add_tcase(suite, c);
    return suite_run(suite, CK_FORK_GETENV);
}
