/* Tests of what is said to Slurm and what it may answer (daemon/slurm.c, api/slurm.c). */
#include <check.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/file.h"
#include "api/slurm.h"
#include "daemon/slurm.h"
#include "tests/suite.h"

static struct slurm_line got[16];
static int n_got;

static void take(void *arg, const struct slurm_line *l)
{
    (void)arg;
    if (n_got < 16) got[n_got++] = *l;
}

static int parse(const char *text, size_t n)
{
    char *exact = xmalloc(n ? n : 1);       /* the sanitizer sees a read beyond it */
    memcpy(exact, text, n);
    n_got = 0;
    int bad = slurm_parse_queue(exact, n, take, NULL);
    free(exact);
    return bad;
}

START_TEST(queue_lines)
{
    static const char good[] = "12|PENDING|j1.a1.ff|Resources\n13|RUNNING|(null)|None\n\n14|CANCELLED|x|a|b\x1b[2J";
    ck_assert_int_eq(parse(good, sizeof good - 1), 0);
    ck_assert_int_eq(n_got, 3);
    ck_assert_int_eq(got[0].id, 12);
    ck_assert_int_eq(got[0].state->phase, SLURM_PENDING);
    ck_assert_str_eq(got[0].comment, "j1.a1.ff");
    ck_assert_str_eq(got[0].why, "Resources");
    ck_assert_str_eq(got[2].why, "a|b?[2J");            /* nothing of it steers a terminal */
    static const char *const bad[] = { "x", "1", "1|RUNNING", "1|RUNNING|c", "|RUNNING|c|r", "0|RUNNING|c|r", "-1|RUNNING|c|r", "+1|RUNNING|c|r", " 1|RUNNING|c|r", "1_3|RUNNING|c|r", "1234567890123456789|RUNNING|c|r",
                                       "1|running|c|r", "1||c|r", "slurm_load_jobs error: Unable to contact slurm controller (connect failure)" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        ck_assert_msg(parse(bad[i], strlen(bad[i])) == 1, "%s", bad[i]);
        ck_assert_int_eq(n_got, 0);
    }
    static const char newer[] = "1|RUNNING|c|r\n2|DREAMING|d|r\n3|PENDING|e|r\n";     /* of a Slurm to come: the others are known all the same */
    ck_assert_int_eq(parse(newer, sizeof newer - 1), 0);
    ck_assert_int_eq(n_got, 3);
    ck_assert_int_eq(got[1].state->phase, SLURM_UNKNOWN);
    ck_assert_str_eq(got[1].state->name, "unknown");
    ck_assert_str_eq(got[1].why, "DREAMING");
    ck_assert_int_eq(got[2].state->phase, SLURM_PENDING);
    char *lng = xmalloc(5000);
    memset(lng, 'a', 5000);
    memcpy(lng, "1|RUNNING|", 10);
    lng[200] = '|';
    ck_assert_int_eq(parse(lng, 5000), 1);              /* a line beyond the limit */
    ck_assert_int_eq(parse(lng, 300), 1);               /* a comment longer than any of ours */
    free(lng);
    static const char nul[] = "1|RUNNING|a\0b|r\n2|RUNNING|c|r\n";
    ck_assert_int_eq(parse(nul, sizeof nul - 1), 0);
    ck_assert_str_eq(got[0].comment, "a?b");
    ck_assert_int_eq(parse("", 0), 0);
}
END_TEST

START_TEST(accounting)
{
    char code[16];
    static const char text[] = "11|rm-x|RUNNING|0:0\n12|other|FAILED|1:0\n12|rm-x|CANCELLED by 1000|0:15\n";
    const struct slurm_state *s = slurm_parse_acct(text, sizeof text - 1, 12, "rm-x", code);
    ck_assert_ptr_nonnull(s);
    ck_assert_str_eq(s->reason, "cancelled_outside");
    ck_assert_str_eq(code, "0:15");
    ck_assert_ptr_null(slurm_parse_acct(text, sizeof text - 1, 13, "rm-x", code));
    ck_assert_ptr_null(slurm_parse_acct(text, sizeof text - 1, 12, "rm", code));
    ck_assert_ptr_null(slurm_parse_acct("12|rm-x|NONSENSE|0:0", 20, 12, "rm-x", code));
}
END_TEST

START_TEST(job_numbers)
{
    int64_t id;
    ck_assert(slurm_parse_id("123\n", 4, &id) && id == 123);
    ck_assert(slurm_parse_id("123;cluster\n", 12, &id) && id == 123);
    static const char *const bad[] = { "", "\n", "0", "-3", "12 3", "Submitted batch job 5", "1\n2", "99999999999999999999", ";x", "12a" };
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) ck_assert_msg(!slurm_parse_id(bad[i], strlen(bad[i]), &id), "%s", bad[i]);
}
END_TEST

START_TEST(states_are_all_there)
{
    static const char *const passing[] = { "COMPLETING", "REQUEUED", "SUSPENDED", "CONFIGURING", "STAGE_OUT", "SIGNALING", "RESIZING", "REQUEUE_HOLD", "SPECIAL_EXIT" };
    for (size_t i = 0; i < sizeof passing / sizeof passing[0]; i++) ck_assert_msg(slurm_state_find(passing[i], strlen(passing[i]))->phase != SLURM_ENDED, "%s", passing[i]);
    static const char *const ended[] = { "COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "PREEMPTED", "NODE_FAIL", "BOOT_FAIL", "DEADLINE", "OUT_OF_MEMORY" };
    for (size_t i = 0; i < sizeof ended / sizeof ended[0]; i++) {
        const struct slurm_state *s = slurm_state_find(ended[i], strlen(ended[i]));
        ck_assert_msg(s && s->phase == SLURM_ENDED && s->reason && strcmp(s->reason, "finished") != 0, "%s", ended[i]);     /* Slurm's word is no success */
    }
    ck_assert_ptr_null(slurm_state_find("", 0));
    ck_assert_ptr_null(slurm_state_find("RUNNIN", 6));
}
END_TEST

/* The script is read by bash itself: whatever a path holds, the keeper gets it as it is, and nothing else runs. */
START_TEST(script_quotes)
{
    char root[] = "/tmp/rm-slurm-words-XXXXXX";
    ck_assert_ptr_nonnull(mkdtemp(root));
    char *dir = xasprintf("%s/it's $(touch %s/bad) `x` \"q\" \\ \n%%j", root, root), *keeper = xasprintf("%s/kee'per", root), *path = xasprintf("%s/job.sh", root);
    char *prog = xasprintf("#!/bin/bash\nprintf '%%s\\0' \"$@\" >%s/seen\n", root), *srun = xasprintf("#!/bin/bash\nwhile [ \"${1#--}\" != \"$1\" ]; do shift; done\nexec \"$@\"\n"), *srun_path = xasprintf("%s/srun", root);
    struct slurm_ask q = { dir, "n", "c", "0123", keeper, "/w'orker", "j7", 3 };
    char *text = slurm_script(&q), *cmd = xasprintf("chmod 700 '%s/srun' \"%s/kee'per\" && PATH='%s':$PATH /bin/bash '%s' && test ! -e '%s/bad'", root, root, root, path, root), *seen;
    size_t n;
    ck_assert_int_eq(make_dirs(dir, NULL), OK);
    ck_assert_int_eq(file_write(path, text, strlen(text), NULL), OK);
    ck_assert_int_eq(file_write(keeper, prog, strlen(prog), NULL), OK);
    ck_assert_int_eq(file_write(srun_path, srun, strlen(srun), NULL), OK);
    ck_assert_int_eq(system(cmd), 0);
    char *file = xasprintf("%s/seen", root);
    ck_assert_int_eq(file_read(file, 100000, &seen, &n, NULL), OK);
    ck_assert_str_eq(seen, "--dir");
    ck_assert_str_eq(seen + 6, dir);
    ck_assert_int_ne(system(cmd), 0);                   /* the claim is taken */
    (void)remove_tree(root, NULL);
    char *all[] = { dir, keeper, path, prog, srun, srun_path, text, cmd, seen, file };
    for (size_t i = 0; i < sizeof all / sizeof all[0]; i++) free(all[i]);
}
END_TEST

START_TEST(what_refuses_and_what_cannot_be_asked)
{
    ck_assert(slurm_unreachable("sbatch: error: Batch job submission failed: Unable to contact slurm controller (connect failure)"));
    ck_assert(slurm_unreachable("sbatch: error: Batch job submission failed: Socket timed out on send/recv operation"));
    ck_assert(!slurm_unreachable("sbatch: error: Batch job submission failed: Invalid partition name specified"));
    ck_assert(!slurm_unreachable(""));
}
END_TEST

int main(void)
{
    Suite *s = suite_create("slurm words");
    TCase *c = tcase_create("slurm");
    tcase_add_test(c, queue_lines);
    tcase_add_test(c, accounting);
    tcase_add_test(c, job_numbers);
    tcase_add_test(c, states_are_all_there);
    tcase_add_test(c, script_quotes);
    tcase_add_test(c, what_refuses_and_what_cannot_be_asked);
    suite_add_tcase(s, c);
    return suite_run(s, CK_FORK_GETENV);
}
