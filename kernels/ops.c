/* ops.c - where a caller gets its table. The CPU's comes from cpu/cpu.c; CUDA is not built yet and says so. */
#include "kernels/kernels.h"

const struct kernel_ops *kernel_ops_cuda(struct error *err)
{
    error_set(err, E_UNSUPPORTED, "device cuda: this build has no CUDA backend; use device cpu, or auto");
    return NULL;
}
