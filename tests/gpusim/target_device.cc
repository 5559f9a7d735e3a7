// target_device.cc - see target.h: the backend's own table on device 0, managed memory.
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpusim/target.h"

extern "C" const struct kernel_ops *ringmaster_cuda_ops(void);

void *target_alloc(size_t bytes)
{
    void *p = NULL;
    cudaError_t e = cudaMallocManaged(&p, bytes ? bytes : 1, cudaMemAttachGlobal);
    if (e == cudaSuccess) return p;
    (void)fprintf(stderr, "allocate %zu bytes: %s\n", bytes, cudaGetErrorString(e));
    exit(1);
}
void target_free(void *p) { (void)cudaFree(p); }
uint64_t target_bank_conflicts() { return 0; }

static const struct kernel_ops *ops;

int target_wait(struct stream *s)
{
    struct error err;
    int rc = ops->stream_wait(s, &err);
    if (rc != OK) (void)fprintf(stderr, "%s\n", err.text);
    return rc;
}

const struct kernel_ops *target_open(struct stream **s)
{
    struct error err;
    struct device_info d;
    ops = ringmaster_cuda_ops();
    if (ops->device_info(0, &d, &err) == OK && ops->device_open(0, &err) == OK && ops->stream_new(s, true, &err) == OK) {
        (void)printf("%s, compute capability %d.%d\n", d.name, d.cc_major, d.cc_minor);
        return ops;
    }
    (void)fprintf(stderr, "skipped: %s\n", err.text);
    return NULL;
}
