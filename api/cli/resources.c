/* resources.c - verbs that are one call and a table of what it answers: checkpoints, attempts, metrics, files, tokens, webhooks, backups. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/cli/remote.h"
#include "api/file.h"

/* One row per list: verb, path ({} is the argument) and the members shown. */
static const struct view { const char *verb, *path, *columns; } views[] = {
    { "checkpoints", "/v1/jobs/{}/checkpoints", "step attempt bytes complete bad at path" },
    { "attempts", "/v1/jobs/{}/attempts", "attempt state reason first_step last_step started_at ended_at detail" },
    { "ranks", "/v1/jobs/{}/ranks", "rank pid state phase step heartbeat_age_s allocated_bytes peak_bytes" },
    { "events", "/v1/jobs/{}/history", "event_id at level kind data" },
    { "artifacts", "/v1/jobs/{}/artifacts", "bytes changed_at name" },
    { "queue", "/v1/queue", "position id ranks device reason text name" },
    { "audit", "/v1/audit", "at who peer method path status note" },
    { "token", "/v1/tokens", "id name scope kind created_at expires_at" },
    { "webhook", "/v1/webhooks", "id url states active delivered waiting failed last_error" },
};

static char *text_of(const cJSON *v)
{
    double d;
    if (v == NULL || cJSON_IsNull(v)) return xstrdup("-");
    if (cJSON_IsString(v)) return xstrdup(v->valuestring);
    if (json_number(v, &d)) return d == floor(d) && fabs(d) < 1e15 ? xasprintf("%.0f", d) : xasprintf("%.6g", d);
    return json_line(v);
}

static void print_table(const cJSON *items, const char *columns)
{
    enum { COLUMNS_MAX = 12 };
    char *name[COLUMNS_MAX], *copy = xstrdup(columns);
    int n = 0, rows = cJSON_GetArraySize(items);
    size_t width[COLUMNS_MAX];
    for (char *save = NULL, *p = strtok_r(copy, " ", &save); p && n < COLUMNS_MAX; p = strtok_r(NULL, " ", &save)) {
        bool any = rows == 0;       /* a member no row has is not shown */
        for (const cJSON *i = items ? items->child : NULL; i && !any; i = i->next) any = json_get(i, p) != NULL;
        if (!any) continue;
        width[n] = strlen(p);
        name[n++] = p;
    }
    char **cell = xcalloc((unsigned long)(rows + 1) * COLUMNS_MAX, sizeof *cell);
    int r = 0;
    for (const cJSON *i = items ? items->child : NULL; i; i = i->next, r++)
        for (int c = 0; c < n; c++) {
            cell[r * COLUMNS_MAX + c] = text_of(json_get(i, name[c]));
            size_t len = strlen(cell[r * COLUMNS_MAX + c]);
            if (len > width[c]) width[c] = len;
        }
    for (int c = 0; c < n; c++) (void)printf("%-*s%s", c + 1 < n ? (int)width[c] : 0, name[c], c + 1 < n ? "  " : "\n");
    for (int k = 0; k < r; k++)
        for (int c = 0; c < n; c++) {
            (void)printf("%-*s%s", c + 1 < n ? (int)width[c] : 0, cell[k * COLUMNS_MAX + c], c + 1 < n ? "  " : "\n");
            free(cell[k * COLUMNS_MAX + c]);
        }
    free(cell);
    free(copy);
}

/* "/v1/jobs/{}/x" with the argument in its place. */
static char *path_with(const char *pattern, const char *arg)
{
    const char *hole = strstr(pattern, "{}");
    if (hole == NULL) return xstrdup(pattern);
    char *e = client_escape(arg), *p = xasprintf("%.*s%s%s", (int)(hole - pattern), pattern, e, hole + 2);
    free(e);
    return p;
}

static int show_answer(struct cli *c, cJSON *answer, const char *columns)
{
    if (c->json) { json_print(answer); return CLI_OK; }
    print_table(json_get(answer, "items"), columns);
    cJSON_Delete(answer);
    return CLI_OK;
}

static int view_list(struct cli *c, struct client *h, const struct view *v)
{
    cJSON *answer;
    char *path = path_with(v->path, c->n_args ? c->args[0] : "");
    int rc = remote_json(c, h, "GET", path, NULL, NULL, false, &answer);
    if (rc == CLI_OK) rc = show_answer(c, answer, v->columns);
    free(path);
    return rc;
}

int verb_view(struct cli *c)
{
    struct client *h = remote_open(c);
    int rc = CLI_FAILED;
    for (size_t i = 0; i < sizeof views / sizeof views[0]; i++)
        if (strcmp(views[i].verb, c->verb->name) == 0) rc = view_list(c, h, &views[i]);
    client_free(h);
    return rc;
}

/* artifacts JOB lists; artifacts JOB NAME writes the file to stdout, in pieces. */
int verb_artifacts(struct cli *c)
{
    if (c->n_args == 1) return verb_view(c);
    struct client *h = remote_open(c);
    struct client_reply r;
    struct error err;
    int rc = CLI_OK;
    char *job = client_escape(c->args[0]), *name = xstrdup(""), *copy = xstrdup(c->args[1]);
    for (char *save = NULL, *p = strtok_r(copy, "/", &save); p; p = strtok_r(NULL, "/", &save)) {       /* the slashes stay */
        char *e = client_escape(p), *next = xasprintf("%s/%s", name, e);
        free(e);
        free(name);
        name = next;
    }
    char *path = xasprintf("/v1/jobs/%s/artifacts%s", job, name);
    for (long long at = 0, total = 1; rc == CLI_OK && at < total;) {
        char range[80];
        (void)snprintf(range, sizeof range, "Range: bytes=%lld-%lld", at, at + (32 << 20) - 1);
        if (client_call(h, "GET", path, NULL, range, &r, &err) != OK) rc = cli_complain(c, CLI_UNREACHABLE, "no answer from the daemon: %s", err.text);
        else if (r.status == 416 && at == 0) total = 0;         /* an empty file */
        else if (r.status != 206 && r.status != 200) rc = cli_complain(c, CLI_REFUSED, "job %s has no file %s", c->args[0], c->args[1]);
        else if (fwrite(r.body, 1, r.len, stdout) != r.len) rc = cli_complain(c, CLI_FAILED, "the output is closed");
        else {
            at += (long long)r.len;
            total = r.status == 200 || r.total < 0 || r.len == 0 ? at : r.total;
        }
        client_reply_release(&r);
    }
    client_free(h);
    free(path);
    free(job);
    free(name);
    free(copy);
    return rc;
}

/* A figure without a point may be one the job never reports: then it is a mistake in the command. */
static int check_names(struct cli *c, struct client *h, const char *job, const cJSON *series)
{
    cJSON *known = NULL;
    int rc = CLI_OK;
    char *path = path_with("/v1/jobs/{}/metrics/names", job), *list = xstrdup("");
    for (const cJSON *s = series ? series->child : NULL; s && rc == CLI_OK; s = s->next) {
        const char *name = json_str(s, "name");
        if (name == NULL || cJSON_GetArraySize(json_get(s, "points")) > 0) continue;
        if (known == NULL && (rc = remote_json(c, h, "GET", path, NULL, NULL, false, &known)) != CLI_OK) break;
        const cJSON *items = json_get(known, "items");
        bool found = cJSON_GetArraySize(items) == 0;        /* nothing reported yet: nothing is known */
        list[0] = '\0';
        for (const cJSON *i = items ? items->child : NULL; i; i = i->next) {
            const char *one = cJSON_IsString(i) ? i->valuestring : json_str(i, "name");
            if (one == NULL) continue;
            char *longer = xasprintf("%s%s%s", list, *list ? ", " : "", one);
            free(list);
            list = longer;
            if (strcmp(one, name) == 0) found = true;
        }
        if (!found) rc = cli_complain(c, CLI_USAGE, "job %s reports no figure called %s; it has %s", job, name, list);
    }
    cJSON_Delete(known);
    free(list);
    free(path);
    return rc;
}

/* metrics JOB --names loss,grad_norm: a line per step, tab between the figures. */
int verb_metrics(struct cli *c)
{
    cJSON *answer;
    struct client *h = remote_open(c);
    char *job = client_escape(c->args[0]), *names = client_escape(c->name ? c->name : "loss"), *rank = client_escape(c->rank ? c->rank : "0"), *points = client_escape(c->limit ? c->limit : "1000");
    char *path = xasprintf("/v1/jobs/%s/metrics?names=%s&rank=%s&max_points=%s", job, names, rank, points);
    int rc = remote_json(c, h, "GET", path, NULL, NULL, false, &answer);
    if (rc == CLI_OK) rc = check_names(c, h, c->args[0], json_get(answer, "series"));
    if (rc == CLI_OK && c->json) { json_print(answer); answer = NULL; }
    else if (rc == CLI_OK) {
        const cJSON *series = json_get(answer, "series");
        for (const cJSON *s = series ? series->child : NULL; s; s = s->next) {
            const cJSON *p = json_get(s, "points");
            (void)printf("# %s\n", json_str(s, "name") ? json_str(s, "name") : "?");
            for (const cJSON *i = p ? p->child : NULL; i; i = i->next) {
                char *a = text_of(cJSON_GetArrayItem(i, 0)), *b = text_of(cJSON_GetArrayItem(i, 1));
                (void)printf("%s\t%s\n", a, b);
                free(a);
                free(b);
            }
        }
    }
    cJSON_Delete(answer);
    client_free(h);
    free(path);
    free(job);
    free(names);
    free(rank);
    free(points);
    return rc;
}

int verb_compare(struct cli *c)
{
    cJSON *answer;
    struct client *h = remote_open(c);
    char *ids = xstrdup("");
    for (int i = 0; i < c->n_args; i++) {
        char *e = client_escape(c->args[i]), *next = xasprintf("%s%s%s", ids, i ? "," : "", e);
        free(e);
        free(ids);
        ids = next;
    }
    char *path = xasprintf("/v1/compare?ids=%s", ids);
    int rc = remote_json(c, h, "GET", path, NULL, NULL, false, &answer);
    if (rc == CLI_OK && c->json) { json_print(answer); answer = NULL; }
    else if (rc == CLI_OK) {
        const cJSON *jobs = json_get(answer, "jobs"), *diff = json_get(answer, "differences");
        (void)printf("%-30s", "");
        for (const cJSON *j = jobs ? jobs->child : NULL; j; j = j->next) (void)printf(" %-20s", json_str(j, "id"));
        (void)printf("\n%-30s", "state");
        for (const cJSON *j = jobs ? jobs->child : NULL; j; j = j->next) (void)printf(" %-20s", json_str(j, "state"));
        (void)printf("\n");
        for (const cJSON *f = diff ? diff->child : NULL; f; f = f->next) {
            (void)printf("%-30s", f->string);
            for (const cJSON *v = f->child; v; v = v->next) {
                char *s = text_of(v);
                (void)printf(" %-20s", s);
                free(s);
            }
            (void)printf("\n");
        }
        for (const cJSON *s = jobs && jobs->child ? json_get(jobs->child, "series")->child : NULL, *k = s; k; k = k->next) {
            (void)printf("last %-25s", json_str(k, "name"));
            for (const cJSON *j = jobs->child; j; j = j->next) {
                const cJSON *mine = json_get(j, "series")->child;
                while (mine && strcmp(json_str(mine, "name"), json_str(k, "name")) != 0) mine = mine->next;
                const cJSON *p = mine ? json_get(mine, "points") : NULL;
                char *t = text_of(p ? cJSON_GetArrayItem(cJSON_GetArrayItem(p, cJSON_GetArraySize(p) - 1), 1) : NULL);
                (void)printf(" %-20s", t);
                free(t);
            }
            (void)printf("\n");
        }
    }
    cJSON_Delete(answer);
    client_free(h);
    free(path);
    free(ids);
    return rc;
}

int verb_delete(struct cli *c)
{
    cJSON *answer;
    struct client *h = remote_open(c);
    char *path = path_with("/v1/jobs/{}", c->args[0]);
    int rc = remote_json(c, h, "DELETE", path, NULL, NULL, false, &answer);
    if (rc == CLI_OK && c->json) json_print(answer ? answer : cJSON_CreateObject());
    else cJSON_Delete(answer);
    client_free(h);
    free(path);
    return rc;
}

/* token | webhook: list, make and remove. */
int verb_secrets(struct cli *c)
{
    bool token = strcmp(c->verb->name, "token") == 0;
    const char *what = c->n_args ? c->args[0] : "list", *base = token ? "/v1/tokens" : "/v1/webhooks";
    struct client *h = remote_open(c);
    cJSON *answer = NULL, *body = cJSON_CreateObject();
    char *path = NULL, *text = NULL;
    int rc;
    if (strcmp(what, "list") == 0) rc = verb_view(&(struct cli){ .verb = c->verb, .json = c->json, .url = c->url, .token = c->token, .home = c->home });
    else if (strcmp(what, "create") == 0 && c->n_args == (token ? 3 : 2)) {
        json_add_str(body, token ? "name" : "url", c->args[1]);
        if (token) json_add_str(body, "scope", c->args[2]);
        text = json_line(body);
        rc = remote_json(c, h, "POST", base, text, NULL, false, &answer);
        if (rc == CLI_OK && !c->json) (void)printf("%s\n", json_str(answer, token ? "token" : "secret") ? json_str(answer, token ? "token" : "secret") : "?");
    } else if ((strcmp(what, "delete") == 0 || (!token && strcmp(what, "test") == 0)) && c->n_args == 2) {
        bool test = what[0] == 't';
        char *e = client_escape(c->args[1]);
        path = xasprintf("%s/%s%s", base, e, test ? "/test" : "");
        rc = remote_json(c, h, test ? "POST" : "DELETE", path, test ? "{}" : NULL, NULL, false, &answer);
        free(e);
    } else rc = cli_complain(c, CLI_USAGE, "expected %s", c->verb->args);
    if (rc == CLI_OK && c->json && strcmp(what, "list") != 0) { json_print(answer ? answer : cJSON_CreateObject()); answer = NULL; }
    cJSON_Delete(answer);
    cJSON_Delete(body);
    client_free(h);
    free(path);
    free(text);
    return rc;
}

int verb_backup(struct cli *c)
{
    cJSON *answer;
    struct client *h = remote_open(c);
    int rc = remote_json(c, h, "POST", "/v1/backups", "{}", NULL, false, &answer);
    if (rc == CLI_OK && c->json) { json_print(answer); answer = NULL; }
    else if (rc == CLI_OK) (void)printf("%s\n", json_str(answer, "path") ? json_str(answer, "path") : "?");
    cJSON_Delete(answer);
    client_free(h);
    return rc;
}

/* The daemon must not run: its own program does it, under the home's lock. */
int verb_restore(struct cli *c)
{
    const char *home = c->home ? c->home : getenv("RINGMASTER_HOME");
    char *program = sibling_program("ringmasterd");
    if (program == NULL) return cli_complain(c, CLI_FAILED, "ringmasterd was found neither beside this program nor in PATH");
    int status = 0, rc = CLI_FAILED;
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        if (c->json && freopen("/dev/null", "w", stdout) == NULL) _exit(127);
        if (home) (void)execl(program, program, "--home", home, "--restore", c->args[0], (char *)NULL);
        else (void)execl(program, program, "--restore", c->args[0], (char *)NULL);
        _exit(127);
    }
    while (pid > 0 && waitpid(pid, &status, 0) < 0 && errno == EINTR) { }
    if (pid < 0 || (WIFEXITED(status) && WEXITSTATUS(status) == 127)) (void)cli_complain(c, rc, "ringmasterd could not be started");
    else if (WIFEXITED(status) && WEXITSTATUS(status) == 0) rc = CLI_OK;        /* else it has said why */
    if (c->json) {
        cJSON *o = cJSON_CreateObject();
        (void)cJSON_AddBoolToObject(o, "restored", rc == CLI_OK);
        json_add_str(o, "file", c->args[0]);
        json_print(o);
    }
    free(program);
    return rc;
}
