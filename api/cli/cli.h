/* cli.h - the command line client's parts: one table of verbs (verbs.c), one parsed command line, small helpers for people's eyes.
 *
 * Results go to stdout, progress and complaints to stderr; with --json stdout holds JSON and nothing else. */
#ifndef RM_CLI_H
#define RM_CLI_H

#include <stdio.h>

#include "api/clock.h"
#include "api/json.h"
#include "api/printable.h"
#include "api/spec.h"

/* Exit codes, for scripts and CI; `ringmaster help exit-codes` prints them. */
enum {
    CLI_OK = 0,             /* done; for run and submit --wait: the job succeeded */
    CLI_FAILED = 1,         /* the job failed, or what was asked for could not be done */
    CLI_USAGE = 2,          /* bad command line or spec; nothing was started */
    CLI_STOPPED = 3,        /* the job was cancelled or paused */
    CLI_UNREACHABLE = 4,    /* no daemon answers at the address */
    CLI_REFUSED = 5         /* the daemon refuses: wrong token, unknown job, wrong state */
};

struct cli {
    const struct verb *verb;
    char **args; int n_args;            /* what is no flag, in order */
    char **rest; int n_rest;            /* after "--" */
    cJSON *axes;                        /* --grid: {field: [values]}; --random: {field: [values] or {min, max, log}} */
    bool random;
    cJSON *fields;                      /* spec fields given as --field value or --set field=value */
    bool json, wait, follow, help, dry_run, once, force, new_run;
    const char *url, *token, *home, *state, *name, *rank, *tail, *grep, *since, *limit, *interval, *grid, *random_axis, *key, *output, *count, *sample_seed, *cluster;
};

enum {      /* which flags a verb takes, besides --json and --help */
    TAKES_SPEC = 1, TAKES_URL = 2, TAKES_WAIT = 4, TAKES_FOLLOW = 8, TAKES_FILTER = 16, TAKES_LOGS = 32, TAKES_INTERVAL = 64, TAKES_NAMES = 128, TAKES_RANK = 1024, TAKES_GRID = 2048,
    TAKES_CLUSTER = 512,
    TAKES_ANY = 256 /* everything after the verb is somebody else's: passed on */
};

struct verb {
    const char *name, *args, *summary;
    int (*run)(struct cli *c);
    unsigned takes;
    int min_args, max_args;
    const char *help;                   /* more lines for `ringmaster help VERB` */
};
extern const struct verb verbs[];
extern const int n_verbs;

int cli_main(int argc, char **argv);
/* "ringmaster VERB: text" on stderr, one line, printable; returns code. */
int cli_complain(const struct cli *c, int code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
/* Problems on stderr, or {"problems":[…]} on stdout with --json; returns CLI_USAGE. */
int cli_print_problems(const struct cli *c, const char *where, const cJSON *problems);

/* The spec of the command line: the file args[0] if any (relative paths in it are relative to its folder), then the fields given as
 * flags (relative to the current folder). *json is the caller's; not yet validated. Returns CLI_OK or an exit code, complained. */
int cli_spec_json(struct cli *c, cJSON **json);
/* A flag's text as the JSON value the field wants. */
cJSON *cli_field_value(const struct field *f, const char *text);
/* Makes every relative path in a spec absolute. */
void cli_absolute_paths(cJSON *spec, const char *folder);

/* printable() for every string and key of j, in place. */
void cli_printable(cJSON *j);

/* For people: "1.2 GiB", "12,345", "1:02:03"; each returns buf. */
enum { HUMAN = 32 };
char *human_bytes(char buf[HUMAN], double bytes);
char *human_count(char buf[HUMAN], double n);
char *human_time(char buf[HUMAN], double seconds);

/* A line that is rewritten in place on a terminal, and plain lines (at most one a second, plus the forced ones) elsewhere. */
struct progress { bool tty, shown; double last_s; };
void progress_init(struct progress *p);
void progress_show(struct progress *p, bool force, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
void progress_note(struct progress *p, const char *fmt, ...) __attribute__((format(printf, 2, 3)));     /* a line that stays */
void progress_clear(struct progress *p);        /* takes the rewritable line away */
void progress_end(struct progress *p);
/* Columns of the terminal on stderr; 80 if unknown. */
int terminal_columns(void);

/* One training step as progress shows it; NaN: unknown. */
struct step_line { long long step, steps; double loss, tokens_per_s, comm_share, eta_s; };
void progress_step(struct progress *p, const struct step_line *s);

/* The end of a job as the client tells it; NULL for what is not known, seconds < 0 likewise. All borrowed. */
struct ending { const char *id, *state, *reason, *detail, *checkpoint, *job_dir; const cJSON *summary; double seconds; };
/* Prints it (one JSON object with --json) and returns the exit code for the state. */
int cli_report(struct cli *c, const struct ending *e);

/* verbs, one file per group: run.c, local.c (worker), jobs.c and resources.c (daemon), monitor.c, import.c */
int verb_run(struct cli *c);
int verb_local(struct cli *c);
int verb_plan(struct cli *c);
int verb_schema(struct cli *c);
int verb_import(struct cli *c);
int verb_submit(struct cli *c);
int verb_list(struct cli *c);
int verb_show(struct cli *c);
int verb_logs(struct cli *c);
int verb_watch(struct cli *c);
int verb_action(struct cli *c);
int verb_clone(struct cli *c);
int verb_view(struct cli *c);
int verb_artifacts(struct cli *c);
int verb_metrics(struct cli *c);
int verb_compare(struct cli *c);
int verb_delete(struct cli *c);
int verb_secrets(struct cli *c);
int verb_backup(struct cli *c);
int verb_restore(struct cli *c);
int verb_top(struct cli *c);
int verb_monitor(struct cli *c);
int verb_help(struct cli *c);
int verb_completion(struct cli *c);
int verb_version(struct cli *c);

/* Runs `ringmaster-worker --plan` on a validated spec. *plan: its answer (the caller's), with "problems" where it refuses; brief: without the
 * list of buffers. */
int cli_plan(struct cli *c, const cJSON *spec, bool brief, cJSON **plan);

#endif
