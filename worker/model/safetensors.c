/* safetensors.c - see safetensors.h. File: u64 little-endian header length, JSON header, tensor bytes.
 *
 * Checked at open, once: nothing later trusts a number of the file. The data section must be covered by the tensors exactly, in
 * any order: no overlap, no hole, no tail, so a truncated file or a lying header cannot pass. Source: the format's own README. */
#include "worker/model/safetensors.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "api/json.h"

enum { MAX_FILES = 10000 };
static const struct json_limits header_limits = { 100000000, 8, 8000000 };

static const struct st_type { const char *name; enum dtype dt; int64_t size; } st_types[] = {
    { "F32", DT_F32, 4 }, { "BF16", DT_BF16, 2 }, { "F64", DT_F64, 8 }, { "F16", DT_F16, 2 }, { "I32", DT_I32, 4 }, { "I64", DT_I64, 8 },
    { "U8", DT_U8, 1 }, { "BOOL", DTYPE_COUNT, 1 }, { "I8", DTYPE_COUNT, 1 }, { "I16", DTYPE_COUNT, 2 }, { "U16", DTYPE_COUNT, 2 },
    { "U32", DTYPE_COUNT, 4 }, { "U64", DTYPE_COUNT, 8 }, { "F8_E4M3", DTYPE_COUNT, 1 }, { "F8_E5M2", DTYPE_COUNT, 1 },
};
enum { N_ST_TYPES = sizeof st_types / sizeof st_types[0] };

struct st_file { char *path; char *map; int64_t bytes; cJSON *metadata; };

struct safetensors {
    struct st_file *files;
    int n_files;
    struct st_tensor *v;        /* sorted by name */
    int64_t n, cap;
};

static int by_name(const void *a, const void *b)
{
    return strcmp(((const struct st_tensor *)a)->name, ((const struct st_tensor *)b)->name);
}

static int by_place(const void *a, const void *b)
{
    const struct st_tensor *x = a, *y = b;
    if (x->data != y->data) return (const char *)x->data < (const char *)y->data ? -1 : 1;
    return x->bytes < y->bytes ? -1 : x->bytes > y->bytes;      /* empty tensors first */
}

static void free_tensors(struct st_tensor *v, int64_t n)
{
    for (int64_t i = 0; i < n; i++) free(v[i].name);
    free(v);
}

/* One header entry. data_at: where the data section begins in the file. */
static int read_tensor(struct st_tensor *t, const cJSON *e, const struct st_file *f, int64_t data_at, struct error *err)
{
    const char *name = e->string;
    const char *type = json_str(e, "dtype");
    const struct st_type *ty = NULL;
    for (int i = 0; type && i < N_ST_TYPES; i++) if (strcmp(type, st_types[i].name) == 0) ty = &st_types[i];
    if (!ty) return error_set(err, E_INVALID, "%s: tensor %.200s: dtype is %.40s, expected a safetensors type", f->path, name, type ? type : "missing");
    const cJSON *shape = json_get(e, "shape"), *off = json_get(e, "data_offsets");
    if (!cJSON_IsArray(shape) || cJSON_GetArraySize(shape) > ST_MAX_DIMS)
        return error_set(err, E_INVALID, "%s: tensor %.200s: shape must be a list of at most %d sizes", f->path, name, ST_MAX_DIMS);
    *t = (struct st_tensor){ .dt = ty->dt, .n = 1 };
    double d;
    for (const cJSON *s = shape->child; s; s = s->next) {
        if (!json_number(s, &d) || !(d >= 0 && d <= 9007199254740991.0) || d != floor(d))
            return error_set(err, E_INVALID, "%s: tensor %.200s: shape holds something that is no size", f->path, name);
        t->dim[t->ndim++] = (int64_t)d;
        if (__builtin_mul_overflow(t->n, (int64_t)d, &t->n)) return error_set(err, E_INVALID, "%s: tensor %.200s: its shape overflows", f->path, name);
    }
    if (__builtin_mul_overflow(t->n, ty->size, &t->bytes)) return error_set(err, E_INVALID, "%s: tensor %.200s: its shape overflows", f->path, name);
    double b0, b1;
    if (!cJSON_IsArray(off) || cJSON_GetArraySize(off) != 2 || !json_number(off->child, &b0) || !json_number(off->child->next, &b1)
        || !(b0 >= 0 && b0 <= b1 && b1 <= (double)(f->bytes - data_at)) || b0 != floor(b0) || b1 != floor(b1))
        return error_set(err, E_INVALID, "%s: tensor %.200s: data_offsets must be two offsets inside the %lld bytes of data; the file is cut short or its header is wrong",
                         f->path, name, (long long)(f->bytes - data_at));
    if ((int64_t)b1 - (int64_t)b0 != t->bytes)
        return error_set(err, E_INVALID, "%s: tensor %.200s: %lld bytes at its offsets, its shape and dtype need %lld", f->path, name,
                         (long long)((int64_t)b1 - (int64_t)b0), (long long)t->bytes);
    t->data = f->map + data_at + (int64_t)b0;
    t->name = xstrdup(name);
    return OK;
}

/* Maps one file and lists its tensors (owned by the caller, by place). */
static int open_file(struct st_file *f, const char *path, struct st_tensor **out, int64_t *n_out, struct error *err)
{
    *f = (struct st_file){ .path = xstrdup(path) };
    *out = NULL;
    *n_out = 0;
    cJSON *header = NULL;
    struct st_tensor *v = NULL;
    int64_t n = 0;
    int rc = OK, fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd < 0) { int e = errno; return error_set(err, status_of_errno(e), "open %s: %s", path, strerror(e)); }
    struct stat st;
    if (fstat(fd, &st) < 0) { rc = error_set(err, E_IO, "stat %s: %s", path, strerror(errno)); goto out; }
    if (!S_ISREG(st.st_mode)) { rc = error_set(err, E_INVALID, "%s is not a regular file", path); goto out; }
    if (st.st_size < 10) { rc = error_set(err, E_INVALID, "%s: %lld bytes are too few for a safetensors file", path, (long long)st.st_size); goto out; }
    f->bytes = st.st_size;
    void *map = mmap(NULL, (size_t)f->bytes, PROT_READ, MAP_PRIVATE, fd, 0);
    if (map == MAP_FAILED) { rc = error_set(err, status_of_errno(errno), "mmap %s: %s", path, strerror(errno)); goto out; }
    f->map = map;

    uint64_t len = 0;
    for (int i = 7; i >= 0; i--) len = len << 8 | (unsigned char)f->map[i];
    if (len > header_limits.bytes || (int64_t)len > f->bytes - 8) {
        rc = error_set(err, E_INVALID, "%s: header of %llu bytes in a file of %lld; not a safetensors file, or cut short", path, (unsigned long long)len, (long long)f->bytes);
        goto out;
    }
    if (f->map[8] != '{') { rc = error_set(err, E_INVALID, "%s: the header is no JSON object", path); goto out; }
    if ((rc = json_parse(&header, f->map + 8, (size_t)len, &header_limits, err)) != OK) { (void)error_prefix(err, "%s: header", path); goto out; }

    int64_t cap = 0;
    for (const cJSON *e = header->child; e; e = e->next) cap++;
    v = xcalloc((unsigned long)cap + 1, sizeof *v);
    for (cJSON *e = header->child; e; e = e->next) {
        if (strcmp(e->string, "__metadata__") == 0) {
            if (cJSON_IsObject(e)) f->metadata = cJSON_Duplicate(e, 1);
            continue;
        }
        if (!cJSON_IsObject(e)) { rc = error_set(err, E_INVALID, "%s: header entry %.200s is no object", path, e->string); goto out; }
        if ((rc = read_tensor(&v[n], e, f, 8 + (int64_t)len, err)) != OK) goto out;
        n++;
    }
    qsort(v, (size_t)n, sizeof *v, by_place);
    const char *at = f->map + 8 + len;
    for (int64_t i = 0; i < n; i++) {
        if ((const char *)v[i].data != at) {
            rc = error_set(err, E_INVALID, "%s: tensor %.200s %s the one before it", path, v[i].name, (const char *)v[i].data < at ? "overlaps" : "leaves a hole after");
            goto out;
        }
        at += v[i].bytes;
    }
    if (at != f->map + f->bytes) { rc = error_set(err, E_INVALID, "%s: %lld bytes at the end belong to no tensor", path, (long long)(f->map + f->bytes - at)); goto out; }
    *out = v;
    *n_out = n;
    v = NULL;
    n = 0;
out:
    free_tensors(v, n);
    cJSON_Delete(header);
    (void)close(fd);
    return rc;
}

static void append(struct safetensors *s, struct st_tensor t, int file)
{
    if (s->n == s->cap) {
        s->cap = s->cap ? s->cap * 2 : 64;
        s->v = xrealloc(s->v, (unsigned long)s->cap * sizeof *s->v);
    }
    t.file = file;
    s->v[s->n++] = t;
}

static int open_one(struct safetensors *s, const char *path, struct error *err)
{
    s->files = xcalloc(1, sizeof *s->files);
    s->n_files = 1;
    struct st_tensor *v;
    int64_t n;
    int rc = open_file(&s->files[0], path, &v, &n, err);
    for (int64_t i = 0; i < n; i++) append(s, v[i], 0);
    free(v);
    return rc;
}

/* The shards of an index: every tensor it names must be in the file it names. */
static int open_index(struct safetensors *s, const char *dir, const char *index, struct error *err)
{
    cJSON *j = NULL;
    struct st_tensor *v = NULL;
    int64_t n = 0;
    int rc = json_parse_file(&j, index, &json_limits_file, err);
    if (rc != OK) return rc;
    cJSON *map = json_get(j, "weight_map");
    if (!cJSON_IsObject(map)) { rc = error_set(err, E_INVALID, "%s: weight_map must be an object of tensor name to file name", index); goto out; }
    for (cJSON *e = map->child; e; e = e->next) {
        const char *name = e->valuestring;
        if (!cJSON_IsString(e) || !*name || strchr(name, '/') || name[0] == '.') {
            rc = error_set(err, E_INVALID, "%s: weight_map.%.200s must be the name of a file in the same folder", index, e->string);
            goto out;
        }
        char *path = xasprintf("%s/%s", dir, name);
        bool known = false;
        for (int i = 0; i < s->n_files && !known; i++) known = strcmp(s->files[i].path, path) == 0;
        if (!known) {
            if (s->n_files == MAX_FILES) rc = error_set(err, E_LIMIT, "%s: more than %d shards", index, MAX_FILES);
            else {
                s->files = xrealloc(s->files, (unsigned long)(s->n_files + 1) * sizeof *s->files);
                rc = open_file(&s->files[s->n_files++], path, &v, &n, err);
                if (rc != OK) (void)error_prefix(err, "shard named by %s", index);
            }
            for (int64_t i = 0; i < n; i++) {
                const char *owner = json_str(map, v[i].name);
                const char *base = strrchr(path, '/') + 1;
                if (owner && strcmp(owner, base) == 0) append(s, v[i], s->n_files - 1);
                else free(v[i].name);
            }
            free(v);
            v = NULL;
            n = 0;
        }
        free(path);
        if (rc != OK) goto out;
    }
    if (s->n) qsort(s->v, (size_t)s->n, sizeof *s->v, by_name);
    for (cJSON *e = map->child; e; e = e->next) {
        if (!safetensors_find(s, e->string)) {
            rc = error_set(err, E_INVALID, "%s: tensor %.200s is not in %s, where the index says it is", index, e->string, e->valuestring);
            goto out;
        }
    }
out:
    cJSON_Delete(j);
    return rc;
}

int safetensors_open(struct safetensors **out, const char *path, const char *stem, struct error *err)
{
    *out = NULL;
    struct safetensors *s = xcalloc(1, sizeof *s);
    struct stat st;
    int rc;
    if (stat(path, &st) < 0) rc = error_set(err, status_of_errno(errno), "open %s: %s", path, strerror(errno));
    else if (!S_ISDIR(st.st_mode)) rc = open_one(s, path, err);
    else {
        char *one = xasprintf("%s/%s.safetensors", path, stem), *index = xasprintf("%s/%s.safetensors.index.json", path, stem);
        if (access(one, F_OK) == 0) rc = open_one(s, one, err);
        else if (access(index, F_OK) == 0) rc = open_index(s, path, index, err);
        else rc = error_set(err, E_NOTFOUND, "%s: neither %s.safetensors nor %s.safetensors.index.json is there", path, stem, stem);
        free(one);
        free(index);
    }
    if (rc != OK) { safetensors_close(s); return rc; }
    if (s->n) qsort(s->v, (size_t)s->n, sizeof *s->v, by_name);
    *out = s;
    return OK;
}

void safetensors_close(struct safetensors *s)
{
    if (!s) return;
    free_tensors(s->v, s->n);
    for (int i = 0; i < s->n_files; i++) {
        if (s->files[i].map) (void)munmap(s->files[i].map, (size_t)s->files[i].bytes);
        cJSON_Delete(s->files[i].metadata);
        free(s->files[i].path);
    }
    free(s->files);
    free(s);
}

int64_t safetensors_count(const struct safetensors *s) { return s->n; }
const struct st_tensor *safetensors_at(const struct safetensors *s, int64_t i) { return &s->v[i]; }
const char *safetensors_file(const struct safetensors *s, const struct st_tensor *t) { return s->files[t->file].path; }

const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name)
{
    struct st_tensor key = { .name = (char *)(uintptr_t)name };
    return s->n ? bsearch(&key, s->v, (size_t)s->n, sizeof *s->v, by_name) : NULL;
}

const char *safetensors_metadata(const struct safetensors *s, const char *key)
{
    return s->n_files && s->files[0].metadata ? json_str(s->files[0].metadata, key) : NULL;
}

static float f16_to_f32(uint16_t h)
{
    uint32_t sign = (uint32_t)(h & 0x8000u) << 16, exp = h >> 10 & 31, frac = h & 0x3ffu;
    if (exp == 0) {
        float v = ldexpf((float)frac, -24);
        return sign ? -v : v;
    }
    uint32_t bits = exp == 31 ? sign | 0x7f800000u | frac << 13 : sign | (exp + 112) << 23 | frac << 13;
    float v;
    memcpy(&v, &bits, 4);
    return v;
}

static double element(enum dtype dt, const char *p)
{
    float f;
    double d;
    uint16_t h;
    switch (dt) {
    case DT_F32: memcpy(&f, p, 4); return (double)f;
    case DT_F64: memcpy(&d, p, 8); return d;
    case DT_BF16: memcpy(&h, p, 2); return (double)bf16_to_f32((bf16){ h });
    default: memcpy(&h, p, 2); return (double)f16_to_f32(h);
    }
}

static bool is_float(enum dtype dt) { return dt == DT_F32 || dt == DT_BF16 || dt == DT_F64 || dt == DT_F16; }

int safetensors_get(const struct safetensors *s, const struct st_tensor *t, enum dtype dt, void *out, int64_t from, int64_t n, struct error *err)
{
    if (from < 0 || n < 0 || from > t->n - n)
        return error_set(err, E_INVALID, "%s: tensor %.200s has %lld elements, [%lld, +%lld) were wanted", safetensors_file(s, t), t->name, (long long)t->n, (long long)from, (long long)n);
    if (t->dt == DTYPE_COUNT || (t->dt != dt && !(is_float(t->dt) && is_float(dt) && dt != DT_F16)))
        return error_set(err, E_UNSUPPORTED, "%s: tensor %.200s: its type cannot become %s", safetensors_file(s, t), t->name, dtype_name(dt));
    int64_t size = (int64_t)dtype_size(t->dt);
    const char *p = (const char *)t->data + from * size;
    if (t->dt == dt) {
        memcpy(out, p, (size_t)(n * size));
        return OK;
    }
    for (int64_t i = 0; i < n && t->dt == DT_BF16 && dt == DT_F32; i++) {       /* what is common must be fast */
        uint32_t bits = (uint32_t)((unsigned char)p[2 * i] | (unsigned)(unsigned char)p[2 * i + 1] << 8) << 16;
        memcpy((float *)out + i, &bits, 4);
    }
    if (t->dt == DT_BF16 && dt == DT_F32) return OK;
    for (int64_t i = 0; i < n; i++, p += size) {
        double x = element(t->dt, p);
        if (dt == DT_F32) ((float *)out)[i] = (float)x;
        else if (dt == DT_F64) ((double *)out)[i] = x;
        else ((bf16 *)out)[i] = f32_to_bf16((float)x);
    }
    return OK;
}

/* --- writing --- */
static const char *st_type_name(enum dtype dt)
{
    for (int i = 0; i < N_ST_TYPES; i++) if (st_types[i].dt == dt) return st_types[i].name;
    return NULL;
}

static int64_t source_bytes(const struct st_source *t)
{
    int64_t n = (int64_t)dtype_size(t->dt);
    for (int d = 0; d < t->ndim; d++) n *= t->dim[d];
    return n;
}

static char *header_text(const struct st_source *t, int64_t n, const char *const *metadata)
{
    cJSON *h = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(h, "__metadata__");
    json_add_str(meta, "format", "pt");
    for (; metadata && metadata[0]; metadata += 2) json_add_str(meta, metadata[0], metadata[1]);
    int64_t at = 0;
    for (int64_t i = 0; i < n; i++) {
        cJSON *e = cJSON_CreateObject(), *shape, *off;
        json_add_str(e, "dtype", st_type_name(t[i].dt));
        shape = cJSON_AddArrayToObject(e, "shape");
        for (int d = 0; d < t[i].ndim; d++) (void)cJSON_AddItemToArray(shape, cJSON_CreateNumber((double)t[i].dim[d]));
        off = cJSON_AddArrayToObject(e, "data_offsets");
        (void)cJSON_AddItemToArray(off, cJSON_CreateNumber((double)at));
        at += source_bytes(&t[i]);
        (void)cJSON_AddItemToArray(off, cJSON_CreateNumber((double)at));
        (void)cJSON_AddItemToObject(h, t[i].name, e);
    }
    char *text = json_line(h);
    cJSON_Delete(h);
    return text;
}

static int write_source(int fd, const struct st_source *t, void *buf, int64_t cap, struct error *err)
{
    int64_t bytes = source_bytes(t);
    if (t->data) return write_all(fd, t->data, (size_t)bytes, err);
    for (int64_t off = 0; off < bytes; off += cap) {
        int64_t part = bytes - off < cap ? bytes - off : cap;
        int rc = t->read(t->arg, buf, off, part, err);
        if (rc == OK) rc = write_all(fd, buf, (size_t)part, err);
        if (rc != OK) return rc;
    }
    return OK;
}

int safetensors_write(const char *path, const struct st_source *t, int64_t n, const char *const *metadata, struct error *err)
{
    enum { PIECE = 4 << 20 };
    char *tmp = xasprintf("%s.tmp-%ld", path, (long)getpid()), *head = header_text(t, n, metadata), *buf = xmalloc(PIECE);
    size_t len = strlen(head), padded = (len + 7) / 8 * 8;
    int rc = OK, fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) { rc = error_set(err, status_of_errno(errno), "open %s: %s", tmp, strerror(errno)); goto out; }
    unsigned char prefix[8];
    for (int i = 0; i < 8; i++) prefix[i] = (unsigned char)((uint64_t)padded >> (8 * i));
    if ((rc = write_all(fd, prefix, 8, err)) != OK || (rc = write_all(fd, head, len, err)) != OK
        || (rc = write_all(fd, "        ", padded - len, err)) != OK) goto out;
    for (int64_t i = 0; i < n && rc == OK; i++) rc = write_source(fd, &t[i], buf, PIECE, err);
    if (rc != OK) goto out;
    if (fsync(fd) < 0 || rename(tmp, path) < 0) { rc = error_set(err, status_of_errno(errno), "publish %s: %s", path, strerror(errno)); goto out; }
    rc = fsync_parent(path, err);
out:
    if (fd >= 0) (void)close(fd);
    if (rc != OK) { (void)error_prefix(err, "write %s", path); (void)unlink(tmp); }
    free(tmp);
    free(head);
    free(buf);
    return rc;
}

int safetensors_write_dir(const char *dir, const char *stem, const struct st_source *t, int64_t n, int64_t max_bytes, struct error *err)
{
    int64_t total = 0, shards = 1, fill = 0;
    int *shard_of = xcalloc((unsigned long)n + 1, sizeof *shard_of);
    for (int64_t i = 0; i < n; i++) {
        int64_t b = source_bytes(&t[i]);
        if (fill > 0 && fill + b > max_bytes) { shards++; fill = 0; }
        fill += b;
        total += b;
        shard_of[i] = (int)shards - 1;
    }
    int rc = OK;
    cJSON *index = cJSON_CreateObject(), *meta = cJSON_AddObjectToObject(index, "metadata"), *map = cJSON_AddObjectToObject(index, "weight_map");
    json_add_int(meta, "total_size", total);
    int64_t i = 0;
    for (int64_t k = 0; k < shards && rc == OK; k++) {
        char *name = shards == 1 ? xasprintf("%s.safetensors", stem) : xasprintf("%s-%05lld-of-%05lld.safetensors", stem, (long long)(k + 1), (long long)shards);
        char *path = xasprintf("%s/%s", dir, name);
        int64_t first = i;
        for (; i < n && shard_of[i] == k; i++) json_add_str(map, t[i].name, name);
        rc = safetensors_write(path, t + first, i - first, NULL, err);
        free(path);
        free(name);
    }
    if (rc == OK && shards > 1) {
        char *path = xasprintf("%s/%s.safetensors.index.json", dir, stem), *text = json_line(index);
        rc = file_write(path, text, strlen(text), err);
        free(text);
        free(path);
    }
    cJSON_Delete(index);
    free(shard_of);
    return rc;
}
