/* device.c - memory, streams and events of a GPU through the CUDA runtime. */
#include <sched.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "kernels/cuda/backend.h"

struct event { cudaEvent_t e; };

int cuda_refuse(struct stream *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(s->text, sizeof s->text, fmt, ap);
    va_end(ap);
    return E_INVALID;
}

int cuda_status(struct stream *s, cudaError_t e, const char *what)
{
    if (e == cudaSuccess) return OK;
    (void)snprintf(s->text, sizeof s->text, "%s: %s", what, cudaGetErrorString(e));
    return E_CUDA;
}

static int failed(struct error *err, cudaError_t e, const char *what)
{
    enum status code = e == cudaErrorMemoryAllocation ? E_NOMEM : e == cudaErrorInsufficientDriver || e == cudaErrorNoDevice ? E_UNSUPPORTED : E_CUDA;
    return error_set(err, code, "%s: %s", what, cudaGetErrorString(e));
}

static int open_device = -1;

static int device_open(int device, struct error *err)
{
    int n = 0;                              /* not written when the driver is missing */
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) return failed(err, e, "no CUDA device can be used");
    if (device < 0 || device >= n) return error_set(err, E_INVALID, "CUDA device %d: this machine has %d", device, n);
    e = cudaSetDevice(device);
    if (e == cudaSuccess) e = cudaFree(NULL);           /* makes the context now, so that its memory is not the first step's surprise */
    if (e != cudaSuccess) return failed(err, e, "open the CUDA device");
    open_device = device;
    return OK;
}

/* Makes no context: a rank that asks about its neighbours' cards must not take hundreds of MiB on each of them. */
static int device_info(int device, struct device_info *out, struct error *err)
{
    struct cudaDeviceProp p;
    size_t free_bytes = 0, total = 0;
    int n = 0;
    memset(out, 0, sizeof *out);
    cudaError_t e = cudaGetDeviceCount(&n);
    if (e != cudaSuccess) return failed(err, e, "no CUDA device can be used");
    if (device < 0 || device >= n) return error_set(err, E_NOTFOUND, "CUDA device %d: this machine has %d", device, n);
    if ((e = cudaGetDeviceProperties(&p, device)) != cudaSuccess) return failed(err, e, "CUDA device properties");
    free_bytes = total = p.totalGlobalMem;
    if (device == open_device && (e = cudaMemGetInfo(&free_bytes, &total)) != cudaSuccess) return failed(err, e, "CUDA memory information");
    (void)snprintf(out->name, sizeof out->name, "%.100s", p.name);
    const unsigned char *u = (const unsigned char *)p.uuid.bytes;
    (void)snprintf(out->uuid, sizeof out->uuid, "GPU-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7],
                   u[8], u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
    out->total_bytes = (int64_t)total;
    out->free_bytes = (int64_t)free_bytes;
    out->cc_major = p.major;
    out->cc_minor = p.minor;
    return OK;
}

static int mem_alloc(void **p, size_t bytes, struct error *err)
{
    *p = NULL;
    if (bytes == 0) return OK;
    cudaError_t e = cudaMalloc(p, bytes);
    if (e == cudaErrorMemoryAllocation) {
        (void)cudaGetLastError();
        return error_set(err, E_NOMEM, "allocate %zu bytes of device memory: there is not that much free", bytes);
    }
    if (e == cudaSuccess) e = cudaMemset(*p, 0, bytes);
    if (e == cudaSuccess) e = cudaStreamSynchronize(NULL);      /* a memset is not done when it returns, and our streams do not wait for it */
    return e == cudaSuccess ? OK : failed(err, e, "allocate device memory");
}

static void mem_free(void *p, size_t bytes)
{
    (void)bytes;
    if (p) (void)cudaFree(p);
}

static int host_alloc(void **p, size_t bytes, struct error *err)
{
    *p = NULL;
    if (bytes == 0) return OK;
    cudaError_t e = cudaMallocHost(p, bytes);
    if (e != cudaSuccess) return failed(err, e, "allocate pinned host memory");
    memset(*p, 0, bytes);
    return OK;
}

static void host_free(void *p, size_t bytes)
{
    (void)bytes;
    if (p) (void)cudaFreeHost(p);
}

static void stream_free(struct stream *s)
{
    if (s == NULL) return;
    cuda_library_release(s);
    cuda_matmul_release(s);
    if (s->parts) (void)cudaFree(s->parts);
    if (s->q) (void)cudaStreamDestroy(s->q);
    free(s);
}

static int stream_new(struct stream **out, bool deterministic, struct error *err)
{
    struct stream *s = xcalloc(1, sizeof *s);
    s->deterministic = deterministic;
    s->attn = ATTN_FLASH;
    *out = NULL;
    cudaError_t e = cudaStreamCreateWithFlags(&s->q, cudaStreamNonBlocking);
    if (e == cudaSuccess) e = cudaMalloc((void **)&s->parts, CUDA_SUM_PARTS * sizeof *s->parts);
    int rc = e == cudaSuccess ? cuda_matmul_prepare(s, err) : failed(err, e, "make a CUDA stream");
    if (rc == OK) *out = s;
    else stream_free(s);
    return rc;
}

static struct { int (*look)(void *arg, struct error *err); void *arg; } watch;

void cuda_watch_set(int (*look)(void *arg, struct error *err), void *arg)
{
    watch.look = look;
    watch.arg = arg;
}

int cuda_wait(cudaStream_t q, const char *what, struct error *err)
{
    enum { SPINS = 200, NAP_NS = 50000 };
    cudaError_t e = cudaSuccess;
    if (watch.look == NULL) e = cudaStreamSynchronize(q);
    else {
        for (int i = 0; (e = cudaStreamQuery(q)) == cudaErrorNotReady; i++) {
            int rc = watch.look(watch.arg, err);
            if (rc != OK) return rc;
            struct timespec nap = { 0, NAP_NS };
            if (i < SPINS) (void)sched_yield();
            else (void)nanosleep(&nap, NULL);
        }
        (void)cudaGetLastError();               /* "not ready" was an answer */
    }
    if (e == cudaSuccess) e = cudaGetLastError();
    return e == cudaSuccess ? OK : failed(err, e, what);
}

static int stream_wait(struct stream *s, struct error *err) { return cuda_wait(s->q, "a kernel failed", err); }

static const char *stream_error(struct stream *s) { return s->text; }

static int event_new(struct event **out, struct error *err)
{
    struct event *x = xcalloc(1, sizeof *x);
    cudaError_t e = cudaEventCreate(&x->e);
    *out = e == cudaSuccess ? x : NULL;
    if (e != cudaSuccess) free(x);
    return e == cudaSuccess ? OK : failed(err, e, "make a CUDA event");
}

static void event_free(struct event *e)
{
    if (e == NULL) return;
    (void)cudaEventDestroy(e->e);
    free(e);
}

static int event_record(struct event *e, struct stream *s) { return cuda_status(s, cudaEventRecord(e->e, s->q), "record an event"); }
static int event_wait(struct stream *s, struct event *e) { return cuda_status(s, cudaStreamWaitEvent(s->q, e->e, 0), "wait for an event"); }

static double event_ms(struct event *from, struct event *to)
{
    float ms = 0.0f;
    return cudaEventElapsedTime(&ms, from->e, to->e) == cudaSuccess ? (double)ms : 0.0;
}

static int copy(struct stream *s, void *dst, const void *src, size_t bytes)
{
    return bytes ? cuda_status(s, cudaMemcpyAsync(dst, src, bytes, cudaMemcpyDefault, s->q), "copy") : OK;
}

static int zero(struct stream *s, void *dst, size_t bytes) { return bytes ? cuda_status(s, cudaMemsetAsync(dst, 0, bytes, s->q), "zero") : OK; }

void cuda_fill_device(struct kernel_ops *ops)
{
    ops->device_open = device_open;
    ops->device_info = device_info;
    ops->mem_alloc = mem_alloc;
    ops->mem_free = mem_free;
    ops->host_alloc = host_alloc;
    ops->host_free = host_free;
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
