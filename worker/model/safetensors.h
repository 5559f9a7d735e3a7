/* safetensors.h - reads and writes tensors in the safetensors format; files from outside are hostile.
 *
 * The reader maps files and checks everything before it hands out a pointer: header length, strict JSON, dtype, shape product,
 * offsets in bounds, no overlap, no hole, bytes equal to shape. A folder is read through <stem>.safetensors or
 * <stem>.safetensors.index.json and its shards. The writer streams: temp file, fsync, rename. */
#ifndef RM_WORKER_MODEL_SAFETENSORS_H
#define RM_WORKER_MODEL_SAFETENSORS_H

#include "kernels/kernels.h"

enum { ST_MAX_DIMS = 8 };

struct st_tensor {
    char *name;
    enum dtype dt;                      /* DTYPE_COUNT: a type we do not compute with (F8, I8 …) */
    int ndim;
    int64_t dim[ST_MAX_DIMS], n, bytes;
    const void *data;                   /* into the map; not aligned to more than 1 byte */
    int file;
};

struct safetensors;

/* path: a .safetensors file, or a folder with <stem>.safetensors[.index.json]. */
int safetensors_open(struct safetensors **s, const char *path, const char *stem, struct error *err);
void safetensors_close(struct safetensors *s);
int64_t safetensors_count(const struct safetensors *s);
const struct st_tensor *safetensors_at(const struct safetensors *s, int64_t i);         /* sorted by name */
const struct st_tensor *safetensors_find(const struct safetensors *s, const char *name);
/* Where it was read from, for messages. */
const char *safetensors_file(const struct safetensors *s, const struct st_tensor *t);
/* The __metadata__ value, or NULL. */
const char *safetensors_metadata(const struct safetensors *s, const char *key);
/* n elements from element `from` of t into out of type dt (F32, BF16, F64 from F32, BF16, F16, F64; I32 and I64 only to themselves). */
int safetensors_get(const struct safetensors *s, const struct st_tensor *t, enum dtype dt, void *out, int64_t from, int64_t n, struct error *err);

/* One tensor to write. data, or read() in pieces: fills buf with `bytes` bytes from byte offset `off` of the tensor. */
struct st_source {
    const char *name;
    enum dtype dt;
    int ndim;
    int64_t dim[4];
    const void *data;
    int (*read)(void *arg, void *buf, int64_t off, int64_t bytes, struct error *err);
    void *arg;
};
/* Writes path whole or not at all. metadata: "format" "pt" is always there; more as key, value, …, NULL (or NULL). */
int safetensors_write(const char *path, const struct st_source *t, int64_t n, const char *const *metadata, struct error *err);
/* dir/<stem>.safetensors, or shards of at most max_bytes each and an index when that is exceeded. */
int safetensors_write_dir(const char *dir, const char *stem, const struct st_source *t, int64_t n, int64_t max_bytes, struct error *err);

#endif
