/* device.c - memory, streams and events of the CPU: memory comes from mmap, a stream is a place for an error text,
 * an event is a time. Every call is done when it returns, so waiting is nothing. */
#include "kernels/cpu/cpu.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>

static int open_device(int device, struct error *err)
{
    if (device < 0) return error_set(err, E_INVALID, "cpu device %d: expected 0 or more", device);
    return OK;
}

/* The value in bytes of a "Name:   N kB" line of /proc/meminfo, or 0. */
static int64_t meminfo(const char *name)
{
    FILE *f = fopen("/proc/meminfo", "re");
    char line[200];
    long long kb = 0;
    size_t n = strlen(name);
    while (f && fgets(line, sizeof line, f))
        if (strncmp(line, name, n) == 0 && line[n] == ':') kb = strtoll(line + n + 1, NULL, 10);
    if (f) (void)fclose(f);
    return (int64_t)kb * 1024;
}

static int device_info(int device, struct device_info *out, struct error *err)
{
    int rc = open_device(device, err);
    if (rc != OK) return rc;
    *out = (struct device_info){ .name = "cpu", .total_bytes = meminfo("MemTotal"), .free_bytes = meminfo("MemAvailable") };
    return OK;
}

static size_t whole_pages(size_t bytes) { return (bytes + 4095) & ~(size_t)4095; }

static int mem_alloc(void **p, size_t bytes, struct error *err)
{
    *p = NULL;
    if (bytes == 0) return OK;
    if (bytes > SIZE_MAX - 4095) return error_set(err, E_NOMEM, "allocate %zu bytes: more than the address space", bytes);
    void *m = mmap(NULL, whole_pages(bytes), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (m == MAP_FAILED) return error_set(err, E_NOMEM, "allocate %zu bytes of host memory: %s", bytes, strerror(errno));
#ifdef MADV_HUGEPAGE
    if (bytes >= (size_t)4 << 20) (void)madvise(m, whole_pages(bytes), MADV_HUGEPAGE);   /* fewer TLB misses; a wish only */
#endif
    *p = m;
    return OK;
}

static void mem_free(void *p, size_t bytes)
{
    if (p) (void)munmap(p, whole_pages(bytes));
}

static int stream_new(struct stream **s, bool deterministic, struct error *err)
{
    (void)err;
    *s = xcalloc(1, sizeof **s);
    (*s)->deterministic = deterministic;
    return OK;
}
static void stream_free(struct stream *s) { free(s); }
static int stream_wait(struct stream *s, struct error *err) { (void)s; (void)err; return OK; }
static const char *stream_error(struct stream *s) { return s->text; }

static int event_new(struct event **e, struct error *err) { (void)err; *e = xcalloc(1, sizeof **e); return OK; }
static void event_free(struct event *e) { free(e); }
static int event_record(struct event *e, struct stream *s)
{
    (void)s;
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    e->ms = (double)t.tv_sec * 1e3 + (double)t.tv_nsec * 1e-6;
    return OK;
}
static int event_wait(struct stream *s, struct event *e) { (void)s; (void)e; return OK; }
static double event_ms(struct event *from, struct event *to) { return to->ms - from->ms; }

static int copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    (void)s;
    if (bytes) memcpy(dst, src, bytes);
    return OK;
}
static int zero(struct stream *s, void *dst, size_t bytes)
{
    (void)s;
    if (bytes) memset(dst, 0, bytes);
    return OK;
}

void cpu_fill_device(struct kernel_ops *ops)
{
    ops->device_open = open_device;
    ops->device_info = device_info;
    ops->mem_alloc = mem_alloc;
    ops->mem_free = mem_free;
    ops->host_alloc = mem_alloc;
    ops->host_free = mem_free;
    ops->stream_new = stream_new;
    ops->stream_free = stream_free;
    ops->stream_wait = stream_wait;
    ops->error = stream_error;
    ops->event_new = event_new;
    ops->event_free = event_free;
    ops->event_record = event_record;
    ops->event_wait = event_wait;
    ops->event_ms = event_ms;
    ops->copy = copy;
    ops->zero = zero;
}
