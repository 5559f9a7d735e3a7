#include "daemon/slurm.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "api/slurm.h"

enum { LINE_MAX_BYTES = 1024, WARN_S = 60 };

/* Every state of squeue(1) and sacct(1), base states and flags; what only passes is not an end (COMPLETING, REQUEUED, SUSPENDED). */
static const struct slurm_state states[] = {
    { "PENDING", SLURM_PENDING, NULL, false },          { "CONFIGURING", SLURM_PENDING, NULL, false },
    { "REQUEUED", SLURM_PENDING, NULL, false },         { "REQUEUE_HOLD", SLURM_PENDING, NULL, false },
    { "REQUEUE_FED", SLURM_PENDING, NULL, false },      { "SPECIAL_EXIT", SLURM_PENDING, NULL, false },
    { "RESV_DEL_HOLD", SLURM_PENDING, NULL, false },    { "RUNNING", SLURM_ALIVE, NULL, false },
    { "COMPLETING", SLURM_ALIVE, NULL, false },         { "SUSPENDED", SLURM_ALIVE, NULL, false },
    { "STOPPED", SLURM_ALIVE, NULL, false },            { "SIGNALING", SLURM_ALIVE, NULL, false },
    { "STAGE_OUT", SLURM_ALIVE, NULL, false },          { "RESIZING", SLURM_ALIVE, NULL, false },
    { "COMPLETED", SLURM_ENDED, "lost", false },        { "FAILED", SLURM_ENDED, "lost", false },
    { "LAUNCH_FAILED", SLURM_ENDED, "lost", false },    { "RECONFIG_FAIL", SLURM_ENDED, "lost", false },
    { "REVOKED", SLURM_ENDED, "lost", false },          { "CANCELLED", SLURM_ENDED, "cancelled_outside", true },
    { "TIMEOUT", SLURM_ENDED, "slurm_time_limit", true }, { "DEADLINE", SLURM_ENDED, "slurm_time_limit", true },
    { "PREEMPTED", SLURM_ENDED, "preempted", true },    { "NODE_FAIL", SLURM_ENDED, "node_failed", true },
    { "BOOT_FAIL", SLURM_ENDED, "node_failed", true },  { "OUT_OF_MEMORY", SLURM_ENDED, "oom_host", true },
};

const struct slurm_state *slurm_state_find(const char *name, size_t n)
{
    for (size_t i = 0; i < sizeof states / sizeof states[0]; i++)
        if (strlen(states[i].name) == n && memcmp(states[i].name, name, n) == 0) return &states[i];
    return NULL;
}

static const struct slurm_state unknown = { "unknown", SLURM_UNKNOWN, NULL, false };

static bool is_word(const char *s, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if ((s[i] < 'A' || s[i] > 'Z') && s[i] != '_') return false;
    return n > 0;
}

static bool number(const char *s, size_t n, int64_t *out)
{
    if (n == 0 || n > 18) return false;
    *out = 0;
    for (size_t i = 0; i < n; i++) {
        if (s[i] < '0' || s[i] > '9') return false;
        *out = *out * 10 + (s[i] - '0');
    }
    return *out > 0;
}

/* Splits [s, s+n) at '|' into exactly want fields; the last takes the rest. */
static bool split(const char *s, size_t n, const char **at, size_t *len, int want)
{
    for (int i = 0; i < want; i++) {
        const char *bar = i + 1 < want ? memchr(s, '|', n) : s + n;
        if (bar == NULL) return false;
        at[i] = s;
        len[i] = (size_t)(bar - s);
        if (i + 1 < want) { n -= len[i] + 1; s = bar + 1; }
    }
    return true;
}

/* Printable ASCII alone, cut to fit: it is shown to people. */
static void copy_text(char *out, size_t max, const char *s, size_t n)
{
    size_t k = 0;
    for (size_t i = 0; i < n && k + 1 < max; i++) out[k++] = s[i] >= 0x20 && s[i] < 0x7f ? s[i] : '?';
    out[k] = '\0';
}

/* Takes the next line, without its end, off [*out, *out+*n); false when there is none. */
static bool next_line(const char **out, size_t *n, const char **line, size_t *len)
{
    if (*n == 0) return false;
    const char *nl = memchr(*out, '\n', *n);
    *line = *out;
    *len = nl ? (size_t)(nl - *out) : *n;
    *out += *len + (nl != NULL);
    *n -= *len + (nl != NULL);
    return true;
}

int slurm_parse_queue(const char *out, size_t n, void (*line)(void *arg, const struct slurm_line *l), void *arg)
{
    const char *text, *at[4];
    size_t len, part[4];
    int bad = 0;
    while (next_line(&out, &n, &text, &len)) {
        struct slurm_line l = { 0 };
        if (len == 0) continue;
        if (len > LINE_MAX_BYTES || !split(text, len, at, part, 4) || !number(at[0], part[0], &l.id) || !is_word(at[1], part[1]) || part[2] >= sizeof l.comment) { bad++; continue; }
        copy_text(l.comment, sizeof l.comment, at[2], part[2]);
        l.state = slurm_state_find(at[1], part[1]);
        int says = l.state ? 3 : 1;
        if (l.state == NULL) l.state = &unknown;
        copy_text(l.why, sizeof l.why, at[says], part[says]);
        line(arg, &l);
    }
    return bad;
}

const struct slurm_state *slurm_parse_acct(const char *out, size_t n, int64_t id, const char *name, char exit_code[16])
{
    const char *text, *at[4];
    size_t len, part[4];
    int64_t found;
    while (next_line(&out, &n, &text, &len)) {
        if (len <= LINE_MAX_BYTES && split(text, len, at, part, 4) && number(at[0], part[0], &found) && found == id && part[1] == strlen(name) && memcmp(at[1], name, part[1]) == 0) {
            const char *space = memchr(at[2], ' ', part[2]);        /* "CANCELLED by 1000" */
            copy_text(exit_code, 16, at[3], part[3]);
            return slurm_state_find(at[2], space ? (size_t)(space - at[2]) : part[2]);
        }
    }
    return NULL;
}

bool slurm_parse_id(const char *out, size_t n, int64_t *id)
{
    while (n > 0 && out[n - 1] == '\n') n--;
    const char *semicolon = memchr(out, ';', n);
    return number(out, semicolon ? (size_t)(semicolon - out) : n, id) && memchr(out, '\n', n) == NULL;
}

bool slurm_unreachable(const char *complaint)
{
    static const char *const signs[] = { "Unable to contact slurm controller", "Socket timed out", "Connection refused", "Transport endpoint", "Resource temporarily unavailable", "Zero Bytes were transmitted",
                                         "in standby mode", "Connection timed out", "Unable to establish", "Slurm controller not responding", "System/application error", "Name or service not known" };
    for (size_t i = 0; i < sizeof signs / sizeof signs[0]; i++)
        if (strstr(complaint, signs[i])) return true;
    return false;
}

/* 'it'\''s': the only quoting in which a shell reads nothing. */
static char *quoted(const char *s)
{
    char *out = xmalloc(strlen(s) * 4 + 3), *p = out;
    *p++ = '\'';
    for (; *s; s++) {
        if (*s == '\'') { memcpy(p, "'\\''", 4); p += 4; }
        else *p++ = *s;
    }
    memcpy(p, "'", 2);
    return out;
}

/* The claim is what makes a second run of one attempt impossible: a requeue that an administrator asked for, or a second submission because the
 * first one's answer was lost, finds the folder there and leaves. Signals go to the keeper through files or from Slurm itself, never through srun:
 * a srun that is told to end lets the ranks be killed without saving. */
char *slurm_script(const struct slurm_ask *q)
{
    char *dir = quoted(q->dir), *keeper = quoted(q->keeper), *worker = q->worker ? quoted(q->worker) : NULL, *job = quoted(q->job), *nonce = quoted(q->nonce);
    char *text = xasprintf(
        "#!/bin/bash\n"
        "# One attempt of a Ringmaster job: claims it, starts its keeper once, and waits. How it ended is in exit.json.\n"
        "dir=%s\n"
        "[ \"${SLURM_RESTART_COUNT:-0}\" -gt 0 ] && touch \"$dir/requeued\"\n"
        "if [ -e \"$dir/requeued\" ] || ! mkdir \"$dir/claim\"; then\n"
        "    echo \"this attempt was started before, or its folder is not on this node: $dir\" >&2\n"
        "    exit 4\n"
        "fi\n"
        "export RINGMASTER_ATTEMPT=%s\n"
        "%s%s%s"
        "trap 'touch \"$dir/warned\"' USR1\n"
        "trap : TERM\n"
        "srun --nodes=1 --ntasks=1 --cpus-per-task=\"${SLURM_CPUS_PER_TASK:-1}\" --mpi=none --kill-on-bad-exit=1 \\\n"
        "    %s --dir \"$dir\" --spec \"$dir/spec.json\" --job %s --attempt %lld --nonce \"$RINGMASTER_ATTEMPT\" --mailbox &\n"
        "pid=$!\n"
        "code=0\n"
        "while kill -0 $pid 2>/dev/null; do wait $pid; code=$?; done\n"
        "exit $code\n",
        dir, nonce, worker ? "export RM_WORKER=" : "", worker ? worker : "", worker ? "\n" : "", keeper, job, (long long)q->attempt);
    free(dir);
    free(keeper);
    free(worker);
    free(job);
    free(nonce);
    return text;
}

char **slurm_args(const struct slurm_ask *q, const struct spec *s, const char *sbatch, const char *script)
{
    int64_t gpus = slurm_gpus(s), warn_s = WARN_S + s->grace_ms / 1000, cpus = s->nproc_per_node * (s->threads_per_rank > 0 ? s->threads_per_rank : 1);
    char **v = xcalloc((unsigned long)s->slurm_options.n + 24, sizeof *v);
    int n = 0;
    v[n++] = xstrdup(sbatch);
    v[n++] = xstrdup("--parsable");
    v[n++] = xasprintf("--job-name=%s", q->name);
    v[n++] = xasprintf("--comment=%s", q->comment);
    v[n++] = xasprintf("--chdir=%s", q->dir);
    v[n++] = xstrdup("--output=slurm.out");             /* beneath --chdir: a pattern that holds no path of ours */
    v[n++] = xstrdup("--open-mode=append");
    v[n++] = xstrdup("--no-requeue");
    v[n++] = xasprintf("--nodes=%lld", (long long)s->nodes);
    v[n++] = xstrdup("--ntasks=1");
    v[n++] = xasprintf("--signal=B:USR1@%lld", (long long)warn_s);
    if (s->time_limit_s > 0 && !slurm_option_given(s, "time"))       /* the keeper keeps the limit itself; Slurm's is the one behind it */
        v[n++] = xasprintf("--time=%lld", (long long)((s->time_limit_s + s->grace_ms / 1000 + warn_s + 59) / 60 + 2));
    if (s->slurm_partition) v[n++] = xasprintf("--partition=%s", s->slurm_partition);
    if (s->slurm_account) v[n++] = xasprintf("--account=%s", s->slurm_account);
    if (gpus > 0) v[n++] = xasprintf("--gpus-per-node=%lld", (long long)gpus);
    if (!slurm_option_given(s, "cpus-per-task") && !slurm_option_given(s, "cpus-per-gpu") && !slurm_option_given(s, "exclusive")) v[n++] = xasprintf("--cpus-per-task=%lld", (long long)cpus);
    for (int i = 0; i < s->slurm_options.n; i++) v[n++] = xstrdup(s->slurm_options.v[i]);
    v[n++] = xstrdup(script);
    return v;
}

void slurm_args_free(char **argv)
{
    for (char **p = argv; *p; p++) free(*p);
    free(argv);
}
