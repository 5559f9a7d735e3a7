/* main.c - ringmaster-worker: one rank of one job; and the verbs that answer a question and leave.
 *
 * Exit codes: 0 done; 2 bad input, refused; 3 stopped on request, checkpoint saved; 70 and up: failed on the way (71 out of memory,
 * 72 a peer was lost, 73 disk full). */
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "api/message.h"
#include "kernels/kernels.h"
#include "worker/nvml.h"
#include "worker/train/plan.h"
#include "worker/train/run.h"
#include "worker/verbs.h"

static int exit_code(int status)
{
    switch (status) {
    case OK: return 0;
    case E_INVALID: case E_UNSUPPORTED: case E_NOTFOUND: case E_LIMIT: case E_CONFLICT: return 2;
    case E_STOPPED: return 3;
    case E_NOMEM: return 71;
    case E_PEER: case E_TIMEOUT: return 72;
    case E_DISK_FULL: return 73;
    default: return 70;
    }
}

static const struct verb verbs[] = {
    { "--plan", "SPEC.json [--brief]", "checks a spec and prints the memory plan as JSON", verb_plan },
    { "--cluster", "CLUSTER.json SPEC.json [--json]", "what the job would take on 8 to 4,096 GPUs of another place", verb_cluster },
    { "--devices", "[--json]", "prints what ranks can run on, as JSON", verb_devices },
    { "--merge", "ADAPTER OUTPUT [--base MODEL]", "folds an adapter into its base model", verb_merge },
    { "--sample", "CHECKPOINT --prompt TEXT [--max_new_tokens N] [--temperature T] [--seed N]", "continues a text", verb_sample },
    { "--tokenize", "--model DIR [--no-special] [--decode]", "JSONL of texts or conversations to token ids, or back", verb_tokenize },
    { "--render", "--template FILE | --model DIR", "conversations through a chat template, line by line", verb_render },
    { "--check", "PATH...", "one line for each path: what it is, or what is wrong and where", verb_check },
    { "--dataset", "SPEC.json [--json] [--rows N]", "the data set as it will be trained", verb_dataset },
};
enum { VERBS = (int)(sizeof verbs / sizeof verbs[0]) };

static int usage(FILE *to)
{
    (void)fputs("usage: ringmaster-worker --rank R --world P --spec SPEC.json [--job-dir DIR] [--resume CHECKPOINT]\n", to);
    for (int i = 0; i < VERBS; i++) (void)fprintf(to, "       ringmaster-worker %s %s\n           %s\n", verbs[i].name, verbs[i].args, verbs[i].help);
    return to == stdout ? 0 : 2;
}

int verb_plan(int argc, char **argv)
{
    if (argc < 2 || argc > 3 || (argc == 3 && strcmp(argv[2], "--brief") != 0)) return usage(stderr);
    return plan_command(argv[1], argc == 3);
}

static void add_device(cJSON *list, const struct kernel_ops *ops, int index)
{
    struct device_info d;
    if (ops != kernel_ops_cpu()) (void)ops->device_open(index, NULL);      /* only of an open device is it known what is free */
    if (ops->device_info(index, &d, NULL) != OK) return;
    cJSON *o = cJSON_CreateObject();
    json_add_str(o, "kind", ops->name);
    json_add_int(o, "index", index);
    json_add_str(o, "name", d.name);
    json_add_str(o, "uuid", d.uuid);
    json_add_int(o, "total_bytes", d.total_bytes);
    json_add_int(o, "free_bytes", d.free_bytes);
    if (ops == kernel_ops_cpu()) json_add_int(o, "cores", sysconf(_SC_NPROCESSORS_ONLN));
    else {
        char cc[24];
        (void)snprintf(cc, sizeof cc, "%d.%d", d.cc_major, d.cc_minor);
        json_add_str(o, "compute_capability", cc);
        struct gpu_reading now;
        if (nvml_open(NULL) == OK && nvml_read(d.uuid, &now)) nvml_add(o, "", &now);
    }
    (void)cJSON_AddItemToArray(list, o);
}

int verb_devices(int argc, char **argv)
{
    if (argc > 2 || (argc == 2 && strcmp(argv[1], "--json") != 0)) {
        (void)fputs("usage: ringmaster devices [--json]\nJSON either way.\n", stderr);
        return 2;
    }
    struct error err;
    cJSON *o = cJSON_CreateObject(), *list = cJSON_CreateArray();
    const struct kernel_ops *cuda = kernel_ops_cuda(&err);
    add_device(list, kernel_ops_cpu(), 0);
    if (cuda) {
        struct device_info d;
        for (int i = 0; i < 1024 && cuda->device_info(i, &d, NULL) == OK; i++) add_device(list, cuda, i);
    }
    (void)cJSON_AddItemToObject(o, "devices", list);
    json_add_str(o, "cuda", cuda ? "available" : err.text);
    json_print(o);
    return 0;
}

static void on_term(int sig)
{
    (void)sig;
    run_request_stop();
}

static int rank_main(int argc, char **argv)
{
    const char *rank = NULL, *world = NULL, *path = NULL, *dir = NULL, *resume = NULL;
    const struct { const char *name; const char **value; } options[] = {
        { "--rank", &rank }, { "--world", &world }, { "--spec", &path }, { "--job-dir", &dir }, { "--resume", &resume },
    };
    for (int i = 1; i < argc; i += 2) {
        size_t k = 0;
        while (k < sizeof options / sizeof options[0] && strcmp(options[k].name, argv[i]) != 0) k++;
        if (k == sizeof options / sizeof options[0] || i + 1 == argc) return usage(stderr);
        *options[k].value = argv[i + 1];
    }
    if (path == NULL) return usage(stderr);
    char *end_r = NULL, *end_w = NULL;
    long r = rank ? strtol(rank, &end_r, 10) : 0, w = world ? strtol(world, &end_w, 10) : 1;
    if ((end_r && *end_r) || (end_w && *end_w) || w < 1 || w > 1 << 20 || r < 0 || r >= w) {
        (void)fprintf(stderr, "--rank %s --world %s: expected whole numbers, 0 <= rank < world\n", rank ? rank : "0", world ? world : "1");
        return 2;
    }

    struct spec spec;
    struct problems p = { 0 };
    if (spec_read(&spec, path, &p) != OK) {
        for (int i = 0; i < p.n; i++) (void)fprintf(stderr, "%s: %s: %s\n", path, p.v[i].pointer, p.v[i].message);
        problems_release(&p);
        return 2;
    }
    struct sigaction term = { .sa_handler = on_term };      /* no SA_RESTART: a wait notices */
    (void)sigaction(SIGTERM, &term, NULL);
    (void)sigaction(SIGINT, &term, NULL);
    (void)signal(SIGPIPE, SIG_IGN);
    (void)signal(SIGXFSZ, SIG_IGN);         /* a file size limit is an error like a full disk, not a death */

    struct error err = { 0 };
    int link_fd = fcntl(LINK_FD, F_GETFD) >= 0 ? LINK_FD : -1;
    int rc = run_rank(&spec, (int)r, (int)w, link_fd, resume, &err);
    if (rc != OK) (void)fprintf(stderr, "ringmaster-worker: rank %ld: %s\n", r, err.text);
    spec_release(&spec);
    return exit_code(rc);
}

/* libgomp's threads spin some milliseconds at every barrier, by a count it reads before main(). Where cores are shared (ranks, other jobs) that
 * costs more than it gains: measured 3x on a busy machine. So the count is made small and the program starts again. */
static void spin_less(char **argv)
{
    if (getenv("OMP_WAIT_POLICY") || getenv("GOMP_SPINCOUNT")) return;
    if (setenv("GOMP_SPINCOUNT", "20000", 1) == 0) (void)execv("/proc/self/exe", argv);
}

int main(int argc, char **argv)
{
    open_standard_fds();
    if (argc > 1 && strcmp(argv[1], "--version") == 0) return puts("ringmaster-worker " RM_VERSION) < 0;
    if (argc > 1 && (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)) return usage(stdout);
    for (int i = 0; i < VERBS && argc > 1; i++)
        if (strcmp(argv[1], verbs[i].name) == 0) return verbs[i].run(argc - 1, argv + 1);
    spin_less(argv);
    return rank_main(argc, argv);
}
