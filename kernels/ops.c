/* ops.c - where a caller gets the CUDA table: from a module opened at run time, so that a worker without toolkit libraries, driver
 * or device still starts and can say which of them is missing. The CPU's table comes from cpu/cpu.c. */
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <stdlib.h>

#include "api/file.h"

typedef const struct kernel_ops *(*cuda_table)(void);

/* Training on GPUs needs NCCL and device buffers for what crosses ranks; until the transport is there, a job must not land on a GPU
 * by itself. The kernels can be had by tests through kernel_ops_cuda_module(). */
static const char unfinished[] = "training on GPUs is not finished in this version: the kernels are there, the NCCL transport is not; use device cpu";

const struct kernel_ops *kernel_ops_cuda_module(struct error *err)
{
    static const struct kernel_ops *ops;
    if (ops) return ops;
    char *path = sibling_program("ringmaster-cuda.so");
    if (path == NULL) {
        error_set(err, E_UNSUPPORTED, "device cuda: this build has no CUDA backend; use device cpu, or auto");
        return NULL;
    }
    void *module = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    free(path);
    cuda_table table = NULL;
    if (module) *(void **)&table = dlsym(module, "ringmaster_cuda_ops");
    if (table == NULL) {
        error_set(err, E_UNSUPPORTED, "device cuda: the backend cannot be loaded: %s", dlerror());
        return NULL;
    }
    struct device_info first;
    const struct kernel_ops *found = table();
    if (found->device_info(0, &first, err) != OK) {
        (void)error_prefix(err, "device cuda");
        return NULL;
    }
    return ops = found;
}

const struct kernel_ops *kernel_ops_cuda(struct error *err)
{
    if (kernel_ops_cuda_module(err) == NULL) return NULL;
    error_set(err, E_UNSUPPORTED, "device cuda: %s", unfinished);
    return NULL;
}
