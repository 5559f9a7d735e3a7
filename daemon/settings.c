/* settings.c - see settings.h. */
#include "daemon/settings.h"

#include <ctype.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"

enum kind { K_TEXT, K_INT, K_LIST, K_FLAG };
struct row {
    const char *name;           /* "allow_root": flag --allow-root, RINGMASTER_ALLOW_ROOT, "allow_root" in the file */
    enum kind kind;
    size_t at;
    int64_t min, max;
    const char *def, *unit, *help;
};
#define AT(m) offsetof(struct settings, m)
static const struct row rows[] = {
    { "home", K_TEXT, AT(home), 0, 0, "~/.ringmaster", "folder", "Database, token and job folders; made if absent." },
    { "port", K_INT, AT(port), 0, 65535, "7070", "", "TCP port; 0 takes a free one, written to <home>/url." },
    { "bind", K_TEXT, AT(bind), 0, 0, "127.0.0.1", "address", "Address to listen on; other than loopback needs --remote." },
    { "remote", K_FLAG, AT(remote), 0, 0, "false", "", "Allow a bind address that other machines reach (put TLS in front)." },
    { "tls_cert", K_TEXT, AT(tls_cert), 0, 0, "", "file", "Certificate chain (PEM); with tls_key, HTTPS is spoken instead of HTTP." },
    { "tls_key", K_TEXT, AT(tls_key), 0, 0, "", "file", "Its private key (PEM)." },
    { "allow_root", K_LIST, AT(allow_root), 0, 0, "", "folder", "Paths in a job must lie under one of these; relative ones start at the first." },
    { "allow_host", K_LIST, AT(allow_host), 0, 0, "", "name", "Host names accepted besides loopback and the bind address." },
    { "slots", K_INT, AT(slots), 0, 4096, "8", "ranks", "CPU ranks that may run at one time." },
    { "max_connections", K_INT, AT(max_connections), 8, 60000, "1200", "", "HTTP connections." },
    { "max_streams", K_INT, AT(max_streams), 1, 50000, "1000", "", "Event streams; more get 503." },
    { "start_timeout_ms", K_INT, AT(start_timeout_ms), 100, 3600000, "30000", "ms", "From spawning a keeper until it answers." },
    { "plan_timeout_ms", K_INT, AT(plan_timeout_ms), 100, 3600000, "60000", "ms", "Longest wait for the worker's plan." },
    { "request_timeout_ms", K_INT, AT(request_timeout_ms), 500, 600000, "15000", "ms", "A client that has not sent its whole request by then is cut off." },
    { "backoff_ms", K_INT, AT(backoff_ms), 0, 3600000, "2000", "ms", "Wait before a first restart; doubles up to 64 times this." },
    { "keep_days", K_INT, AT(keep_days), 0, 36500, "0", "days", "Ended jobs are removed with their folders after this; 0 keeps them." },
    { "keep_events", K_INT, AT(keep_events), 1000, INT64_C(1) << 40, "1000000", "rows", "Events and audit entries kept, of each; older ones are removed." },
    { "wal_bytes", K_INT, AT(wal_bytes), 65536, INT64_C(1) << 40, "67108864", "bytes", "The database's write-ahead log is cut when it is longer." },
    { "webhook_ca", K_TEXT, AT(webhook_ca), 0, 0, "", "file", "Certificates (PEM) that webhooks over https are checked against, in the system's place." },
    { "slurm_jobs", K_INT, AT(slurm_jobs), 1, 3000, "100", "jobs", "Batch jobs that may be with Slurm at one time (launcher slurm)." },
    { "slurm_poll_ms", K_INT, AT(slurm_poll_ms), 100, 3600000, "3000", "ms", "How often squeue is asked, once for all of them." },
    { "slurm_timeout_ms", K_INT, AT(slurm_timeout_ms), 100, 3600000, "30000", "ms", "A program of Slurm that has not answered by then is ended." },
    { "slurm_settle_ms", K_INT, AT(slurm_settle_ms), 100, 3600000, "15000", "ms", "How long after a batch job's end its keeper's files may take to arrive over the file system." },
    { "worker", K_TEXT, AT(worker), 0, 0, "", "file", "ringmaster-worker; found beside this program if empty." },
    { "keeper", K_TEXT, AT(keeper), 0, 0, "", "file", "ringmaster-keeper; found beside this program if empty." },
    { "config", K_TEXT, AT(config), 0, 0, "", "file", "Configuration file; <home>/config.json if it exists." },
    { "restore", K_TEXT, AT(restore), 0, 0, "", "file", "Put this backup in the database's place (which is kept beside it), and leave." },
    { "check", K_FLAG, AT(check), 0, 0, "false", "", "Check settings, programs and database, print what was found, and leave." },
    { "version", K_FLAG, AT(version), 0, 0, "false", "", "Print the version and leave." },
    { "help", K_FLAG, AT(help), 0, 0, "false", "", "Print this and leave." },
};
enum { N_ROWS = sizeof rows / sizeof rows[0] };

static void *at(const struct settings *s, const struct row *r) { return (char *)s + r->at; }

static void list_clear(struct strlist *l)
{
    for (int i = 0; i < l->n; i++) free(l->v[i]);
    free(l->v);
    *l = (struct strlist){ 0 };
}

static void list_add(struct strlist *l, const char *v)
{
    l->v = xrealloc(l->v, (unsigned long)(l->n + 1) * sizeof *l->v);
    l->v[l->n++] = xstrdup(v);
}

static void put(struct settings *s, const struct row *r, const char *v, const char *where, struct problems *p)
{
    switch (r->kind) {
    case K_TEXT:
        free(*(char **)at(s, r));
        *(char **)at(s, r) = xstrdup(v);
        break;
    case K_LIST: if (*v) list_add(at(s, r), v); break;
    case K_FLAG:
        if (strcmp(v, "true") == 0 || strcmp(v, "1") == 0) *(bool *)at(s, r) = true;
        else if (strcmp(v, "false") == 0 || strcmp(v, "0") == 0) *(bool *)at(s, r) = false;
        else problems_add(p, where, "wrong_type", "expected true or false, got \"%.60s\"", v);
        break;
    case K_INT: {
        char *end;
        long long n = strtoll(v, &end, 10);
        if (*v == '\0' || *end || strlen(v) > 18) problems_add(p, where, "wrong_type", "expected a whole number, got \"%.60s\"", v);
        else if (n < r->min || n > r->max) problems_add(p, where, "out_of_range", "expected %lld to %lld, got %lld", (long long)r->min, (long long)r->max, n);
        else *(int64_t *)at(s, r) = n;
        break;
    }
    }
}

static void put_json(struct settings *s, const struct row *r, const cJSON *v, const char *where, struct problems *p)
{
    char text[64];
    double d;
    if (cJSON_IsString(v)) put(s, r, v->valuestring, where, p);
    else if (cJSON_IsBool(v)) put(s, r, cJSON_IsTrue(v) ? "true" : "false", where, p);
    else if (json_number(v, &d)) { (void)snprintf(text, sizeof text, "%.17g", d); put(s, r, text, where, p); }
    else problems_add(p, where, "wrong_type", "expected a string, a number or true/false");
}

static void from_file(struct settings *s, const char *path, const bool *fixed, struct problems *p)
{
    struct error err;
    cJSON *json;
    char where[PATH_MAX + 80];
    if (json_parse_file(&json, path, &json_limits_request, &err) != OK) {
        problems_add(p, path, "unreadable", "%s", err.text);
        return;
    }
    for (const cJSON *v = json->child; v; v = v->next) {
        const struct row *r = NULL;
        for (int i = 0; i < N_ROWS && !r; i++) if (v->string && strcmp(rows[i].name, v->string) == 0) r = &rows[i];
        (void)snprintf(where, sizeof where, "%s: %.60s", path, v->string ? v->string : "");
        if (r == NULL) { problems_add(p, where, "unknown_field", "unknown setting; `ringmasterd --help` lists all"); continue; }
        if (fixed[r - rows]) continue;
        if (r->kind == K_LIST) list_clear(at(s, r));
        if (r->kind == K_LIST && cJSON_IsArray(v)) {
            for (const cJSON *item = v->child; item; item = item->next) put_json(s, r, item, where, p);
        } else put_json(s, r, v, where, p);
    }
    cJSON_Delete(json);
}

static char *absolute(const char *path)
{
    if (strncmp(path, "~/", 2) == 0 && getenv("HOME")) return xasprintf("%s/%s", getenv("HOME"), path + 2);
    if (path[0] == '/') return xstrdup(path);
    char cwd[PATH_MAX];
    return xasprintf("%s/%s", getcwd(cwd, sizeof cwd) ? cwd : "", path);
}

int settings_read(struct settings *s, int argc, char **argv, struct problems *p)
{
    bool fixed[N_ROWS] = { 0 };         /* given on the command line or in the environment */
    char where[200];
    *s = (struct settings){ 0 };
    for (int i = 0; i < N_ROWS; i++) put(s, &rows[i], rows[i].def, rows[i].name, p);
    for (int a = 1; a < argc; a++) {
        char name[64] = "";
        const char *value = NULL, *eq = strchr(argv[a], '=');
        const struct row *r = NULL;
        size_t n = eq ? (size_t)(eq - argv[a]) : strlen(argv[a]);
        if (strncmp(argv[a], "--", 2) == 0 && n > 2 && n - 2 < sizeof name) {
            for (size_t k = 2; k < n; k++) name[k - 2] = argv[a][k] == '-' ? '_' : argv[a][k];
            for (int i = 0; i < N_ROWS && !r; i++) if (strcmp(rows[i].name, name) == 0) r = &rows[i];
        } else if (strcmp(argv[a], "-h") == 0) { s->help = true; continue; }
        (void)snprintf(where, sizeof where, "%.100s", argv[a]);
        if (r == NULL) { problems_add(p, where, "unknown_flag", "unknown; `ringmasterd --help` lists all"); continue; }
        if (r->kind == K_LIST && !fixed[r - rows]) list_clear(at(s, r));
        fixed[r - rows] = true;
        if (eq) value = eq + 1;
        else if (r->kind == K_FLAG) value = "true";
        else if (a + 1 < argc && strncmp(argv[a + 1], "--", 2) != 0) value = argv[++a];
        if (value == NULL) { problems_add(p, where, "required", "expected a value after it"); continue; }
        put(s, r, value, where, p);
        while (r->kind == K_LIST && !eq && a + 1 < argc && strncmp(argv[a + 1], "--", 2) != 0) put(s, r, argv[++a], where, p);
    }
    for (int i = 0; i < N_ROWS; i++) {
        size_t n = (size_t)snprintf(where, sizeof where, "RINGMASTER_%s", rows[i].name);
        for (size_t k = 0; k < n; k++) where[k] = (char)toupper((unsigned char)where[k]);
        const char *v = getenv(where);
        if (v == NULL || fixed[i]) continue;
        fixed[i] = true;
        if (rows[i].kind != K_LIST) { put(s, &rows[i], v, where, p); continue; }
        while (*v) {
            size_t len = strcspn(v, ":");
            char *one = xstrndup(v, len);
            put(s, &rows[i], one, where, p);
            free(one);
            v += len + (v[len] == ':');
        }
    }
    char *home = absolute(s->home);
    free(s->home);
    s->home = home;
    char *config = *s->config ? xstrdup(s->config) : xasprintf("%s/config.json", home);
    if (*s->config || access(config, F_OK) == 0) from_file(s, config, fixed, p);
    free(config);
    if (strcmp(s->home, home) != 0) { char *again = absolute(s->home); free(s->home); s->home = again; }
    for (int i = 0; i < s->allow_root.n; i++) {
        char real[PATH_MAX];
        if (realpath(s->allow_root.v[i], real) == NULL) {
            problems_add(p, "allow_root", "not_found", "%.300s: expected an existing folder", s->allow_root.v[i]);
            continue;
        }
        free(s->allow_root.v[i]);
        s->allow_root.v[i] = xstrdup(real);
    }
    if (!*s->tls_cert != !*s->tls_key) problems_add(p, *s->tls_cert ? "tls_key" : "tls_cert", "required", "expected a file: tls_cert and tls_key go together");
    if (!s->remote && strcmp(s->bind, "127.0.0.1") != 0 && strcmp(s->bind, "::1") != 0)
        problems_add(p, "bind", "conflict", "%.60s is reachable by other machines: add --remote if that is meant (and put TLS in front)", s->bind);
    return p->n ? E_INVALID : OK;
}

void settings_release(struct settings *s)
{
    for (int i = 0; i < N_ROWS; i++) {
        if (rows[i].kind == K_TEXT) free(*(char **)at(s, &rows[i]));
        if (rows[i].kind == K_LIST) list_clear(at(s, &rows[i]));
    }
    *s = (struct settings){ 0 };
}

cJSON *settings_json(const struct settings *s)
{
    cJSON *o = cJSON_CreateObject();
    for (int i = 0; i < N_ROWS; i++) {
        const void *m = at(s, &rows[i]);
        switch (rows[i].kind) {
        case K_TEXT: json_add_str(o, rows[i].name, *(char *const *)m); break;
        case K_INT: json_add_int(o, rows[i].name, *(const int64_t *)m); break;
        case K_FLAG: (void)cJSON_AddBoolToObject(o, rows[i].name, *(const bool *)m); break;
        case K_LIST: (void)cJSON_AddItemToObject(o, rows[i].name, cJSON_CreateStringArray((const char *const *)((const struct strlist *)m)->v, ((const struct strlist *)m)->n)); break;
        }
    }
    return o;
}

void settings_help(void)
{
    (void)printf("ringmasterd " RM_VERSION ": coordinator of training jobs\n\nusage: ringmasterd [--SETTING VALUE]...\n"
                 "Each setting can also stand in the environment (RINGMASTER_NAME) or in the configuration file (\"name\": value).\n\n");
    for (int i = 0; i < N_ROWS; i++) {
        char flag[64];
        size_t n = (size_t)snprintf(flag, sizeof flag, "--%s%s%s", rows[i].name, *rows[i].unit ? " " : rows[i].kind == K_INT ? " N" : "", rows[i].unit);
        for (size_t k = 2; k < n && flag[k] != ' '; k++) if (flag[k] == '_') flag[k] = '-';
        (void)printf("  %-28s %s%s%s%s\n", flag, rows[i].help, *rows[i].def && rows[i].kind != K_FLAG ? " [" : "",
                     rows[i].kind != K_FLAG ? rows[i].def : "", *rows[i].def && rows[i].kind != K_FLAG ? "]" : "");
    }
}
