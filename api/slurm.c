#include "api/slurm.h"

#include <stdio.h>
#include <string.h>

enum { OPTIONS_MAX = 32 };

/* sbatch's options that only choose where and when the job runs. What is not here could change what runs, as whom, where its files go, or
 * whether it starts a second time: --wrap, --uid, --output, --export, --chdir, --requeue, --array, --dependency, --nodes, --ntasks … */
static const char *const allowed[] = {
    "qos", "constraint", "prefer", "mem", "mem-per-cpu", "mem-per-gpu", "cpus-per-task", "cpus-per-gpu", "reservation", "nodelist", "exclude", "gres", "licenses", "nice", "exclusive",
    "hint", "begin", "deadline", "tmp", "wckey", "core-spec", "thread-spec", "threads-per-core", "cores-per-socket", "sockets-per-node", "mincpus", "switches",
    "mail-type", "mail-user", "time", "time-min", "priority", "gpu-freq", "cpu-freq", "bb", "network", "power", "contiguous",
};

static const char word_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,:=+@%/&|*()[]-";
static const char name_chars[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.,-";

static bool option_ok(const char *v, struct problems *p, const char *ptr)
{
    size_t n = strcspn(v, "=");
    bool known = false;
    if (strncmp(v, "--", 2) != 0 || n < 3) {
        problems_add(p, ptr, "out_of_range", "expected --name=value, got \"%.60s\"", v);
        return false;
    }
    if (strspn(v, word_chars) != strlen(v)) {
        problems_add(p, ptr, "out_of_range", "expected letters, digits and _.,:=+@%%/&|*()[]- only, without spaces or quotes");
        return false;
    }
    for (size_t i = 0; i < sizeof allowed / sizeof allowed[0] && !known; i++) known = strlen(allowed[i]) == n - 2 && strncmp(v + 2, allowed[i], n - 2) == 0;
    bool nodes = strncmp(v, "--nodelist=", 11) == 0 || strncmp(v, "--exclude=", 10) == 0;
    if (nodes && strchr(v, '/')) {      /* sbatch would open the file, with the daemon's rights, and quote it where it is no list */
        problems_add(p, ptr, "out_of_range", "expected names of nodes, not a file that lists them, got \"%.60s\"", v);
        return false;
    }
    if (!known) problems_add(p, ptr, "unsupported", "%.*s is not among the options a job may give sbatch: they choose where and when it runs, never what runs", (int)(n < 60 ? n : 60), v);
    return known;
}

static void check_name(const char *v, const char *ptr, struct problems *p)
{
    if (v && (*v == '\0' || *v == '-' || strspn(v, name_chars) != strlen(v)))
        problems_add(p, ptr, "out_of_range", "expected a name of letters, digits and _.,- that does not begin with -, got \"%.60s\"", v);
}

int64_t slurm_gpus(const struct spec *s)
{
    if (s->slurm_gpus_per_node > 0) return s->slurm_gpus_per_node;
    return strcmp(s->device, "cuda") == 0 ? s->nproc_per_node : 0;
}

bool slurm_option_given(const struct spec *s, const char *name)
{
    size_t n = strlen(name);
    for (int i = 0; i < s->slurm_options.n; i++) {
        const char *v = s->slurm_options.v[i] + 2;
        if (strncmp(v, name, n) == 0 && (v[n] == '=' || v[n] == '\0')) return true;
    }
    return false;
}

void slurm_check(const struct spec *s, struct problems *p)
{
    if (s->nodes > 1)       /* the keeper's pipes and shm end at the machine, and NCCL between machines was never run */
        problems_add(p, "/nodes", "unsupported", "training over several machines is not built yet; expected 1, got %lld", (long long)s->nodes);
    if (strcmp(s->launcher, "slurm") != 0) {
        const char *given = s->slurm_partition ? "/slurm_partition" : s->slurm_account ? "/slurm_account" : s->slurm_gpus_per_node > 0 ? "/slurm_gpus_per_node" : s->slurm_options.n > 0 ? "/slurm_options" : NULL;
        if (given) problems_add(p, given, "conflict", "expected launcher slurm with it, got %s", s->launcher);
        return;
    }
    check_name(s->slurm_partition, "/slurm_partition", p);
    check_name(s->slurm_account, "/slurm_account", p);
    if (s->slurm_options.n > OPTIONS_MAX) problems_add(p, "/slurm_options", "out_of_range", "expected at most %d options, got %d", OPTIONS_MAX, s->slurm_options.n);
    for (int i = 0; i < s->slurm_options.n && i < OPTIONS_MAX; i++) {
        char ptr[40];
        (void)snprintf(ptr, sizeof ptr, "/slurm_options/%d", i);
        (void)option_ok(s->slurm_options.v[i], p, ptr);
    }
    if (s->slurm_gpus_per_node > 0 && strcmp(s->device, "cpu") == 0)
        problems_add(p, "/slurm_gpus_per_node", "conflict", "expected 0 with device cpu, got %lld", (long long)s->slurm_gpus_per_node);
    if (strcmp(s->device, "cuda") == 0 && slurm_gpus(s) < s->nproc_per_node)
        problems_add(p, "/slurm_gpus_per_node", "conflict", "expected at least nproc_per_node %lld, one for each rank, got %lld", (long long)s->nproc_per_node, (long long)slurm_gpus(s));
}
