/* human.c - numbers for people, and a progress line that works on a terminal, over SSH and in a pipe. */
#include <math.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "api/cli/cli.h"

char *human_bytes(char buf[HUMAN], double bytes)
{
    static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
    int u = 0;
    while (bytes >= 1024 && u < 5) { bytes /= 1024; u++; }
    (void)snprintf(buf, HUMAN, u == 0 ? "%.0f %s" : "%.1f %s", bytes, units[u]);
    return buf;
}

char *human_count(char buf[HUMAN], double n)
{
    char digits[HUMAN];
    if (!isfinite(n)) { (void)snprintf(buf, HUMAN, "-"); return buf; }
    if (fabs(n) < 100 && n != floor(n)) { (void)snprintf(buf, HUMAN, "%.2f", n); return buf; }
    int len = snprintf(digits, sizeof digits, "%.0f", fabs(fmin(n, 1e15))), o = 0;
    if (n < 0) buf[o++] = '-';
    for (int i = 0; i < len; i++) {
        if (i > 0 && (len - i) % 3 == 0) buf[o++] = ',';
        buf[o++] = digits[i];
    }
    buf[o] = '\0';
    return buf;
}

char *human_time(char buf[HUMAN], double seconds)
{
    if (!isfinite(seconds) || seconds < 0) { (void)snprintf(buf, HUMAN, "-"); return buf; }
    long long s = (long long)(fmin(seconds, 1e9) + 0.5);
    if (s >= 3600) (void)snprintf(buf, HUMAN, "%lld:%02lld:%02lld", s / 3600, s / 60 % 60, s % 60);
    else (void)snprintf(buf, HUMAN, "%lld:%02lld", s / 60, s % 60);
    return buf;
}

int terminal_columns(void)
{
    struct winsize w;
    return ioctl(STDERR_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col > 0 ? w.ws_col : 80;
}

void cli_printable(cJSON *j)
{
    for (cJSON *v = j; v; v = v->next) {
        if (cJSON_IsString(v)) {
            char *text = printable(v->valuestring, strlen(v->valuestring), false);
            (void)cJSON_SetValuestring(v, text);
            free(text);
        }
        if (v->string && !(v->type & cJSON_StringIsConst)) {
            char *key = printable(v->string, strlen(v->string), false);
            size_t n = strlen(key) + 1;
            if (n != strlen(v->string) + 1) {
                cJSON_free(v->string);
                if ((v->string = cJSON_malloc(n)) == NULL) abort();
                memcpy(v->string, key, n);
            }
            free(key);
        }
        if (v->child) cli_printable(v->child);
        if (v == j && v->prev == NULL) break;       /* a root has no siblings of ours */
    }
}

void progress_init(struct progress *p)
{
    const char *term = getenv("TERM");
    *p = (struct progress){ .tty = isatty(STDERR_FILENO) && !(term && strcmp(term, "dumb") == 0), .last_s = -1e9 };
}

static void wipe(struct progress *p)
{
    if (p->tty && p->shown) (void)fputs("\r\033[K", stderr);
    p->shown = false;
}

void progress_show(struct progress *p, bool force, const char *fmt, ...)
{
    char raw[400];
    double now = monotonic_s();
    if (!force && now - p->last_s < (p->tty ? 0.1 : 1.0)) return;
    p->last_s = now;
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(raw, sizeof raw, fmt, ap);
    va_end(ap);
    char *line = printable(raw, strlen(raw), false);
    if (p->tty) {
        int width = terminal_columns() - 1;
        wipe(p);
        (void)fprintf(stderr, "%.*s", width, line);     /* one line, whatever the width: it must be rewritable */
        p->shown = true;
    } else (void)fprintf(stderr, "%s\n", line);
    free(line);
    (void)fflush(stderr);
}

void progress_note(struct progress *p, const char *fmt, ...)
{
    wipe(p);
    va_list ap;
    va_start(ap, fmt);
    char *line = printable_v(fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, "%s\n", line);
    free(line);
}

void progress_clear(struct progress *p) { wipe(p); }

void progress_end(struct progress *p)
{
    if (p->tty && p->shown) (void)fputc('\n', stderr);      /* the last state stays to be read */
    p->shown = false;
}

void progress_step(struct progress *p, const struct step_line *s)
{
    char bar[21] = "", steps[HUMAN] = "", eta[HUMAN], speed[HUMAN], comm[16] = "-";
    double done = s->steps > 0 ? (double)s->step / (double)s->steps : 0;
    int full = (int)(done * 20);
    if (full > 20) full = 20;
    memset(bar, '.', 20);
    memset(bar, '#', (size_t)(full > 0 ? full : 0));
    if (s->steps > 0) (void)snprintf(steps, sizeof steps, "/%lld", s->steps);
    if (isfinite(s->comm_share)) (void)snprintf(comm, sizeof comm, "%.1f%%", 100 * s->comm_share);
    bool last = s->steps > 0 && s->step >= s->steps;
    progress_show(p, last || s->step == 1, "%s%s%sstep %lld%s  loss %.4f  %s tokens/s  comm %s  ETA %s", p->tty && s->steps > 0 ? "[" : "", p->tty && s->steps > 0 ? bar : "",
                  p->tty && s->steps > 0 ? "] " : "", s->step, steps, s->loss, human_count(speed, s->tokens_per_s), comm, human_time(eta, s->eta_s));
}
