/* coordinator.c - start, run, leave.
 *
 * Start: settings, lock, database, slots, listen (POST refused), adopt every job that has an attempt, ready. Leave on SIGTERM: no new
 * jobs, what ranks reported goes to the store, exit 0; the keepers and their ranks go on and are adopted by the next start. */
#include "daemon/coordinator.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

#include "api/file.h"
#include "daemon/api.h"
#include "daemon/attempt.h"
#include "daemon/auth.h"
#include "daemon/daemon.h"
#include "daemon/planner.h"
#include "daemon/proc.h"
#include "daemon/scheduler.h"
#include "daemon/sse.h"
#include "daemon/webhooks.h"

enum { TICK_MS = 100, FLUSH_MS = 1000, DRAIN_MS = 3000, HOUSE_EVERY = 600 /* ticks: a minute */ };

void log_line(const char *level, const char *fmt, ...)
{
    char text[1600], *when = time_text(wall_ms());
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof text, fmt, ap);
    va_end(ap);
    for (char *p = text; *p; p++) if ((unsigned char)*p < 0x20 || *p == 0x7f) *p = ' ';     /* one line, whatever a name holds */
    (void)fprintf(stderr, "%s %s %s\n", when, level, text);
    free(when);
}

void failpoint(const char *name)
{
    const char *want = getenv("RINGMASTER_FAILPOINT");
    if (want && strcmp(want, name) == 0) (void)raise(SIGKILL);
}

void daemon_schedule(struct daemon *d) { d->schedule_wanted = true; }

/* One datagram to the service manager, as sd_notify(3) says; without one, nothing. */
static void notify(const char *state)
{
    const char *path = getenv("NOTIFY_SOCKET");
    struct sockaddr_un un = { .sun_family = AF_UNIX };
    if (path == NULL || (path[0] != '/' && path[0] != '@') || strlen(path) >= sizeof un.sun_path) return;
    memcpy(un.sun_path, path, strlen(path));
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + strlen(path));
    if (path[0] == '@') un.sun_path[0] = '\0';
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    if (fd < 0) return;
    (void)sendto(fd, state, strlen(state), MSG_NOSIGNAL, (struct sockaddr *)&un, len);
    (void)close(fd);
}

/* --- timers --- */

static void expire(struct daemon *d)
{
    struct error err;
    if (store_wal_bytes(d->store) > d->set.wal_bytes / 2) store_checkpoint(d->store);
    int64_t now = wall_ms();
    (void)store_exec(d->store, NULL, "DELETE FROM idempotency WHERE created_ms<?", "i", now - INT64_C(48) * 3600 * 1000);
    (void)store_exec(d->store, NULL, "DELETE FROM deliveries WHERE state IN ('delivered','failed') AND next_ms<?", "i", now - INT64_C(7) * 24 * 3600 * 1000);
    (void)store_exec(d->store, NULL, "DELETE FROM tokens WHERE expires_ms<?", "i", now);
    (void)store_exec(d->store, NULL, "DELETE FROM events WHERE id<=(SELECT max(id) FROM events)-?", "i", d->set.keep_events);
    (void)store_exec(d->store, NULL, "DELETE FROM audit WHERE id<=(SELECT max(id) FROM audit)-?", "i", d->set.keep_events);
    if (d->set.keep_days == 0) return;
    for (int i = 0; i < 20; i++) {
        int64_t id = store_int(d->store, 0, "SELECT id FROM jobs WHERE ended_ms>0 AND ended_ms<? AND state IN ('succeeded','failed','cancelled') ORDER BY id LIMIT 1", "i",
                               now - d->set.keep_days * 24 * 3600 * 1000);
        if (id == 0 || job_forget(d, id, &err) != OK) break;
        log_line("info", "j%lld removed: older than keep_days", (long long)id);
    }
}

static void on_tick(uv_timer_t *t)
{
    struct daemon *d = t->data;
    static int64_t last_ms, ticks;
    int64_t now = mono_ms();
    if (last_ms && now - last_ms - TICK_MS > d->lag_ms_max) d->lag_ms_max = now - last_ms - TICK_MS;
    last_ms = now;
    attempt_tick(d);
    if (!d->ready && (attempts_settled(d) || now > d->ready_by_ms)) {
        d->ready = true;
        d->schedule_wanted = true;
        log_line("info", "ready");
        notify("READY=1");
    }
    if (d->ready && (d->schedule_wanted || ticks % 10 == 0)) {
        d->schedule_wanted = false;
        schedule(d);
    }
    if (ticks % 5 == 0) webhooks_tick(d);
    if (++ticks % 50 == 0) notify("WATCHDOG=1");
    if (ticks % HOUSE_EVERY == 0) { expire(d); d->lag_ms_max = 0; }
}

/* SQLite folds the log back by itself every few MB; it grows only while another process reads the database in one long transaction. */
static void bound_wal(struct daemon *d)
{
    static int64_t told_ms;
    int64_t bytes = store_wal_bytes(d->store), now = mono_ms();
    if (bytes <= d->set.wal_bytes) return;
    store_checkpoint(d->store);
    if ((bytes = store_wal_bytes(d->store)) <= d->set.wal_bytes || (told_ms && now - told_ms < 60000)) return;
    told_ms = now;
    log_line("warning", "ringmaster.db-wal has %lld bytes, over wal_bytes=%lld: another process holds a read transaction on ringmaster.db; end it", (long long)bytes, (long long)d->set.wal_bytes);
}

static void on_flush(uv_timer_t *t)
{
    bool more = attempts_flush(t->data);
    bound_wal(t->data);
    (void)uv_timer_start(t, on_flush, more ? 1 : FLUSH_MS, FLUSH_MS);       /* a burst: on with it once requests had their turn */
}

static void on_draining(uv_timer_t *t)
{
    struct daemon *d = t->data;
    static int left = DRAIN_MS / 50;
    if (http_held(d->http) == 0 || left-- == 0) uv_stop(t->loop);
}

static void on_signal(uv_signal_t *s, int sig)
{
    struct daemon *d = s->data;
    if (d->draining) { uv_stop(d->loop); return; }
    int live = 0;
    for (struct job *j = d->jobs; j; j = j->next) live += j->attempt != NULL;
    log_line("info", "signal %d: leaving; %d jobs go on without the coordinator and are adopted at the next start", sig, live);
    notify("STOPPING=1");
    d->draining = true;
    http_close_listener(d->http);
    (void)uv_timer_start(&d->flush, on_draining, 50, 50);       /* requests under way get their answers */
}

/* --- start --- */

static int take_lock(struct daemon *d, struct error *err)
{
    char *path = xasprintf("%s/lock", d->set.home);
    int rc = OK;
    d->lock_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
    if (d->lock_fd < 0) rc = error_set(err, E_IO, "open %s: %s", path, strerror(errno));
    else if (flock(d->lock_fd, LOCK_EX | LOCK_NB) != 0)
        rc = error_set(err, E_CONFLICT, "another ringmasterd uses %s; stop it or choose another --home", d->set.home);
    free(path);
    return rc;
}

static int make_home(struct daemon *d, struct error *err)
{
    static const char *const parts[] = { "", "/jobs", "/tmp" };
    int rc = OK;
    for (size_t i = 0; i < 3 && rc == OK; i++) {
        char *p = xasprintf("%s%s", d->set.home, parts[i]);
        rc = make_dirs(p, err);
        if (rc == OK && chmod(p, 0700) < 0) rc = error_set(err, E_IO, "%s: cannot set mode 0700: %s", p, strerror(errno));
        free(p);
    }
    return rc;
}

static int write_url(struct daemon *d, struct error *err)
{
    bool v6 = strchr(d->set.bind, ':') != NULL;
    const char *host = strcmp(d->set.bind, "0.0.0.0") == 0 ? "127.0.0.1" : d->set.bind;
    char *path = xasprintf("%s/url", d->set.home), *url = xasprintf("%s://%s%s%s:%d\n", *d->set.tls_cert ? "https" : "http", v6 ? "[" : "", host, v6 ? "]" : "", d->port);
    int rc = file_write(path, url, strlen(url), err);
    (void)printf("ringmasterd: listening on %s", url);
    (void)printf("ringmasterd: the page opens with %.*s/?token=$(cat %s/token)\n", (int)strlen(url) - 1, url, d->set.home);
    (void)fflush(stdout);
    free(path);
    free(url);
    return rc;
}

static void print_problems(const struct problems *p)
{
    for (int i = 0; i < p->n; i++) (void)fprintf(stderr, "ringmasterd: %s: %s\n", p->v[i].pointer, p->v[i].message);
}

static void limits(void)
{
    struct rlimit r;
    if (getrlimit(RLIMIT_NOFILE, &r) == 0 && r.rlim_cur < r.rlim_max) {
        r.rlim_cur = r.rlim_max < 65536 ? r.rlim_max : 65536;
        (void)setrlimit(RLIMIT_NOFILE, &r);
    }
    (void)signal(SIGPIPE, SIG_IGN);
    (void)umask(022);
}

static int check(struct daemon *d)
{
    char *text;
    cJSON *o = settings_json(&d->set);
    text = cJSON_Print(o);
    (void)printf("%s\nworker %s\nkeeper %s\nslots %d\n", text, d->worker ? d->worker : "NOT FOUND", d->keeper ? d->keeper : "NOT FOUND", d->n_slots);
    free(text);
    cJSON_Delete(o);
    if (d->set.allow_root.n == 0) (void)printf("allow_root is empty: every job will be refused\n");
    return d->worker && d->keeper && d->set.allow_root.n > 0 ? 0 : 1;
}

static void close_handle(uv_handle_t *h, void *arg) { (void)arg; if (!uv_is_closing(h)) uv_close(h, NULL); }

int coordinator_main(int argc, char **argv)
{
    static struct daemon d;
    struct problems p = { 0 };
    struct error err = { 0 };
    int rc;
    d.lock_fd = -1;
    if (settings_read(&d.set, argc, argv, &p) != OK && !d.set.help) {
        print_problems(&p);
        problems_release(&p);
        settings_release(&d.set);
        return 2;
    }
    problems_release(&p);
    if (d.set.help || d.set.version) {
        if (d.set.help) settings_help();
        else (void)printf("ringmasterd " RM_VERSION "\n");
        settings_release(&d.set);
        return 0;
    }
    limits();
    proc_boot_id(d.boot_id);
    d.started_mono_ms = mono_ms();
    d.ready_by_ms = d.started_mono_ms + 10000;
    d.loop = uv_default_loop();
    d.worker = *d.set.worker ? xstrdup(d.set.worker) : sibling_program("ringmaster-worker");
    d.keeper = *d.set.keeper ? xstrdup(d.set.keeper) : sibling_program("ringmaster-keeper");
    d.deliver = sibling_program("ringmaster-deliver");
    char *db = xasprintf("%s/ringmaster.db", d.set.home);
    d.port = (int)d.set.port;
    if ((rc = make_home(&d, &err)) != OK || (rc = take_lock(&d, &err)) != OK) goto out;
    if (*d.set.restore) {
        if ((rc = store_restore(db, d.set.restore, &err)) == OK) (void)printf("restored %s\n", d.set.restore);
        goto out;
    }
    if ((rc = store_open(&d.store, db, &err)) != OK) goto out;
    slots_init(&d);
    if (d.set.check) { rc = check(&d); goto leave; }
    if (d.worker == NULL) log_line("warning", "ringmaster-worker was not found: no job can be planned");
    if (d.keeper == NULL) log_line("warning", "ringmaster-keeper was not found: no job can start");
    if (d.set.allow_root.n == 0) log_line("warning", "no --allow-root: every job will be refused");
    if ((rc = auth_start(&d, &err)) != OK || (rc = planner_start(&d)) != OK || (rc = sse_start(&d, &err)) != OK || (rc = job_load_all(&d, &err)) != OK) goto out;
    if ((rc = http_start(&d.http, &d, d.loop, d.set.bind, &d.port, (int)d.set.max_connections, &err)) != OK || (rc = write_url(&d, &err)) != OK) goto out;
    (void)store_exec(d.store, NULL, "UPDATE deliveries SET state='waiting' WHERE state='sending'", "");     /* cut off: sent again, with the same id */
    for (struct job *j = d.jobs, *next; j; j = next) {
        next = j->next;
        if (j->row.state == JOB_STARTING || j->row.state == JOB_RUNNING || j->row.state == JOB_STOPPING) attempt_adopt(&d, j);
    }
    (void)uv_timer_init(d.loop, &d.tick);
    (void)uv_timer_init(d.loop, &d.flush);
    (void)uv_signal_init(d.loop, &d.sigterm);
    (void)uv_signal_init(d.loop, &d.sigint);
    d.tick.data = d.flush.data = d.sigterm.data = d.sigint.data = &d;
    (void)uv_timer_start(&d.tick, on_tick, 1, TICK_MS);
    (void)uv_timer_start(&d.flush, on_flush, FLUSH_MS, FLUSH_MS);
    (void)uv_signal_start(&d.sigterm, on_signal, SIGTERM);
    (void)uv_signal_start(&d.sigint, on_signal, SIGINT);
    (void)uv_run(d.loop, UV_RUN_DEFAULT);
    planner_stop(&d);
    webhooks_stop();
    attempts_detach(&d);
    http_stop(d.http);
    store_checkpoint(d.store);
out:
    if (rc != OK) (void)fprintf(stderr, "ringmasterd: %s\n", err.text);
    rc = rc == OK ? 0 : 1;
leave:
    job_free_all(&d);
    sse_stop(&d);
    uv_walk(d.loop, close_handle, NULL);
    (void)uv_run(d.loop, UV_RUN_NOWAIT);
    store_close(d.store);
    if (d.lock_fd >= 0) (void)close(d.lock_fd);
    free(d.slots);
    free(d.worker);
    free(d.keeper);
    free(d.deliver);
    free(db);
    settings_release(&d.set);
    return rc;
}
