/* worker/link.c against a keeper made of a socket pair. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "api/clock.h"
#include "worker/link.h"
#include "tests/suite.h"

static int keeper_fd;
static struct link *l;
static struct error err;

static void open_pair(void)
{
    int fd[2];
    ck_assert_int_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    keeper_fd = fd[0];
    ck_assert_int_eq(link_open(&l, fd[1], 1, 2, &err), OK);
}

static void say(const char *line) { ck_assert_int_eq(write(keeper_fd, line, strlen(line)), (long)strlen(line)); }

/* Reads lines until one holds word; fails after 5 s. */
static void expect(const char *word)
{
    static char buf[1 << 20];
    struct timeval t = { 5, 0 };
    size_t n = 0;
    (void)setsockopt(keeper_fd, SOL_SOCKET, SO_RCVTIMEO, &t, sizeof t);
    for (;;) {
        ssize_t got = read(keeper_fd, buf + n, 1);
        ck_assert_msg(got == 1, "no line with %s", word);
        if (buf[n++] != '\n') continue;
        buf[n - 1] = '\0';
        n = 0;
        if (strstr(buf, word)) return;
    }
}

START_TEST(hello_beat_records)
{
    open_pair();
    expect("\"hello\",\"rank\":1");
    link_step(l, 7, "forward");
    cJSON *m = cJSON_CreateObject();
    json_add_str(m, "t", "metrics");
    json_add_int(m, "step", 7);
    link_send(l, m);
    expect("{\"t\":\"metrics\",\"step\":7}");
    expect("{\"t\":\"beat\",\"step\":7,\"phase\":\"forward\",\"ticks\":1}");
    m = cJSON_CreateObject();
    json_add_str(m, "t", "done");
    link_send(l, m);
    link_close(l);                      /* flushes */
    expect("\"done\"");
    (void)close(keeper_fd);
}
END_TEST

START_TEST(rendezvous)
{
    char *v;
    open_pair();
    ck_assert_int_eq(link_put(l, "k", "v", &err), OK);
    expect("\"put\",\"key\":\"k\",\"value\":\"v\"");
    say("{\"t\":\"value\",\"key\":\"other\",\"value\":\"x\"}\n{\"t\":\"fence\",\"name\":\"f\"}\n");
    ck_assert_int_eq(link_get(l, "other", &v, 5000, &err), OK);
    ck_assert_str_eq(v, "x");
    free(v);
    double began = monotonic_s();
    ck_assert_int_eq(link_get(l, "never", &v, 200, &err), E_TIMEOUT);
    ck_assert_int_eq(link_fence(l, "g", 200, &err), E_TIMEOUT);
    ck_assert(monotonic_s() - began > 0.35 && monotonic_s() - began < 3);
    ck_assert_ptr_null(v);
    link_close(l);
    (void)close(keeper_fd);
}
END_TEST

static void *later(void *line)
{
    (void)usleep(200000);
    say(line);
    return NULL;
}

static const struct { const char *line; int get, fence; enum link_stop stop; } wakes[] = {
    { "{\"t\":\"peer_lost\",\"rank\":0,\"text\":\"rank 0 died\"}\n", E_PEER, E_PEER, LINK_GO },
    { "{\"t\":\"stop\",\"mode\":\"now\"}\n", E_STOPPED, E_STOPPED, LINK_STOP_NOW },
    { "{\"t\":\"stop\",\"mode\":\"checkpoint\"}\n{\"t\":\"value\",\"key\":\"k\",\"value\":\"v\"}\n{\"t\":\"fence\",\"name\":\"f\"}\n", OK, E_TIMEOUT, LINK_STOP_CHECKPOINT },
};

START_TEST(waits_are_woken)
{
    char *v;
    pthread_t t;
    open_pair();
    ck_assert_int_eq(pthread_create(&t, NULL, later, (void *)wakes[_i].line), 0);
    ck_assert_int_eq(link_get(l, "k", &v, 5000, &err), wakes[_i].get);
    free(v);
    ck_assert_int_eq(link_fence(l, "nobody", 100, &err), wakes[_i].fence);
    ck_assert_int_eq(link_stop_wanted(l), wakes[_i].stop);
    if (wakes[_i].get == E_PEER) ck_assert(link_peer_lost(l) && strstr(err.text, "rank 0 died"));
    (void)pthread_join(t, NULL);
    link_close(l);
    (void)close(keeper_fd);
}
END_TEST

START_TEST(checkpoint_is_asked_once)
{
    open_pair();
    say("{\"t\":\"checkpoint\"}\nnonsense\n{\"t\":\"checkpoint\"}\n{\"t\":\"value\",\"key\":\"k\",\"value\":\"v\"}\n");
    char *v;
    ck_assert_int_eq(link_get(l, "k", &v, 5000, &err), OK);
    free(v);
    ck_assert(link_checkpoint_wanted(l));
    ck_assert(!link_checkpoint_wanted(l));
    link_close(l);
    (void)close(keeper_fd);
}
END_TEST

START_TEST(keeper_that_never_reads)
{
    open_pair();
    double began = monotonic_s();
    char *pad = xmalloc(100001);
    memset(pad, 'x', 100000);
    pad[100000] = '\0';
    for (int i = 0; i < 1000; i++) {        /* 100 MB: more than the queue may hold */
        cJSON *m = cJSON_CreateObject();
        json_add_str(m, "t", "event");
        json_add_str(m, "text", pad);
        link_send(l, m);
    }
    free(pad);
    link_close(l);
    ck_assert(monotonic_s() - began < 15);        /* 2 s of flushing, the rest is making the lines */
    (void)close(keeper_fd);
}
END_TEST

START_TEST(death_of_the_keeper)
{
    open_pair();
    (void)close(keeper_fd);
    char *v;
    ck_assert_int_eq(link_get(l, "k", &v, 5000, &err), E_PEER);
    ck_assert_int_eq(link_stop_wanted(l), LINK_STOP_NOW);
    ck_assert(link_peer_lost(l));
    link_close(l);

    pid_t pid = fork();                     /* and one that does not leave by itself is ended */
    if (pid == 0) {
        open_pair();
        (void)close(keeper_fd);
        (void)sleep(60);
        _exit(0);
    }
    int status;
    ck_assert_int_eq(waitpid(pid, &status, 0), pid);
    ck_assert(WIFEXITED(status) && WEXITSTATUS(status) == 70);
}
END_TEST

START_TEST(without_a_keeper)
{
    char *v;
    ck_assert_int_eq(link_open(&l, -1, 0, 2, &err), E_INVALID);
    ck_assert_int_eq(link_open(&l, -1, 0, 1, &err), OK);
    ck_assert_int_eq(link_put(l, "k", "v", &err), OK);
    ck_assert_int_eq(link_get(l, "k", &v, 10, &err), OK);
    ck_assert_str_eq(v, "v");
    free(v);
    ck_assert_int_eq(link_get(l, "q", &v, 10, &err), E_TIMEOUT);
    ck_assert_int_eq(link_fence(l, "f", 10, &err), OK);
    link_send(l, cJSON_CreateObject());
    link_close(l);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("link");
    TCase *t = tcase_create("link");
    tcase_set_timeout(t, 30);
    tcase_add_test(t, hello_beat_records);
    tcase_add_test(t, rendezvous);
    tcase_add_loop_test(t, waits_are_woken, 0, (int)(sizeof wakes / sizeof wakes[0]));
    tcase_add_test(t, checkpoint_is_asked_once);
    tcase_add_test(t, keeper_that_never_reads);
    tcase_add_test(t, death_of_the_keeper);
    tcase_add_test(t, without_a_keeper);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK_GETENV);
}
