/* ops.c - where a caller gets the CUDA table: from a module opened at run time, so that a worker without toolkit libraries, driver
 * or device still starts and can say which of them is missing. The CPU's table comes from cpu/cpu.c. */
#include "kernels/kernels.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "api/file.h"

typedef const struct kernel_ops *(*cuda_table)(void);

static void *module;

/* The module's file: what RINGMASTER_CUDA_MODULE names (another build of the backend; tests/gpusim's, on simulated GPUs), else the one beside the
 * program. */
static char *module_path(struct error *err)
{
    const char *named = getenv("RINGMASTER_CUDA_MODULE");
    if (named == NULL || *named == '\0') {
        char *path = sibling_program("ringmaster-cuda.so");
        if (path == NULL) error_set(err, E_UNSUPPORTED, "device cuda: this build has no CUDA backend; use device cpu, or auto");
        return path;
    }
    struct stat st;
    char *path = realpath(named, NULL);
    if (path && stat(path, &st) == 0 && S_ISREG(st.st_mode)) return path;
    error_set(err, E_UNSUPPORTED, "device cuda: RINGMASTER_CUDA_MODULE=%.300s: %s", named, path ? "not a regular file" : strerror(errno));
    free(path);
    return NULL;
}

const struct kernel_ops *kernel_ops_cuda_module(struct error *err)
{
    static const struct kernel_ops *ops;
    if (ops) return ops;
    char *path = module_path(err);
    if (path == NULL) return NULL;
    void *found = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    free(path);
    cuda_table table = NULL;
    if (found) *(void **)&table = dlsym(found, "ringmaster_cuda_ops");
    if (table == NULL) {
        error_set(err, E_UNSUPPORTED, "device cuda: the backend cannot be loaded: %s", dlerror());
        return NULL;
    }
    module = found;
    return ops = table();
}

void *kernel_cuda_symbol(const char *name) { return module ? dlsym(module, name) : NULL; }

const struct kernel_ops *kernel_ops_cuda(struct error *err)
{
    const struct kernel_ops *ops = kernel_ops_cuda_module(err);
    struct device_info first;
    if (ops == NULL || ops->device_info(0, &first, err) == OK) return ops;
    (void)error_prefix(err, "device cuda");
    return NULL;
}
