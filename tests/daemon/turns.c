/* Tests of whose turn it is to hear of events (daemon/sse.c, which is part of this file so that the test can be the stream). */
#include <check.h>

#include "daemon/daemon.h"
#include "tests/suite.h"

#define stream_wake woken
struct stream;
static void woken(struct stream *s);
#include "daemon/sse.c"

enum { CLIENTS = 100, TURNS = (CLIENTS + WAKE_AT_ONCE - 1) / WAKE_AT_ONCE };
static int heard[CLIENTS];
static void woken(struct stream *s) { ++*(int *)(void *)s; }

static void news(struct sse *s)
{
    for (struct client *c = s->clients; c; c = c->next) c->due = true;
    on_turn(&s->turn);
}

START_TEST(news_without_end_reach_everybody)
{
    uv_loop_t loop;
    struct sse s = { 0 };
    ck_assert_int_eq(uv_loop_init(&loop), 0);
    (void)uv_timer_init(&loop, &s.turn);
    s.turn.data = &s;
    for (int i = 0; i < CLIENTS; i++) {
        struct client *c = xcalloc(1, sizeof *c);
        *c = (struct client){ .sse = &s, .stream = (struct stream *)(void *)&heard[i], .next = s.clients, .link = &s.clients };
        if (s.clients) s.clients->link = &c->next;
        s.clients = c;
        s.n++;
    }
    for (int i = 0; i < TURNS; i++) news(&s);
    for (int i = 0; i < CLIENTS; i++) ck_assert_msg(heard[i] == 1 || heard[i] == 2, "client %d was woken %d times", i, heard[i]);
    for (int i = 0; s.clients; i++) {           /* whoever's turn it is may go */
        client_gone(s.next && i % 2 ? s.next : s.clients);
        if (s.clients) news(&s);
    }
    ck_assert_int_eq(s.n, 0);
    ck_assert_ptr_null(s.next);
    on_turn(&s.turn);
    uv_close((uv_handle_t *)&s.turn, NULL);
    (void)uv_run(&loop, UV_RUN_DEFAULT);
    ck_assert_int_eq(uv_loop_close(&loop), 0);
}
END_TEST

int main(void)
{
    Suite *suite = suite_create("turns");
    TCase *c = tcase_create("turns");
    tcase_add_test(c, news_without_end_reach_everybody);
    suite_add_tcase(suite, c);
    return suite_run(suite, CK_FORK_GETENV);
}
