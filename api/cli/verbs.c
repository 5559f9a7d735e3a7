/* verbs.c - the table of verbs and the one parser: help, flags, completion and dispatch come from the same rows.
 *
 * Spec fields are flags of every verb that takes a spec: --max_length 8192, as well as --set max_length=8192. */
#include <errno.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include "api/cli/cli.h"

const struct verb verbs[] = {
    { "run", "SPEC.json", "run one job here, without a daemon", verb_run, TAKES_SPEC, 0, 1,
      "Plans, trains in the foreground, shows progress, prints a summary. Exit code 0 only if the job succeeded.\n"
      "Ctrl-C stops with a checkpoint; a second Ctrl-C kills. Relative paths in SPEC.json are relative to its folder,\n"
      "those given as flags to the current one. Logs and the exit record are under <output_dir>/.ringmaster.\n" },
    { "plan", "SPEC.json", "memory of every rank and all problems, without starting anything", verb_plan, TAKES_SPEC | TAKES_CLUSTER, 0, 1,
      "SPEC.json may be - for stdin. Exact: the plan is what the ranks will allocate. Exit code 2 if the job would be refused.\n"
      "--cluster FILE estimates instead, by formulas, for 8 to 4,096 GPUs that need not exist (docs/cluster.md).\n" },
    { "submit", "SPEC.json", "hand a job to the daemon", verb_submit, TAKES_SPEC | TAKES_URL | TAKES_WAIT | TAKES_GRID, 0, 1,
      "Prints the job's id. --wait follows it to its end and exits as `run` does. --key makes a repeat harmless.\n"
      "--grid 'learning_rate=[1e-4,2e-4]' makes an array: one job for every combination, shown as one by `show`.\n"
      "--random learning_rate=1e-5..1e-3:log --count 20 draws the values instead. SPEC.json may be - for stdin.\n" },
    { "list", "", "jobs, newest first", verb_list, TAKES_URL | TAKES_FILTER, 0, 0, "--state, --name and --limit narrow the list.\n" },
    { "show", "JOB", "one job: state, reason, attempts, ranks", verb_show, TAKES_URL, 1, 1, "" },
    { "logs", "JOB", "what the ranks printed", verb_logs, TAKES_URL | TAKES_FOLLOW | TAKES_LOGS, 1, 1, "-f follows until the job ends; --rank, --tail, --since and --grep narrow it.\n" },
    { "watch", "JOB", "progress of a job until it ends", verb_watch, TAKES_URL, 1, 1, "Exits as `run` does.\n" },
    { "monitor", "[JOB]", "live table of ranks: memory, utilisation, communication, step", verb_monitor, TAKES_URL | TAKES_INTERVAL, 0, 1,
      "Without JOB the newest running one. Refreshed in place on a terminal, plain lines in a pipe; --once prints one table.\n" },
    { "top", "", "devices, running jobs and the queue", verb_top, TAKES_URL | TAKES_INTERVAL, 0, 0, "--once prints one table.\n" },
    { "cancel", "JOB", "end a job", verb_action, TAKES_URL | TAKES_WAIT, 1, 1, "" },
    { "kill", "JOB", "end a job at once, without grace", verb_action, TAKES_URL | TAKES_WAIT, 1, 1, "" },
    { "pause", "JOB", "checkpoint, end, free the devices", verb_action, TAKES_URL | TAKES_WAIT, 1, 1, "" },
    { "resume", "JOB", "queue a paused job again", verb_action, TAKES_URL, 1, 1, "" },
    { "requeue", "JOB", "queue an ended job again", verb_action, TAKES_URL, 1, 1, "" },
    { "checkpoint", "JOB", "save a checkpoint now", verb_action, TAKES_URL, 1, 1, "" },
    { "clone", "JOB", "submit a job again, with some fields changed", verb_clone, TAKES_SPEC | TAKES_URL | TAKES_WAIT, 1, 1, "" },
    { "delete", "JOB", "remove an ended job and its folder", verb_delete, TAKES_URL, 1, 1, "" },
    { "metrics", "JOB", "figures over steps", verb_metrics, TAKES_URL | TAKES_NAMES | TAKES_RANK, 1, 1, "" },
    { "compare", "JOB JOB…", "fields in which jobs differ, and how they ended", verb_compare, TAKES_URL, 2, 10, "" },
    { "checkpoints", "JOB", "checkpoints a job saved", verb_view, TAKES_URL, 1, 1, "" },
    { "artifacts", "JOB [NAME]", "files in a job's output folder; with NAME the file itself on stdout", verb_artifacts, TAKES_URL, 1, 2, "" },
    { "attempts", "JOB", "starts of a job and how each ended", verb_view, TAKES_URL, 1, 1, "" },
    { "ranks", "JOB", "processes of a job", verb_view, TAKES_URL, 1, 1, "" },
    { "events", "JOB", "what happened to a job, newest first", verb_view, TAKES_URL, 1, 1, "" },
    { "queue", "", "waiting jobs and why they wait", verb_view, TAKES_URL, 0, 0, "" },
    { "token", "[list | create NAME read|submit|admin | delete ID]", "tokens of the daemon; a new one is shown once", verb_secrets, TAKES_URL, 0, 3, "" },
    { "webhook", "[list | create URL | test ID | delete ID]", "addresses that are told of job events", verb_secrets, TAKES_URL, 0, 2, "" },
    { "audit", "", "who changed what", verb_view, TAKES_URL, 0, 0, "" },
    { "backup", "", "copy the daemon's database while it runs", verb_backup, TAKES_URL, 0, 0, "" },
    { "restore", "FILE", "put a backup in the database's place; the daemon must not run", verb_restore, TAKES_URL, 1, 1, "" },
    { "import", "swift -- COMMAND… | swift FILE.sh | llamafactory FILE.yaml", "turn another tool's command into a job spec", verb_import, 0, 1, 2,
      "Prints the spec and, for every flag, kept, translated, ignored (why) or unsupported (why). Nothing is dropped silently.\n"
      "  ringmaster import swift -- swift sft --model Qwen/Qwen2.5-7B --dataset d.jsonl --max_length 32768\n"
      "  ringmaster import swift train.sh          (environment lines, continuations and comments are understood)\n"
      "Exit code 0 if every flag is supported, 1 if not.\n" },
    { "schema", "", "all fields of a job, their defaults and meaning", verb_schema, 0, 0, 0, "--json prints the JSON Schema.\n" },
    { "tokenize", "--model DIR [--no-special] [--decode]", "token ids of texts or conversations, or back", verb_local, TAKES_ANY, 0, 9999,
      "Reads {\"text\": …} or {\"messages\": …} a line on stdin (with --decode {\"ids\": …}) and writes {\"ids\": …}, with \"labels\" for\n"
      "conversations.\n" },
    { "render", "--template FILE | --model DIR [--name auto|chatml|llama3]", "conversations through a chat template", verb_local, TAKES_ANY, 0, 9999,
      "Reads {\"messages\": …, \"tools\": …, \"add_generation_prompt\": …, \"context\": {…}} a line on stdin and writes {\"text\": …}.\n" },
    { "check", "PATH… [--json]", "what each path is, or what is wrong with it and where", verb_local, TAKES_ANY, 0, 9999,
      "PATH: a model or adapter folder, .safetensors or its index, tokenizer.json, a template (.jinja), or a data set.\n"
      "--json writes {\"path\", \"ok\", \"summary\" or \"problem\"} a line.\n" },
    { "dataset", "SPEC.json [--json] [--rows N]", "look into a data set as it will be trained", verb_local, TAKES_ANY, 0, 9999,
      "Lengths, rows and which tokens are trained; --rows N shows the first N rows (default 3).\n" },
    { "merge", "ADAPTER OUTPUT [--base MODEL] [--json]", "fold an adapter into its base model", verb_local, TAKES_ANY, 0, 9999,
      "OUTPUT becomes a whole model folder. --base: where the base model is, if not where adapter_config.json says.\n" },
    { "sample", "CHECKPOINT --prompt TEXT [--base MODEL] [--max_new_tokens N] [--temperature T] [--seed N] [--device cpu|cuda] [--json]", "continue a text with a trained model", verb_local, TAKES_ANY, 0, 9999,
      "CHECKPOINT: a model folder, or an adapter whose base model is found or given with --base.\n" },
    { "devices", "[--json]", "devices this machine can train on", verb_local, TAKES_ANY, 0, 9999, "JSON either way.\n" },
    { "completion", "[bash]", "shell completion; source <(ringmaster completion)", verb_completion, 0, 0, 1, "" },
    { "help", "[VERB | exit-codes]", "this text, or more about one verb", verb_help, 0, 0, 1, "" },
    { "version", "", "the version", verb_version, 0, 0, 0, "" },
};
const int n_verbs = (int)(sizeof verbs / sizeof verbs[0]);

static const struct flag {
    const char *name, *value;       /* value NULL: a switch */
    unsigned takes;                 /* 0: every verb */
    size_t at;
    const char *help;
} flags[] = {
    { "--json", NULL, 0, offsetof(struct cli, json), "JSON on stdout, nothing else there" },
    { "--help", NULL, 0, offsetof(struct cli, help), "help on this verb" },
    { "-h", NULL, 0, offsetof(struct cli, help), NULL },
    { "--url", "URL", TAKES_URL, offsetof(struct cli, url), "the daemon's address; else RINGMASTER_URL, else http://127.0.0.1:7070" },
    { "--token", "TOKEN", TAKES_URL, offsetof(struct cli, token), "better: RINGMASTER_TOKEN, or the file <home>/token" },
    { "--home", "DIR", TAKES_URL, offsetof(struct cli, home), "the daemon's home; else RINGMASTER_HOME, else ~/.ringmaster" },
    { "--wait", NULL, TAKES_WAIT, offsetof(struct cli, wait), "wait for the job's end; the exit code is the job's" },
    { "--key", "TEXT", TAKES_WAIT, offsetof(struct cli, key), "Idempotency-Key: the same key never makes a second job" },
    { "--dry_run", NULL, TAKES_WAIT, offsetof(struct cli, dry_run), "check and plan at the daemon, store nothing" },
    { "-f", NULL, TAKES_FOLLOW, offsetof(struct cli, follow), "follow until the job ends" },
    { "--follow", NULL, TAKES_FOLLOW, offsetof(struct cli, follow), NULL },
    { "--state", "STATE", TAKES_FILTER, offsetof(struct cli, state), "only jobs in this state" },
    { "--name", "TEXT", TAKES_FILTER, offsetof(struct cli, name), "only jobs with this name" },
    { "--limit", "N", TAKES_FILTER, offsetof(struct cli, limit), "at most so many (default 50)" },
    { "--rank", "R", TAKES_LOGS | TAKES_RANK, offsetof(struct cli, rank), "only this rank" },
    { "--tail", "N", TAKES_LOGS, offsetof(struct cli, tail), "the last N lines" },
    { "--since", "AGO", TAKES_LOGS, offsetof(struct cli, since), "only what was printed in the last 90s, 10m, 2h or 3d" },
    { "--grep", "TEXT", TAKES_LOGS, offsetof(struct cli, grep), "only lines that contain it" },
    { "--interval", "S", TAKES_INTERVAL, offsetof(struct cli, interval), "seconds between refreshes (default 1)" },
    { "--once", NULL, TAKES_INTERVAL, offsetof(struct cli, once), "print once and leave" },
    { "--cluster", "FILE", TAKES_CLUSTER, offsetof(struct cli, cluster), "a cluster to estimate for (docs/cluster.md)" },
    { "--names", "A,B", TAKES_NAMES, offsetof(struct cli, name), "figures (default loss); see `ringmaster show JOB --json`" },
    { "--points", "N", TAKES_NAMES, offsetof(struct cli, limit), "at most so many points a figure (default 1000)" },
    { "--grid", "FIELD=[A,B]", TAKES_GRID, offsetof(struct cli, grid), "one job for every combination; may be given several times" },
    { "--random", "FIELD=A..B", TAKES_GRID, offsetof(struct cli, random_axis), "values drawn from a range (A..B:log by magnitude) or a list; --count jobs" },
    { "--count", "N", TAKES_GRID, offsetof(struct cli, count), "how many jobs --random makes" },
    { "--sample_seed", "N", TAKES_GRID, offsetof(struct cli, sample_seed), "the same seed draws the same values (default 0)" },
};
enum { N_FLAGS = sizeof flags / sizeof flags[0] };

int cli_complain(const struct cli *c, int code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char *line = printable_v(fmt, ap);
    va_end(ap);
    (void)fprintf(stderr, "ringmaster%s%s: %s\n", c->verb ? " " : "", c->verb ? c->verb->name : "", line);
    free(line);
    return code;
}

int cli_print_problems(const struct cli *c, const char *where, const cJSON *problems)
{
    int n = cJSON_GetArraySize(problems);
    if (c->json) {
        cJSON *o = cJSON_CreateObject();
        json_add_str(o, "state", "refused");
        (void)cJSON_AddItemToObject(o, "problems", cJSON_Duplicate(problems, true));
        json_print(o);
    }
    char *place = printable(where, strlen(where), false);
    cJSON *list = cJSON_Duplicate(problems, true);
    cli_printable(list);
    (void)fprintf(stderr, "%s: %d problem%s\n", place, n, n == 1 ? "" : "s");
    for (const cJSON *p = list ? list->child : NULL; p; p = p->next) {
        const char *at = json_str(p, "pointer"), *text = json_str(p, "message");
        (void)fprintf(stderr, "  %s%s%s\n", at && *at ? at : "", at && *at ? ": " : "", text ? text : "?");
    }
    cJSON_Delete(list);
    free(place);
    return CLI_USAGE;
}

int verb_version(struct cli *c)
{
    if (c->json) {
        cJSON *o = cJSON_CreateObject();
        json_add_str(o, "version", RM_VERSION);
        json_print(o);
    } else (void)puts("ringmaster " RM_VERSION);
    return CLI_OK;
}

static void print_help(FILE *to)
{
    (void)fprintf(to, "usage: ringmaster VERB [ARGUMENTS] [--json]\n\n");
    for (int i = 0; i < n_verbs; i++) (void)fprintf(to, "  %-11s %s\n", verbs[i].name, verbs[i].summary);
    (void)fprintf(to, "\n`ringmaster help VERB` says more; `ringmaster help exit-codes` is for scripts.\n");
}

static const char *const exit_codes[] = {
    [CLI_OK] = "done; for run, watch and submit --wait: the job succeeded",
    [CLI_FAILED] = "the job failed, or what was asked for could not be done",
    [CLI_USAGE] = "bad command line or spec: nothing was started",
    [CLI_STOPPED] = "the job was cancelled or paused",
    [CLI_UNREACHABLE] = "no daemon answers at the address",
    [CLI_REFUSED] = "the daemon refuses: wrong token, unknown job, a state that does not allow it",
};
enum { N_EXIT_CODES = sizeof exit_codes / sizeof exit_codes[0] };

static const struct verb *find_verb(const char *name)
{
    for (int i = 0; i < n_verbs; i++)
        if (strcmp(verbs[i].name, name) == 0) return &verbs[i];
    return NULL;
}

static void print_verb_help(const struct verb *v)
{
    (void)printf("usage: ringmaster %s%s%s%s\n%s.\n%s", v->name, *v->args ? " " : "", v->args, v->takes & TAKES_SPEC ? " [--FIELD VALUE | --set FIELD=VALUE]…" : "", v->summary, v->help);
    if (v->takes & TAKES_ANY) return;
    for (int i = 0; i < N_FLAGS; i++) {
        const struct flag *f = &flags[i];
        char left[64];
        if (f->help == NULL || (f->takes && !(f->takes & v->takes))) continue;
        (void)snprintf(left, sizeof left, "%s%s%s", f->name, f->value ? " " : "", f->value ? f->value : "");
        (void)printf("  %-18s %s\n", left, f->help);
    }
    if (v->takes & TAKES_SPEC) (void)printf("Every field of `ringmaster schema` is a flag too: --max_length 8192, or --set max_length=8192.\n");
}

/* {"verbs": [{name, arguments, summary, help, flags, takes_fields}], "exit_codes": {…}}: one verb, or all. */
static void help_json(const struct verb *only)
{
    cJSON *o = cJSON_CreateObject(), *list = cJSON_AddArrayToObject(o, "verbs"), *codes = cJSON_AddObjectToObject(o, "exit_codes");
    for (int i = 0; i < n_verbs; i++) {
        const struct verb *v = &verbs[i];
        if (only && v != only) continue;
        cJSON *e = cJSON_CreateObject();
        json_add_str(e, "name", v->name);
        json_add_str(e, "arguments", v->args);
        json_add_str(e, "summary", v->summary);
        json_add_str(e, "help", v->help);
        cJSON *names = cJSON_AddArrayToObject(e, "flags");
        for (int k = 0; k < N_FLAGS && !(v->takes & TAKES_ANY); k++)
            if (flags[k].takes == 0 || (flags[k].takes & v->takes)) (void)cJSON_AddItemToArray(names, cJSON_CreateString(flags[k].name));
        (void)cJSON_AddBoolToObject(e, "takes_fields", (v->takes & TAKES_SPEC) != 0);
        (void)cJSON_AddItemToArray(list, e);
    }
    for (int i = 0; i < N_EXIT_CODES; i++) {
        char key[8];
        (void)snprintf(key, sizeof key, "%d", i);
        json_add_str(codes, key, exit_codes[i]);
    }
    json_print(o);
}

int verb_help(struct cli *c)
{
    const struct verb *v = NULL;
    bool codes = c->n_args && strcmp(c->args[0], "exit-codes") == 0;
    if (c->n_args && !codes && (v = find_verb(c->args[0])) == NULL) return cli_complain(c, CLI_USAGE, "no verb is called %s", c->args[0]);
    if (c->json) help_json(v);
    else if (codes) for (int i = 0; i < N_EXIT_CODES; i++) (void)printf("%d  %s\n", i, exit_codes[i]);
    else if (v) print_verb_help(v);
    else print_help(stdout);
    return CLI_OK;
}

int verb_completion(struct cli *c)
{
    if (c->n_args && strcmp(c->args[0], "bash") != 0) return cli_complain(c, CLI_USAGE, "completion is made for bash, not for %s", c->args[0]);
    if (c->json) return cli_complain(c, CLI_USAGE, "a script for the shell has no JSON form; `ringmaster help --json` lists verbs and flags");
    (void)printf("_ringmaster() {\n    COMPREPLY=()\n    local word=${COMP_WORDS[COMP_CWORD]} verb=${COMP_WORDS[1]} words=\n    if [ \"$COMP_CWORD\" -eq 1 ]; then words='");
    for (int i = 0; i < n_verbs; i++) (void)printf("%s%s", i ? " " : "", verbs[i].name);
    (void)printf("'\n    else case $verb in\n");
    for (int i = 0; i < n_verbs; i++) {
        const struct verb *v = &verbs[i];
        (void)printf("    %s) words='", v->name);
        if (v->run == verb_import) (void)printf("swift llamafactory ");
        if (v->run == verb_help)
            for (int k = 0; k < n_verbs; k++) (void)printf("%s ", verbs[k].name);
        for (int k = 0; k < N_FLAGS && !(v->takes & TAKES_ANY); k++)
            if (flags[k].takes == 0 || (flags[k].takes & v->takes)) (void)printf("%s ", flags[k].name);
        if (v->takes & TAKES_SPEC) {
            (void)printf("--set");
            for (int k = 0; k < n_spec_fields; k++) (void)printf(" --%s", spec_fields[k].name);
        }
        (void)printf("' ;;\n");
    }
    (void)printf("    esac; fi\n    case $word in -*) ;; *) [ \"$COMP_CWORD\" -gt 1 ] && COMPREPLY=($(compgen -f -- \"$word\")) ;; esac\n"
                 "    COMPREPLY+=($(compgen -W \"$words\" -- \"$word\"))\n}\ncomplete -o filenames -F _ringmaster ringmaster\n");
    return CLI_OK;
}

static const struct flag *find_flag(const struct verb *v, const char *name, size_t len)
{
    for (int i = 0; i < N_FLAGS; i++)
        if (strncmp(flags[i].name, name, len) == 0 && flags[i].name[len] == '\0' && (flags[i].takes == 0 || (flags[i].takes & v->takes))) return &flags[i];
    return NULL;
}

/* One more value of a field; lists grow. */
static void set_field(struct cli *c, const struct field *f, const char *text)
{
    if (c->fields == NULL) c->fields = cJSON_CreateObject();
    cJSON *v = cli_field_value(f, text), *old = json_get(c->fields, f->name);
    if (old && (f->type == FIELD_STRINGS || f->type == FIELD_PATHS) && cJSON_IsString(v)) {
        if (cJSON_IsString(old)) {
            cJSON *list = cJSON_CreateArray();
            (void)cJSON_AddItemToArray(list, cJSON_CreateString(old->valuestring));
            (void)cJSON_ReplaceItemInObjectCaseSensitive(c->fields, f->name, list);
            old = list;
        }
        (void)cJSON_AddItemToArray(old, v);
        return;
    }
    if (old) cJSON_DeleteItemFromObjectCaseSensitive(c->fields, f->name);
    (void)cJSON_AddItemToObject(c->fields, f->name, v);
}

/* --set field=value, --field=value, --field value… ; returns how many arguments were used, 0: not a field, -1: complained. */
static int take_field(struct cli *c, int argc, char **argv, int i)
{
    char name[64];
    const char *text = argv[i] + 2, *value = NULL;
    int used = 1;
    bool set = strcmp(argv[i], "--set") == 0;
    if (set) {
        if (i + 1 == argc || strchr(argv[i + 1], '=') == NULL) return cli_complain(c, -1, "expected --set FIELD=VALUE");
        text = argv[i + 1];
        used = 2;
    }
    const char *eq = strchr(text, '=');
    size_t len = eq ? (size_t)(eq - text) : strlen(text);
    (void)snprintf(name, sizeof name, "%.*s", (int)(len < 60 ? len : 60), text);
    for (char *p = name; *p; p++)
        if (*p == '-') *p = '_';
    const struct field *f = spec_field(name);
    if (f == NULL) return set ? cli_complain(c, -1, "a job has no field %s; `ringmaster schema` lists all", name) : 0;
    if (eq) value = eq + 1;
    else if (i + 1 < argc && (strncmp(argv[i + 1], "--", 2) != 0)) {
        value = argv[i + 1];
        used = 2;
    } else if (f->type == FIELD_BOOL) value = "true";
    if (value == NULL) return cli_complain(c, -1, "--%s needs a value", name);
    if (f->type == FIELD_BOOL && used == 2 && !set && strcmp(value, "true") != 0 && strcmp(value, "false") != 0 && strcmp(value, "0") != 0 && strcmp(value, "1") != 0) {
        used = 1;           /* --packing SPEC.json: a switch */
        value = "true";
    }
    set_field(c, f, value);
    /* --dataset a.jsonl b.jsonl, as in ms-swift */
    bool list = f->type == FIELD_STRINGS || f->type == FIELD_PATHS;
    while (list && !set && !eq && i + used < argc && strncmp(argv[i + used], "--", 2) != 0) set_field(c, f, argv[i + used++]);
    return used;
}

/* "1e-5..1e-3:log" -> {min, max, log}; NULL if it is no range. */
static cJSON *range_of(const char *text)
{
    const char *dots = strstr(text, "..");
    char *low = dots ? xstrndup(text, (size_t)(dots - text)) : NULL, *end = NULL, *rest = NULL;
    cJSON *o = NULL;
    if (dots && *low) {
        double min = strtod(low, &end), max = strtod(dots + 2, &rest);
        bool log_scale = rest && strcmp(rest, ":log") == 0;
        if (*end == '\0' && rest != dots + 2 && (*rest == '\0' || log_scale)) {
            o = cJSON_CreateObject();
            json_add_num(o, "min", min);
            json_add_num(o, "max", max);
            (void)cJSON_AddBoolToObject(o, "log", log_scale);
        }
    }
    free(low);
    return o;
}

/* FIELD=[A,B] or FIELD=A,B, at random also FIELD=A..B: one axis of an array of jobs. */
static int take_axis(struct cli *c, const char *text, bool random)
{
    const char *eq = strchr(text, '=');
    char name[64] = "";
    if (eq) (void)snprintf(name, sizeof name, "%.*s", (int)(eq - text < 60 ? eq - text : 60), text);
    const struct field *f = spec_field(name);
    if (f == NULL) return cli_complain(c, CLI_USAGE, random ? "expected --random FIELD=A..B, a field of `ringmaster schema`" : "expected --grid FIELD=[A,B], a field of `ringmaster schema`");
    if (c->axes && c->random != random) return cli_complain(c, CLI_USAGE, "expected either --grid or --random");
    c->random = random;
    cJSON *list = random ? range_of(eq + 1) : NULL;
    if (list == NULL && (eq[1] != '[' || json_parse(&list, eq + 1, strlen(eq + 1), &json_limits_request, NULL) != OK)) {
        char *copy = xstrdup(eq + 1);
        list = cJSON_CreateArray();
        for (char *save = NULL, *p = strtok_r(copy, ",", &save); p; p = strtok_r(NULL, ",", &save)) (void)cJSON_AddItemToArray(list, cli_field_value(f, p));
        free(copy);
    }
    if (c->axes == NULL) c->axes = cJSON_CreateObject();
    cJSON_DeleteItemFromObjectCaseSensitive(c->axes, name);
    (void)cJSON_AddItemToObject(c->axes, name, list);
    return CLI_OK;
}

static int take_args(struct cli *c, int argc, char **argv)
{
    for (int i = 0; i < argc; i++) {
        const char *a = argv[i];
        if (strcmp(a, "--") == 0) {
            c->rest = argv + i + 1;
            c->n_rest = argc - i - 1;
            break;
        }
        if (a[0] != '-' || a[1] == '\0') { c->args[c->n_args++] = argv[i]; continue; }
        const char *eq = strchr(a, '=');
        const struct flag *f = find_flag(c->verb, a, eq ? (size_t)(eq - a) : strlen(a));
        if (f && f->value == NULL && eq == NULL) { *(bool *)((char *)c + f->at) = true; continue; }
        if (f && f->value) {
            const char *value = eq ? eq + 1 : i + 1 < argc ? argv[++i] : NULL;
            if (value == NULL) return cli_complain(c, CLI_USAGE, "%s needs a value: %s %s", a, f->name, f->value);
            bool random = strcmp(f->name, "--random") == 0;
            if ((random || strcmp(f->name, "--grid") == 0) && take_axis(c, value, random) != CLI_OK) return CLI_USAGE;
            *(const char **)((char *)c + f->at) = value;
            continue;
        }
        int used = c->verb->takes & TAKES_SPEC ? take_field(c, argc, argv, i) : 0;
        if (used < 0) return CLI_USAGE;
        if (used == 0) return cli_complain(c, CLI_USAGE, "unknown flag %s; see `ringmaster help %s`", a, c->verb->name);
        i += used - 1;
    }
    if (c->help) return CLI_OK;
    if (c->n_args < c->verb->min_args) return cli_complain(c, CLI_USAGE, "expected %s", c->verb->args);
    if (c->n_args > c->verb->max_args) return cli_complain(c, CLI_USAGE, "unexpected argument %s", c->args[c->verb->max_args]);
    return CLI_OK;
}

int cli_main(int argc, char **argv)
{
    struct cli c = { 0 };
    if (argc < 2) {
        print_help(stderr);
        return CLI_USAGE;
    }
    const char *name = argv[1];
    if (strcmp(name, "--help") == 0 || strcmp(name, "-h") == 0) name = "help";
    if (strcmp(name, "--version") == 0) name = "version";
    c.verb = find_verb(name);
    if (c.verb == NULL) {
        (void)cli_complain(&c, 0, "no verb is called %s", name);
        print_help(stderr);
        return CLI_USAGE;
    }
    c.args = xcalloc((unsigned long)argc + 1, sizeof *c.args);
    int rc = CLI_OK;
    if (c.verb->takes & TAKES_ANY) {
        c.rest = argv + 2;
        c.n_rest = argc - 2;
        c.help = c.n_rest > 0 && (strcmp(c.rest[0], "--help") == 0 || strcmp(c.rest[0], "-h") == 0);
    } else rc = take_args(&c, argc - 2, argv + 2);
    if (rc == CLI_OK && c.help) print_verb_help(c.verb);
    else if (rc == CLI_OK) rc = c.verb->run(&c);
    cJSON_Delete(c.fields);
    cJSON_Delete(c.axes);
    free(c.args);
    if (fflush(stdout) != 0 && rc == CLI_OK) rc = CLI_FAILED;
    return rc;
}
