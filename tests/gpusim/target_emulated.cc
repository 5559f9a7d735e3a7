// target_emulated.cc - see target.h: the kernels' launchers over the emulator, memory from the heap.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpusim/target.h"

namespace gpusim {
uint64_t bank_conflicts();
extern bool any_pointer_allowed;
}

extern "C" int cuda_refuse(struct stream *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(s->text, sizeof s->text, fmt, ap);
    va_end(ap);
    return E_INVALID;
}
extern "C" int cuda_status(struct stream *s, cudaError_t e, const char *what)
{
    if (e != cudaSuccess) (void)snprintf(s->text, sizeof s->text, "%s: error %d", what, (int)e);
    return e == cudaSuccess ? OK : E_CUDA;
}

void *target_alloc(size_t bytes)
{
    void *p = malloc(bytes ? bytes : 1);
    if (p == NULL) abort();
    return p;
}
void target_free(void *p) { free(p); }
int target_wait(struct stream *) { return OK; }
uint64_t target_bank_conflicts() { return gpusim::bank_conflicts(); }

static const char *error_of(struct stream *s) { return s->text; }

const struct kernel_ops *target_open(struct stream **s)
{
    static struct kernel_ops ops;
    static struct stream stream;
    static double parts[CUDA_SUM_PARTS];
    if (setenv("GPUSIM_STREAMS", "sync", 1) != 0) abort();      // these tests read results at once, and their memory is the host's
    gpusim::any_pointer_allowed = true;
    kernel_cpu_threads(1);
    if (cuda_matmul_prepare(&stream, NULL) != OK) return NULL;
    stream.attn = ATTN_FLASH;
    stream.parts = parts;
    *s = &stream;
    ops.error = error_of;
    cuda_fill_matmul(&ops);
    cuda_fill_elementwise(&ops);
    cuda_fill_norm(&ops);
    cuda_fill_rope(&ops);
    cuda_fill_loss(&ops);
    cuda_fill_optimizer(&ops);
    cuda_fill_attention(&ops);
    return &ops;
}
