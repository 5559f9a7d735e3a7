/* local.c - verbs that need no daemon: the plan, the schema, and those the worker itself answers. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include "api/cli/cli.h"
#include "api/file.h"

static char *worker_path(const struct cli *c)
{
    const char *other = getenv("RM_WORKER");
    char *p = other ? xstrdup(other) : sibling_program("ringmaster-worker");
    if (p == NULL) (void)cli_complain(c, CLI_FAILED, "ringmaster-worker was found neither beside this program nor in its libexec folder nor in PATH");
    return p;
}

/* ringmaster sample --max_tokens 20 … -> ringmaster-worker --sample --max_tokens 20 …, in our place. */
int verb_local(struct cli *c)
{
    char *worker = worker_path(c);
    if (worker == NULL) return CLI_FAILED;
    char **argv = xcalloc((unsigned long)c->n_rest + 3, sizeof *argv);
    argv[0] = worker;
    argv[1] = xasprintf("--%s", c->verb->name);
    for (int i = 0; i < c->n_rest; i++) argv[i + 2] = c->rest[i];
    (void)execv(worker, argv);
    int rc = cli_complain(c, CLI_FAILED, "exec %s: %s", worker, strerror(errno));
    free(argv[1]);
    free(argv);
    free(worker);
    return rc;
}

/* Runs the worker's plan on text; its stdout in *out. The spec goes through a memory file: nothing is left on disk. */
static int ask_worker(struct cli *c, const char *text, bool brief, char **out, size_t *len, int *status)
{
    int rc = CLI_FAILED, pipefd[2] = { -1, -1 }, mem = memfd_create("spec.json", 0);
    char *worker = worker_path(c), path[40];
    size_t cap = 1 << 16;
    *out = xmalloc(cap);
    *len = 0;
    if (worker == NULL) goto out;
    if (mem < 0 || write_all(mem, text, strlen(text), NULL) != OK || pipe(pipefd) < 0) {
        (void)cli_complain(c, CLI_FAILED, "cannot ask the worker for a plan: %s", strerror(errno));
        goto out;
    }
    (void)snprintf(path, sizeof path, "/proc/self/fd/%d", mem);
    (void)fflush(NULL);
    pid_t pid = fork();
    if (pid == 0) {
        (void)dup2(pipefd[1], 1);
        (void)close(pipefd[0]);
        (void)close(pipefd[1]);
        (void)execl(worker, worker, "--plan", path, brief ? "--brief" : (char *)NULL, (char *)NULL);
        _exit(127);
    }
    (void)close(pipefd[1]);
    pipefd[1] = -1;
    if (pid < 0) {
        (void)cli_complain(c, CLI_FAILED, "fork: %s", strerror(errno));
        goto out;
    }
    for (ssize_t n; (n = read(pipefd[0], *out + *len, cap - *len - 1)) != 0;) {
        if (n < 0 && errno == EINTR) continue;
        if (n < 0) break;
        *len += (size_t)n;
        if (cap - *len < 4096) *out = xrealloc(*out, cap *= 2);
    }
    while (waitpid(pid, status, 0) < 0 && errno == EINTR) { }
    rc = CLI_OK;
out:
    (*out)[*len] = '\0';
    for (int i = 0; i < 2; i++)
        if (pipefd[i] >= 0) (void)close(pipefd[i]);
    if (mem >= 0) (void)close(mem);
    free(worker);
    return rc;
}

int cli_plan(struct cli *c, const cJSON *spec, bool brief, cJSON **plan)
{
    char *text = json_line(spec), *out;
    size_t len;
    int status = 0;
    struct error err = { 0 };
    *plan = NULL;
    int rc = ask_worker(c, text, brief, &out, &len, &status);
    if (rc == CLI_OK) {
        while (len > 0 && (out[len - 1] == '\n' || out[len - 1] == ' ')) len--;
        if (len == 0 || json_parse(plan, out, len, &json_limits_file, &err) != OK || !cJSON_IsObject(*plan)) {
            cJSON_Delete(*plan);
            *plan = NULL;
            if (WIFSIGNALED(status)) rc = cli_complain(c, CLI_FAILED, "ringmaster-worker --plan was ended by signal %d (%s)", WTERMSIG(status), strsignal(WTERMSIG(status)));
            else rc = cli_complain(c, CLI_FAILED, "ringmaster-worker --plan left with code %d and without a plan%s%s", WEXITSTATUS(status), err.text[0] ? ": " : "", err.text);
        } else if (json_get(*plan, "problems") && cJSON_GetArraySize(json_get(*plan, "problems")) > 0) rc = CLI_USAGE;
        else if (!WIFEXITED(status) || WEXITSTATUS(status) != 0)
            rc = cli_complain(c, CLI_FAILED, "ringmaster-worker --plan left with status %d after its plan", status);
    }
    free(out);
    free(text);
    return rc;
}

static void print_plan(const cJSON *plan)
{
    char a[HUMAN];
    const cJSON *ranks = json_get(plan, "ranks"), *parallel = json_get(plan, "parallel"), *warnings = json_get(plan, "warnings");
    const char *why = json_str(parallel, "why"), *device = json_str(plan, "device"), *policy = json_str(plan, "policy");
    (void)printf("device    %s\nparallel  %s; data parallel x %.0f\nrecompute %s\nsteps     %.0f\n\n%-24s", device ? device : "?", why ? why : "?", json_num(parallel, "dp", 1),
                 policy ? policy : "?", json_num(plan, "steps", 0), "bytes per rank");
    for (const cJSON *r = ranks ? ranks->child : NULL; r; r = r->next) (void)printf(" %7s %-4.0f", "rank", json_num(r, "rank", 0));
    (void)printf("\n");
    const cJSON *first = ranks && ranks->child ? json_get(ranks->child, "categories") : NULL;
    for (const cJSON *v = first ? first->child : NULL; v; v = v->next) {
        (void)printf("%-24s", v->string);
        for (const cJSON *r = ranks->child; r; r = r->next) (void)printf(" %12s", human_bytes(a, json_num(json_get(r, "categories"), v->string, 0)));
        (void)printf("\n");
    }
    (void)printf("%-24s", "peak");
    for (const cJSON *r = ranks ? ranks->child : NULL; r; r = r->next) (void)printf(" %12s", human_bytes(a, json_num(r, "peak_bytes", 0)));
    (void)printf("\n");
    const cJSON *libraries = json_get(plan, "libraries");
    for (const cJSON *l = libraries ? libraries->child : NULL; l; l = l->next) {        /* parts of the categories above */
        const char *name = json_str(l, "name"), *basis = json_str(l, "basis"), *source = json_str(l, "source");
        (void)printf("  of it %-18s %12s  %s: %s\n", name ? name : "?", human_bytes(a, json_num(l, "bytes", 0)), basis ? basis : "?", source ? source : "?");
    }
    if (json_num(plan, "limit_bytes", 0) > 0) (void)printf("%-24s %12s\n", "limit", human_bytes(a, json_num(plan, "limit_bytes", 0)));
    for (const cJSON *w = warnings ? warnings->child : NULL; w; w = w->next)
        if (cJSON_IsString(w)) (void)printf("warning: %s\n", w->valuestring);
}

/* ringmaster plan SPEC --cluster FILE: the worker answers in our place; the spec travels in a memory file. */
static int plan_for_cluster(struct cli *c, const cJSON *spec)
{
    char *worker = worker_path(c), *text = json_line(spec), path[40];
    int mem = worker ? memfd_create("spec.json", 0) : -1;
    if (worker == NULL) {
        free(text);
        return CLI_FAILED;
    }
    if (mem >= 0 && write_all(mem, text, strlen(text), NULL) == OK) {
        (void)snprintf(path, sizeof path, "/proc/self/fd/%d", mem);
        (void)fflush(NULL);
        (void)execl(worker, worker, "--cluster", c->cluster, path, c->json ? "--json" : (char *)NULL, (char *)NULL);
    }
    int rc = cli_complain(c, CLI_FAILED, "exec %s: %s", worker, strerror(errno));
    if (mem >= 0) (void)close(mem);
    free(text);
    free(worker);
    return rc;
}

int verb_plan(struct cli *c)
{
    cJSON *json = NULL, *plan = NULL, *normal = NULL, *list = NULL;
    struct spec s;
    struct problems p = { 0 };
    int rc = cli_spec_json(c, &json);
    if (rc != CLI_OK) return rc;
    const char *where = c->n_args ? c->args[0] : "spec";
    if (spec_from_json(&s, json, &p) != OK) {
        list = problems_json(&p);
        rc = cli_print_problems(c, where, list);
        if (json_get(json, "gpus_per_node")) (void)cli_complain(c, rc, "%s describes a cluster, not a job: ringmaster plan SPEC.json --cluster %s", where, where);
    } else {
        normal = spec_json(&s);
        spec_release(&s);
        if (c->cluster) rc = plan_for_cluster(c, normal);
        else rc = cli_plan(c, normal, !c->json, &plan);
        if (rc == CLI_USAGE) rc = cli_print_problems(c, where, json_get(plan, "problems"));
        else if (rc == CLI_OK && c->json) {
            json_print(plan);
            plan = NULL;
        } else if (rc == CLI_OK) {
            cli_printable(plan);
            print_plan(plan);
        }
    }
    problems_release(&p);
    cJSON_Delete(list);
    cJSON_Delete(normal);
    cJSON_Delete(plan);
    cJSON_Delete(json);
    return rc;
}

int verb_schema(struct cli *c)
{
    if (c->json) {
        json_print(spec_schema());
        return CLI_OK;
    }
    const char *group = "";
    for (int i = 0; i < n_spec_fields; i++) {
        const struct field *f = &spec_fields[i];
        if (strcmp(group, f->group) != 0) (void)printf("%s%s\n", i ? "\n" : "", group = f->group);
        static const char *const kinds[] = { "integer", "number", "true|false", "text", "path", "", "texts", "paths", "object" };
        (void)printf("  %-30s %-12s %s%s%s%s%s%s\n", f->name, f->type == FIELD_ENUM ? "choice" : kinds[f->type], f->help, f->type == FIELD_ENUM ? " One of " : "",
                     f->type == FIELD_ENUM ? f->choices : "", f->type == FIELD_ENUM ? "." : "", f->def ? " Default " : " Required.", f->def ? f->def : "");
    }
    return CLI_OK;
}
