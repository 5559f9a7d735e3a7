/* A rank that dies or stops in any collective: the others leave with E_PEER within the deadline, and no shared memory stays. */
#include <check.h>
#include <dirent.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/comm/ranks.h"
#include "tests/suite.h"

enum { N = 3, DEADLINE_MS = 700, VICTIM = 1, ROUNDS = 40 };

struct scene {
    int kind;                   /* enum comm_kind */
    atomic_int rounds;          /* the victim's */
    int rc[N];
    double left_after_s[N];
    double struck;              /* monotonic_s of the blow */
    char text[N][200];
};

static int one_call(struct comm *c, int kind, char *shared, float *mine, struct error *err)
{
    switch (kind) {
    case COMM_ALL_TO_ALL: return comm_all_to_all(c, NULL, mine, shared, 1024, err);
    case COMM_ALL_REDUCE: return comm_all_reduce(c, NULL, DT_F32, mine, 3000, err);
    case COMM_REDUCE_SCATTER: return comm_reduce_scatter(c, NULL, DT_F32, mine, mine + 1000, 1000, err);
    case COMM_ALL_GATHER: return comm_all_gather(c, NULL, DT_F32, mine + 1000, mine, 1000, err);
    case COMM_BROADCAST: return comm_broadcast(c, NULL, mine, 4000, 0, err);
    case COMM_BARRIER: return comm_barrier(c, err);
    default: {
        struct comm_hop *h;
        int rc = comm_hop_start(c, NULL, shared + 8192, shared, 4096, &h, err);
        return rc == OK ? comm_hop_wait(c, NULL, h, err) : rc;
    }
    }
}

static int until_it_breaks(struct comm_world *w, int rank, void *arg)
{
    struct scene *sc = arg;
    struct comm *c;
    struct error err = { 0 };
    int ranks[N] = { 0, 1, 2 };
    if (comm_group(&c, w, ranks, N, &err) != OK) return 1;
    float *mine = xcalloc(8000, 4);
    int rc = OK;
    for (int round = 0; rc == OK; round++) {
        if (rank == VICTIM) {
            atomic_store(&sc->rounds, round);
            if (round == ROUNDS) (void)pause();         /* the blow falls here, and in the middle of a call if it comes earlier */
        }
        rc = one_call(c, sc->kind, comm_memory(w), mine, &err);
    }
    sc->rc[rank] = rc;
    sc->left_after_s[rank] = monotonic_s() - sc->struck;
    (void)snprintf(sc->text[rank], sizeof sc->text[rank], "%s", err.text);
    free(mine);
    return 0;
}

static int shm_files(void)
{
    int n = 0;
    DIR *d = opendir("/dev/shm");
    for (struct dirent *e; d && (e = readdir(d));) n += strstr(e->d_name, "ringmaster") != NULL;
    if (d) (void)closedir(d);
    return n;
}

static void strike(int kind, int sig)
{
    struct scene *sc = ranks_shared(sizeof *sc);
    pid_t pids[N];
    int status[N];
    sc->kind = kind;
    ranks_start(N, NULL, 1 << 16, DEADLINE_MS, until_it_breaks, sc, pids);
    while (atomic_load(&sc->rounds) < ROUNDS) (void)usleep(1000);
    sc->struck = monotonic_s();
    (void)kill(pids[VICTIM], sig);
    for (int r = 0; r < N; r++)
        if (r != VICTIM) ck_assert_int_eq(waitpid(pids[r], &status[r], 0), pids[r]);
    (void)kill(pids[VICTIM], SIGKILL);
    (void)waitpid(pids[VICTIM], &status[VICTIM], 0);
    for (int r = 0; r < N; r++) {
        if (r == VICTIM) continue;
        ck_assert_msg(sc->rc[r] == E_PEER, "%s: rank %d ended with %s: %s", comm_kind_names[kind], r, status_name((enum status)sc->rc[r]), sc->text[r]);
        ck_assert_msg(strstr(sc->text[r], "rank 1 ") != NULL, "%s: %s", comm_kind_names[kind], sc->text[r]);
        ck_assert_msg(sc->left_after_s[r] < 5.0, "%s: rank %d left after %.1f s", comm_kind_names[kind], r, sc->left_after_s[r]);
    }
    ck_assert_int_eq(shm_files(), 0);
}

START_TEST(killed) { strike(_i, SIGKILL); } END_TEST
START_TEST(stopped) { strike(_i, SIGSTOP); } END_TEST

/* A rank may compute far longer than the deadline: it still beats. */
static int slow(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct comm *c;
    struct error err = { 0 };
    int ranks[N] = { 0, 1, 2 };
    if (comm_group(&c, w, ranks, N, &err) != OK) return 1;
    if (rank == VICTIM) (void)usleep(1500000);
    int rc = comm_barrier(c, &err);
    if (rc != OK) (void)fprintf(stderr, "rank %d: %s\n", rank, err.text);
    return rc;
}
START_TEST(slow_is_not_lost) { ck_assert_int_eq(ranks_run(N, NULL, 0, 500, slow, NULL), 0); } END_TEST

/* A rank that has left in order, while others wait for it: said so at once. */
static int deserter(struct comm_world *w, int rank, void *arg)
{
    (void)arg;
    struct comm *c;
    struct error err = { 0 };
    int ranks[N] = { 0, 1, 2 };
    if (comm_group(&c, w, ranks, N, &err) != OK) return 1;
    if (comm_barrier(c, &err) != OK) return 2;
    if (rank == VICTIM) return 0;
    return comm_barrier(c, &err) == E_PEER && strstr(err.text, "rank 1 ") ? 0 : 3;
}
START_TEST(left_early) { ck_assert_int_eq(ranks_run(N, NULL, 0, 60000, deserter, NULL), 0); } END_TEST

int main(void)
{
    Suite *s = suite_create("peers");
    TCase *t = tcase_create("peers");
    tcase_set_timeout(t, 200);
    tcase_add_loop_test(t, killed, 0, COMM_KINDS);
    tcase_add_loop_test(t, stopped, 0, COMM_KINDS);
    tcase_add_test(t, slow_is_not_lost);
    tcase_add_test(t, left_early);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
