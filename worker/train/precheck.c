/* precheck.c - `--plan`: every check that needs no running rank, each problem with the spec's field; then the memory plan as JSON. */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "worker/data/dataset.h"
#include "worker/data/loader.h"
#include "worker/data/template.h"
#include "worker/data/tokenizer.h"
#include "worker/train/checkpoint.h"
#include "worker/train/claim.h"
#include "worker/train/plan.h"
#include "worker/train/run.h"

enum { TOKENIZE_MAX = 16 << 20 /* bytes of data a plan reads through to count steps; more waits for the run */ };

static bool is_folder(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* A message that begins with the name of a field is about that field; other: where it belongs if it does not. */
static void add_problem(struct problems *p, const char *other, const struct error *err)
{
    size_t n = strcspn(err->text, " :/[");
    char *word = xstrndup(err->text, n), *ptr = err->text[n] != '\0' && spec_field(word) ? xasprintf("/%s", word) : xstrdup(other);
    problems_add(p, ptr, status_name(err->code), "%s", err->text);
    free(word);
    free(ptr);
}

static void check_model(const struct spec *spec, struct model_config *config, bool *have_config, struct problems *p)
{
    struct error err;
    struct tokenizer *t = NULL;
    struct chat_template *tmpl = NULL;
    if (!is_folder(spec->model)) {
        problems_add(p, "/model", "not_found", "%s: expected a folder with config.json, tokenizer.json and safetensors", spec->model);
        return;
    }
    *have_config = model_config_read(config, spec->model, spec, &err) == OK;
    if (!*have_config) problems_add(p, "/model", status_name(err.code), "%s", err.text);
    if (tokenizer_open(&t, spec->model, &err) != OK || (*have_config && tokenizer_fits(t, config->V, &err) != OK))
        problems_add(p, "/model", status_name(err.code), "%s", err.text);
    if (strcmp(spec->template, "none") != 0 && template_open(&tmpl, spec->model, spec->template, t, &err) != OK)
        problems_add(p, strcmp(spec->template, "auto") == 0 ? "/model" : "/template", status_name(err.code), "%s", err.text);      /* auto: the folder's own */
    template_free(tmpl);
    tokenizer_free(t);
}

static char *column_pointer(const char *name)       /* "/columns/<name>", escaped (RFC 6901) */
{
    char *ptr = xmalloc(2 * strlen(name) + 10), *at = stpcpy(ptr, "/columns/");
    for (; *name; name++) {
        if (*name == '~' || *name == '/') { *at++ = '~'; *at++ = *name == '~' ? '0' : '1'; }
        else *at++ = *name;
    }
    *at = '\0';
    return ptr;
}

/* Every name renamed must be some record's, and become one of ours. Returns whether the second holds: only then can the data be opened with it. */
static bool check_columns(const struct spec *spec, struct problems *p, cJSON *warnings)
{
    int n = 0, before = p->n;
    for (const cJSON *c = spec->columns ? spec->columns->child : NULL; c; c = c->next, n++) {
        struct error err;
        if (record_column(c->valuestring, &err) == OK) continue;
        char *ptr = column_pointer(c->string);
        problems_add(p, ptr, "unknown_column", "%s", err.text);
        free(ptr);
    }
    if (p->n != before) return false;
    if (n == 0) return true;
    bool *seen = xcalloc((unsigned long)n, 1), *one = xcalloc((unsigned long)n, 1), whole = true;
    const struct strlist *sets[] = { &spec->dataset, &spec->val_dataset };
    for (int k = 0; k < 2; k++)
        for (int i = 0; i < sets[k]->n; i++) {
            struct dataset *d = NULL;
            struct strlist only = { &sets[k]->v[i], 1 };
            if (dataset_open(&d, &only, spec->columns, spec->system, spec->dataset_shuffle, (uint64_t)spec->seed, NULL) != OK) { whole = false; continue; }
            if (!dataset_columns_seen(d, TOKENIZE_MAX, one)) whole = false;
            for (int c = 0; c < n; c++) seen[c] |= one[c];
            dataset_close(d);
        }
    int i = 0;
    for (const cJSON *c = spec->columns->child; c; c = c->next, i++) {
        if (seen[i]) continue;
        char *ptr = column_pointer(c->string);
        if (whole) problems_add(p, ptr, "unknown_column", "no record of the data set has a column \"%.100s\"", c->string);
        else {
            char *text = xasprintf("columns: none of the records read for this plan has a column \"%s\"", c->string);
            (void)cJSON_AddItemToArray(warnings, cJSON_CreateString(text));
            free(text);
        }
        free(ptr);
    }
    free(seen);
    free(one);
    return true;
}

static void check_dataset(const struct spec *spec, const struct strlist *files, const cJSON *columns, const char *field, struct problems *p)
{
    for (int i = 0; i < files->n; i++) {
        struct error err;
        struct dataset *d = NULL;
        struct strlist one = { &files->v[i], 1 };
        char ptr[64];
        (void)snprintf(ptr, sizeof ptr, "/%s/%d", field, i);
        if (dataset_open(&d, &one, columns, spec->system, spec->dataset_shuffle, (uint64_t)spec->seed, &err) != OK)
            problems_add(p, ptr, status_name(err.code), "%s", err.text);
        else if (dataset_count(d) == 0) problems_add(p, ptr, "empty", "%s: expected at least one record, found none", files->v[i]);
        dataset_close(d);
    }
}

/* Whether a folder can be made or written at path: in the nearest ancestor that exists one can be made, which is removed at once. Permissions alone do not tell: /proc. */
static void check_writable(const char *path, const char *ptr, struct problems *p)
{
    char *at = xstrdup(path);
    struct stat st;
    while (stat(at, &st) < 0 && errno == ENOENT && lstat(at, &st) < 0) {
        char *slash = strrchr(at, '/');
        if (slash == NULL) (void)strcpy(at, ".");
        else if (slash == at) at[1] = '\0';
        else *slash = '\0';
    }
    if (stat(at, &st) < 0) problems_add(p, ptr, "io", "%s: %s", at, strerror(errno));
    else if (!S_ISDIR(st.st_mode)) problems_add(p, ptr, "invalid", "%s: expected a folder", at);
    else {
        char *probe = xasprintf("%s/.ringmaster-plan-XXXXXX", at);
        if (mkdtemp(probe) == NULL) problems_add(p, ptr, "io", "%s: no folder can be made in %s: %s", path, at, strerror(errno));
        else (void)rmdir(probe);
        free(probe);
    }
    free(at);
}

static int64_t bytes_of(const struct strlist *files)
{
    int64_t sum = 0;
    for (int i = 0; i < files->n; i++) {
        struct stat st;
        if (stat(files->v[i], &st) < 0 || !S_ISREG(st.st_mode)) return INT64_MAX;       /* a folder or path#N: not worth following here */
        sum += st.st_size;
    }
    return sum;
}

/* Steps and rows need the data tokenized; done for small sets only. Returns steps, 0: unknown yet. */
static int64_t count_steps(const struct spec *spec, const struct mesh *m, struct loader_info *info, struct progress *progress, struct problems *p)
{
    struct loader *l = NULL;
    struct error err;
    if (bytes_of(&spec->dataset) > TOKENIZE_MAX) return spec->max_steps;
    struct spec look = *spec;
    look.output_dir = NULL;                                     /* looking writes nothing there */
    if (loader_open(&l, &look, 0, m->dp, m->R * m->U, NULL, NULL, &err) != OK) {
        add_problem(p, "/dataset", &err);
        return 0;
    }
    loader_info(l, info);
    int64_t steps = run_steps(&look, info->micro_per_epoch);
    if (spec->resume_from_checkpoint && checkpoint_check_data(spec->resume_from_checkpoint, spec, m->dp, info, progress, &err) != OK)
        problems_add(p, "/resume_from_checkpoint", status_name(err.code), "%s", err.text);
    loader_close(l);
    return steps;
}

static cJSON *buffers_json(const struct job *j)
{
    cJSON *list = cJSON_CreateArray();
    for (int k = 0; k < MEM_PLACES; k++)
        for (int64_t i = 0; i < j->arenas[k].n_buffers; i++) {
            const struct arena_buffer *b = &j->arenas[k].buffers[i];
            cJSON *o = cJSON_CreateObject(), *shape = cJSON_CreateArray();
            json_add_str(o, "name", b->name);
            json_add_str(o, "category", mem_category_names[b->category]);
            json_add_str(o, "place", k == PLACE_DEVICE ? "device" : k == PLACE_SHARED ? "shared" : "host");
            json_add_str(o, "dtype", dtype_name(b->dtype));
            for (int d = 0; d < b->ndim; d++) (void)cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)b->dim[d]));
            (void)cJSON_AddItemToObject(o, "shape", shape);
            json_add_int(o, "bytes", b->bytes);
            (void)cJSON_AddBoolToObject(o, "scratch", b->scratch);
            (void)cJSON_AddItemToArray(list, o);
        }
    if (j->transport_bytes > 0 && j->ops == kernel_ops_cpu()) {
        cJSON *o = cJSON_CreateObject();
        json_add_str(o, "name", "transport");
        json_add_str(o, "category", mem_category_names[MEM_COMMUNICATION]);
        json_add_str(o, "place", "shared");
        json_add_str(o, "dtype", dtype_name(DT_U8));
        (void)cJSON_AddItemToObject(o, "shape", cJSON_CreateIntArray(NULL, 0));
        json_add_int(o, "bytes", j->transport_bytes);
        (void)cJSON_AddBoolToObject(o, "scratch", false);
        (void)cJSON_AddItemToArray(list, o);
    }
    return list;
}

static cJSON *rank_json(const struct plan *plan, int rank, bool brief)
{
    const struct job *j = &plan->ranks[rank];
    int64_t category[MEM_CATEGORIES];
    cJSON *o = cJSON_CreateObject(), *by = cJSON_CreateObject();
    job_by_category(j, category);
    json_add_int(o, "rank", rank);
    json_add_int(o, "peak_bytes", job_peak(j));
    for (int c = 0; c < MEM_CATEGORIES; c++) json_add_int(by, mem_category_names[c], category[c]);
    (void)cJSON_AddItemToObject(o, "categories", by);
    if (!brief) (void)cJSON_AddItemToObject(o, "buffers", buffers_json(j));
    return o;
}

/* What a GPU's libraries take, line by line, with where each figure comes from. */
static cJSON *libraries_json(const struct kernel_ops *ops, int world)
{
    struct job_library lines[JOB_LIBRARIES];
    cJSON *list = cJSON_CreateArray();
    for (int n = job_libraries(ops, world, lines), i = 0; i < n; i++) {
        cJSON *o = cJSON_CreateObject();
        json_add_str(o, "name", lines[i].name);
        json_add_str(o, "category", mem_category_names[lines[i].category]);
        json_add_int(o, "bytes", lines[i].bytes);
        json_add_str(o, "basis", lines[i].basis);
        json_add_str(o, "source", lines[i].source);
        (void)cJSON_AddItemToArray(list, o);
    }
    return list;
}

static void print_plan(const struct plan *plan, const struct kernel_ops *ops, int64_t steps, const struct loader_info *info, const struct spec *spec, cJSON *warnings, bool brief)
{
    const struct mesh *m = &plan->ranks[0].mesh;
    cJSON *o = cJSON_CreateObject(), *parallel = cJSON_CreateObject(), *ranks = cJSON_CreateArray();
    (void)cJSON_AddBoolToObject(o, "ok", true);
    json_add_int(parallel, "dp", m->dp);
    json_add_int(parallel, "ring", m->R);
    json_add_int(parallel, "ulysses", m->U);
    json_add_str(parallel, "why", m->why);
    (void)cJSON_AddItemToObject(o, "parallel", parallel);
    if (steps > 0) json_add_int(o, "steps", steps);
    else {
        json_add_str(o, "steps", NULL);
        (void)cJSON_AddItemToArray(warnings, cJSON_CreateString("the data set is large: how many steps it gives is known once it is tokenized"));
    }
    if (info->rows_per_epoch > 0) json_add_int(o, "rows_per_epoch", info->rows_per_epoch);
    char text[200];
    if (info->dropped_long > 0) {
        (void)snprintf(text, sizeof text, "%" PRId64 " documents are left out: longer than max_length %" PRId64 ", with truncation_strategy %.20s", info->dropped_long,
                       spec->max_length, spec->truncation_strategy);
        (void)cJSON_AddItemToArray(warnings, cJSON_CreateString(text));
    }
    if (info->dropped_untrained > 0) {
        (void)snprintf(text, sizeof text, "%" PRId64 " documents%s are left out: nothing in them is trained (max_length %" PRId64 ", truncation_strategy %.20s)", info->dropped_untrained,
                       strcmp(spec->truncation_strategy, "split") == 0 ? " or pieces of them" : "", spec->max_length, spec->truncation_strategy);
        (void)cJSON_AddItemToArray(warnings, cJSON_CreateString(text));
    }
    json_add_str(o, "device", ops->name);
    json_add_str(o, "policy", act_policy_names[plan->policy]);
    json_add_int(o, "peak_bytes", plan->peak_bytes);
    json_add_int(o, "limit_bytes", plan->limit_bytes == INT64_MAX ? 0 : plan->limit_bytes);
    for (int i = 0; i < plan->world; i++) (void)cJSON_AddItemToArray(ranks, rank_json(plan, i, brief));
    (void)cJSON_AddItemToObject(o, "ranks", ranks);
    (void)cJSON_AddItemToObject(o, "libraries", libraries_json(ops, plan->world));
    (void)cJSON_AddItemToObject(o, "warnings", warnings);
    json_print(o);
}

int plan_command(const char *spec_path, bool brief)
{
    struct spec spec = { 0 };
    struct problems p = { 0 };
    struct model_config config = { 0 };
    struct loader_info info = { 0 };
    struct plan plan = { 0 };
    struct mesh mesh = { 0 };
    struct progress progress = { 0 };
    struct error err = { 0 };
    const struct kernel_ops *ops = NULL;
    cJSON *warnings = cJSON_CreateArray();
    bool have_spec = spec_read(&spec, spec_path, &p) == OK, have_config = false;
    int64_t steps = 0;
    if (have_spec) {
        check_model(&spec, &config, &have_config, &p);
        int before = p.n;
        const cJSON *columns = check_columns(&spec, &p, warnings) ? spec.columns : NULL;
        check_dataset(&spec, &spec.dataset, columns, "dataset", &p);
        check_dataset(&spec, &spec.val_dataset, columns, "val_dataset", &p);
        if (spec.eval_steps > 0 && spec.val_dataset.n == 0 && spec.split_dataset_ratio <= 0)
            problems_add(&p, "/eval_steps", "conflict", "eval_steps %lld needs something to evaluate: give val_dataset or split_dataset_ratio", (long long)spec.eval_steps);
        bool data_ok = p.n == before;
        check_writable(spec.output_dir, "/output_dir", &p);
        if (spec.cached_dataset) check_writable(spec.cached_dataset, "/cached_dataset", &p);
        if (claim_check(spec.output_dir, spec.resume_from_checkpoint, &err) != OK) problems_add(&p, "/output_dir", status_name(err.code), "%s", err.text);
        if (spec.offload_dir) check_writable(spec.offload_dir, "/offload_dir", &p);
        if (spec.debug_dump) check_writable(spec.debug_dump, "/debug_dump", &p);
        if (spec.resume_from_checkpoint && checkpoint_check(spec.resume_from_checkpoint, &spec, &progress, &err) != OK)
            problems_add(&p, "/resume_from_checkpoint", status_name(err.code), "%s", err.text);
        bool here = plan_device(&spec, &ops, &err) == OK;
        if (!here && (ops = plan_device_elsewhere(&spec)) != NULL) {
            char *text = xasprintf("%s: this is the plan for a GPU of memory_limit_bytes elsewhere; the job cannot run here", err.text);
            (void)cJSON_AddItemToArray(warnings, cJSON_CreateString(text));
            free(text);
        }
        if (ops == NULL)
            problems_add(&p, "/device", status_name(err.code), "%s%s", err.text, spec.memory_limit_bytes > 0 ? "" : " (to plan for a GPU elsewhere, give memory_limit_bytes)");
        else if (have_config) {
            if (mesh_choose(&mesh, &spec, config.H, config.Hkv, 0, &err) != OK) problems_add(&p, "/sequence_parallel_size", status_name(err.code), "%s", err.text);
            else if (here && comm_usable(job_transport(ops), mesh.world, &err) != OK) problems_add(&p, "/nproc_per_node", status_name(err.code), "%s", err.text);
            else if (plan_make(&plan, &spec, &config, ops, mesh.world, &err) != OK) {
                if (err.code == E_LIMIT) problems_add(&p, "/memory_limit_bytes", "does_not_fit", "%s", err.text);
                else add_problem(&p, "", &err);
            } else if (model_check_files(plan.ranks[0].model, &err) != OK) add_problem(&p, spec.adapter ? "" : "/model", &err);
            else if (p.n == 0 && data_ok) steps = count_steps(&spec, &mesh, &info, &progress, &p);
        }
    }
    bool ok = p.n == 0;
    if (ok) print_plan(&plan, ops, steps, &info, &spec, warnings, brief);
    else {
        cJSON_Delete(warnings);
        cJSON *o = cJSON_CreateObject();
        (void)cJSON_AddBoolToObject(o, "ok", false);
        (void)cJSON_AddItemToObject(o, "problems", problems_json(&p));
        json_print(o);
    }
    plan_release(&plan);
    model_config_release(&config);
    problems_release(&p);
    if (have_spec) spec_release(&spec);
    return ok ? 0 : 2;
}
