#include "tests/comm/ranks.h"

#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

enum { NOTES = 128 };

/* A board on shared memory: notes are only ever added. */
struct board {
    atomic_int n;
    struct { atomic_int ready; char key[32], value[96]; } note[NOTES];
};

void *ranks_shared(size_t bytes)
{
    void *p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    return p;
}

static int board_put(void *arg, const char *key, const char *value, struct error *err)
{
    struct board *b = arg;
    int i = atomic_fetch_add(&b->n, 1);
    if (i >= NOTES) return error_set(err, E_LIMIT, "the board is full");
    (void)snprintf(b->note[i].key, sizeof b->note[i].key, "%s", key);
    (void)snprintf(b->note[i].value, sizeof b->note[i].value, "%s", value);
    atomic_store(&b->note[i].ready, 1);
    return OK;
}

static int board_get(void *arg, const char *key, char **value, int timeout_ms, struct error *err)
{
    struct board *b = arg;
    for (int waited = 0; waited < timeout_ms; waited++) {
        for (int i = 0; i < NOTES && i < atomic_load(&b->n); i++)
            if (atomic_load(&b->note[i].ready) && strcmp(b->note[i].key, key) == 0) {
                *value = xstrdup(b->note[i].value);
                return OK;
            }
        struct timespec ms = { .tv_nsec = 1000000 };
        (void)nanosleep(&ms, NULL);
    }
    return error_set(err, E_TIMEOUT, "nobody put %s", key);
}

void ranks_start(int n, const struct kernel_ops *ops, int64_t shared_bytes, int deadline_ms, rank_body *body, void *arg, pid_t *pids)
{
    struct board *board = ranks_shared(sizeof *board);
    (void)fflush(NULL);
    for (int r = 0; r < n; r++) {
        pids[r] = fork();
        if (pids[r] < 0) abort();
        if (pids[r] > 0) continue;
        (void)prctl(PR_SET_PDEATHSIG, SIGKILL);
        (void)alarm(300);
        struct comm_meeting m = { board_put, board_get, NULL, board };
        struct comm_world *w;
        struct error err = { 0 };
        int rc = comm_open_with(&w, &comm_transport_shm, ops, &m, r, n, shared_bytes, deadline_ms, &err);
        if (rc != OK) {
            (void)fprintf(stderr, "rank %d: open: %s\n", r, err.text);
            _exit(99);
        }
        rc = body(w, r, arg);
        comm_close(w);
        (void)fflush(NULL);
        _exit(rc);
    }
    (void)munmap(board, sizeof *board);
}

int ranks_wait(int n, const pid_t *pids, int *status)
{
    int bad = 0;
    for (int r = 0; r < n; r++) {
        int st = -1;
        if (waitpid(pids[r], &st, 0) != pids[r]) st = -1;
        if (status) status[r] = st;
        bad += st != 0;
    }
    return bad;
}

int ranks_run(int n, const struct kernel_ops *ops, int64_t shared_bytes, int deadline_ms, rank_body *body, void *arg)
{
    pid_t pids[64];
    if (n > 64) abort();
    ranks_start(n, ops, shared_bytes, deadline_ms, body, arg, pids);
    return ranks_wait(n, pids, NULL);
}
