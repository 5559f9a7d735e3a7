/* model.c - any bytes as a safetensors file (first byte even) or as a config.json (odd). What opens is read to the last byte; a
 * configuration that is taken gives finite frequencies and can be written and read again. */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "worker/model/config.h"
#include "worker/model/safetensors.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static int fd = -1;
static char path[64], dir[64];

static void clean(void)
{
    char config[100];
    (void)snprintf(config, sizeof config, "%s/config.json", dir);
    (void)unlink(config);
    (void)rmdir(dir);
}

static void put(const void *data, size_t size)
{
    if (fd < 0) {
        char config[100];
        fd = memfd_create("fuzz", 0);
        (void)snprintf(path, sizeof path, "/proc/%ld/fd/%d", (long)getpid(), fd);
        strcpy(dir, "/tmp/fuzz-model-XXXXXX");
        if (fd < 0 || !mkdtemp(dir)) abort();
        (void)snprintf(config, sizeof config, "%s/config.json", dir);
        if (symlink(path, config) != 0 || atexit(clean) != 0) abort();
    }
    if (ftruncate(fd, 0) != 0 || pwrite(fd, data, size, 0) != (ssize_t)size) abort();
}

static void read_tensors(void)
{
    struct safetensors *s;
    struct error err = { 0 };
    size_t bad;
    if (safetensors_open(&s, path, "model", &err) != OK) {
        if (!utf8_valid(err.text, strlen(err.text), &bad)) abort();
        return;
    }
    for (int64_t i = 0; i < safetensors_count(s); i++) {
        const struct st_tensor *t = safetensors_at(s, i);
        if (safetensors_find(s, t->name) != t || t->bytes > 1 << 20) abort();
        void *out = malloc((size_t)t->n * 8 + 1);
        (void)safetensors_get(s, t, DT_F32, out, 0, t->n, &err);
        (void)safetensors_get(s, t, t->dt == DTYPE_COUNT ? DT_BF16 : t->dt, out, 0, t->n, &err);
        free(out);
    }
    safetensors_close(s);
}

static void read_config(bool again)
{
    struct model_config c;
    struct error err = { 0 };
    size_t bad;
    if (model_config_read(&c, dir, NULL, &err) != OK) {
        if (again || !utf8_valid(err.text, strlen(err.text), &bad)) abort();
        return;
    }
    double *f = malloc((size_t)c.D * 8), factor;
    model_config_rope(&c, 1 << 20, f, &factor);
    for (int64_t i = 0; i < c.D / 2; i++) if (!isfinite(f[i])) abort();
    free(f);
    char *text = model_config_text(&c, DT_F32, c.tied);
    model_config_release(&c);
    if (!again) {
        put(text, strlen(text));
        read_config(true);
    }
    free(text);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    if (size < 1) return 0;
    put(data + 1, size - 1);
    if (data[0] % 2) read_config(false);
    else read_tensors();
    return 0;
}
