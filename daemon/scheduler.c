#include "daemon/scheduler.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "daemon/attempt.h"
#include "daemon/daemon.h"
#include "daemon/launcher.h"
#include "daemon/planner.h"

void slots_init(struct daemon *d)
{
    cJSON *answer = planner_devices(d);
    const cJSON *dev;
    cJSON *list = json_get(answer, "devices");
    int gpus = 0;
    cJSON_ArrayForEach(dev, list) gpus++;
    d->slots = xcalloc((unsigned long)(d->set.slots + gpus), sizeof *d->slots);
    cJSON_ArrayForEach(dev, list) {
        struct slot *s = &d->slots[d->n_slots];
        const char *id = json_str(dev, "uuid"), *name = json_str(dev, "name"), *kind = json_str(dev, "kind");
        if (id == NULL) id = json_str(dev, "id");
        if (id == NULL || (kind && strcmp(kind, "cpu") == 0) || strncmp(id, "cpu", 3) == 0 || strchr(id, ',')) continue;
        (void)snprintf(s->id, sizeof s->id, "%s", id);
        (void)snprintf(s->name, sizeof s->name, "%s", name ? name : "GPU");
        (void)json_int(dev, "total_bytes", &s->memory_bytes);
        s->gpu = true;
        d->n_slots++;
    }
    for (int64_t i = 0; i < d->set.slots; i++) {
        struct slot *s = &d->slots[d->n_slots++];
        (void)snprintf(s->id, sizeof s->id, "cpu:%lld", (long long)i);
        (void)snprintf(s->name, sizeof s->name, "CPU rank");
    }
    cJSON_Delete(answer);
}

int slots_of_kind(const struct daemon *d, bool gpu)
{
    int n = 0;
    for (int i = 0; i < d->n_slots; i++) n += d->slots[i].gpu == gpu;
    return n;
}

static int by_rank(const void *a, const void *b)
{
    const struct job *x = *(struct job *const *)a, *y = *(struct job *const *)b;
    if (x->row.priority != y->row.priority) return x->row.priority > y->row.priority ? -1 : 1;
    return x->row.id < y->row.id ? -1 : x->row.id > y->row.id;
}

static int queued(struct daemon *d, struct job ***out)
{
    int n = 0;
    for (struct job *j = d->jobs; j; j = j->next) n += j->row.state == JOB_QUEUED;
    *out = xcalloc((unsigned long)n, sizeof **out);
    n = 0;
    for (struct job *j = d->jobs; j; j = j->next) if (j->row.state == JOB_QUEUED) (*out)[n++] = j;
    qsort(*out, (size_t)n, sizeof **out, by_rank);
    return n;
}

static void wait_for(struct job *j, const char *code, const char *fmt, ...) __attribute__((format(printf, 3, 4)));
static void wait_for(struct job *j, const char *code, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    j->wait_code = code;
    (void)vsnprintf(j->wait_text, sizeof j->wait_text, fmt, ap);
    va_end(ap);
}

static bool take_state(void *arg, struct store_row *r)
{
    (void)snprintf(arg, 16, "%s", row_text(r, 0));
    return false;
}

/* False while j waits for another job; *failed when that one can no longer succeed. */
static bool dependencies_met(struct daemon *d, struct job *j, const char **failed)
{
    *failed = NULL;
    for (int i = 0; i < j->spec.after.n; i++) {
        int64_t id;
        char state[16] = "";
        if (job_id_parse(j->spec.after.v[i], &id)) (void)store_each(d->store, take_state, state, NULL, "SELECT state FROM jobs WHERE id=?", "i", id);
        if (strcmp(state, "succeeded") == 0) continue;
        if (strcmp(state, "failed") == 0 || strcmp(state, "cancelled") == 0 || state[0] == '\0') *failed = j->spec.after.v[i];
        wait_for(j, "dependency", "after %.64s, which is %s", j->spec.after.v[i], state[0] ? state : "gone");
        return false;
    }
    return true;
}

static int take_slots(struct daemon *d, const struct job *j)
{
    int64_t need = j->spec.nproc_per_node;
    for (int i = 0; i < d->n_slots && need > 0; i++)
        if (d->slots[i].gpu == j->gpu && d->slots[i].job == 0) { d->slots[i].job = j->row.id; need--; }
    return OK;
}

static void give_slots(struct daemon *d, const struct job *j)
{
    for (int i = 0; i < d->n_slots; i++) if (d->slots[i].job == j->row.id) d->slots[i].job = 0;
}

/* What cannot start now for a reason that stays would only fail again: say so instead of spinning. */
static void start(struct daemon *d, struct job *j)
{
    struct error err;
    if (attempt_start(d, j, &err) == OK) return;
    give_slots(d, j);
    wait_for(j, "store", "cannot start now: %.150s", err.text);
    log_line("warning", "j%lld cannot start now: %s", (long long)j->row.id, err.text);
    if (err.code == E_TIMEOUT || err.code == E_DISK_FULL) return;
    struct job_row r = j->row;
    r.state = JOB_STOPPING;
    if (job_commit(d, j, &r, NULL, NULL, NULL) == OK) (void)job_move(d, j, JOB_FAILED, "start_failed", err.text, NULL);
}

static void start_elsewhere(struct daemon *d, struct job *j)
{
    int64_t n = 0;
    for (struct job *o = d->jobs; o; o = o->next) n += o->attempt && !launcher_of(&o->spec)->slots;
    if (n >= d->set.slurm_jobs) wait_for(j, "slurm", "%lld jobs are with Slurm already, as slurm_jobs allows", (long long)n);
    else start(d, j);
}

void schedule(struct daemon *d)
{
    struct job **q;
    struct error err;
    int64_t now = wall_ms(), blocked_by[2] = { 0, 0 }, place = 0;
    int n = queued(d, &q);
    for (int i = 0; i < n; i++) {
        struct job *j = q[i];
        const char *failed;
        int free_slots = 0, all = slots_of_kind(d, j->gpu);
        const char *kind = j->gpu ? "GPU" : "CPU rank";
        j->wait_position = ++place;
        for (int k = 0; k < d->n_slots; k++) free_slots += d->slots[k].gpu == j->gpu && d->slots[k].job == 0;
        if (d->draining) { wait_for(j, "draining", "the coordinator is going down; it starts nothing new"); continue; }
        if (!dependencies_met(d, j, &failed)) {
            if (failed) {
                char why[120];
                (void)snprintf(why, sizeof why, "job %.64s did not succeed", failed);
                struct job_row r = j->row;
                r.want = WANT_CANCEL;
                r.state = JOB_STOPPING;
                (void)snprintf(r.reason, sizeof r.reason, "dependency_failed");
                if (job_commit(d, j, &r, NULL, NULL, &err) == OK) (void)job_move(d, j, JOB_CANCELLED, "dependency_failed", why, &err);
            }
            continue;
        }
        if (j->row.not_before_ms > now) {
            wait_for(j, "backoff", "restart %lld in %lld s (after: %s)", (long long)j->row.restarts, (long long)((j->row.not_before_ms - now + 999) / 1000), j->row.reason);
            continue;
        }
        if (!launcher_of(&j->spec)->slots) {        /* its devices are somebody else's to give */
            start_elsewhere(d, j);
            continue;
        }
        if (j->spec.nproc_per_node > all) {
            wait_for(j, "impossible", "needs %lld %ss, this coordinator has %d", (long long)j->spec.nproc_per_node, kind, all);
            continue;
        }
        if (blocked_by[j->gpu]) {
            wait_for(j, "priority", "behind j%lld, which comes first", (long long)blocked_by[j->gpu]);
            continue;
        }
        if (j->spec.nproc_per_node > free_slots) {
            wait_for(j, "devices", "needs %lld %ss, %d of %d are free", (long long)j->spec.nproc_per_node, kind, free_slots, all);
            blocked_by[j->gpu] = j->row.id;
            continue;
        }
        (void)take_slots(d, j);
        start(d, j);
    }
    free(q);
}

static void add_waiting(cJSON *list, const struct job *j, int position, const char *reason, const char *text)
{
    cJSON *o = cJSON_CreateObject();
    char id[24];
    (void)snprintf(id, sizeof id, "j%lld", (long long)j->row.id);
    json_add_str(o, "id", id);
    json_add_str(o, "name", j->row.name);
    json_add_int(o, "position", position);
    json_add_int(o, "priority", j->row.priority);
    json_add_int(o, "ranks", j->spec.nproc_per_node);
    json_add_str(o, "device", j->gpu ? "cuda" : "cpu");
    json_add_str(o, "reason", reason);
    json_add_str(o, "text", text);
    (void)cJSON_AddItemToArray(list, o);
}

cJSON *queue_json(struct daemon *d)
{
    struct job **q;
    cJSON *list = cJSON_CreateArray();
    char text[240];
    int n = queued(d, &q);
    for (int i = 0; i < n; i++) add_waiting(list, q[i], i + 1, q[i]->wait_code ? q[i]->wait_code : "scheduling", q[i]->wait_text);
    free(q);
    for (struct job *j = d->jobs; j; j = j->next)       /* behind ours: what waits in Slurm's queue */
        if (j->attempt && launcher_slurm_waits(j->attempt, text, sizeof text)) add_waiting(list, j, ++n, "slurm", text);
    return list;
}

cJSON *devices_json(struct daemon *d)
{
    cJSON *list = cJSON_CreateArray();
    for (int i = 0; i < d->n_slots; i++) {
        const struct slot *s = &d->slots[i];
        cJSON *o = cJSON_CreateObject();
        char id[24];
        json_add_str(o, "id", s->id);
        json_add_str(o, "name", s->name);
        json_add_str(o, "kind", s->gpu ? "cuda" : "cpu");
        if (s->memory_bytes > 0) json_add_int(o, "memory_bytes", s->memory_bytes);
        (void)snprintf(id, sizeof id, "j%lld", (long long)s->job);
        json_add_str(o, "job", s->job ? id : NULL);
        (void)cJSON_AddItemToArray(list, o);
    }
    return list;
}
