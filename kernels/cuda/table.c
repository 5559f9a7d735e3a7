/* table.c - the CUDA backend's table: what the worker finds in the module it opens at run time. */
#include "kernels/cuda/backend.h"

const struct kernel_ops *ringmaster_cuda_ops(void);

const struct kernel_ops *ringmaster_cuda_ops(void)
{
    static struct kernel_ops ops = { .name = "cuda" };
    cuda_fill_device(&ops);
    cuda_fill_matmul(&ops);
    cuda_fill_elementwise(&ops);
    cuda_fill_norm(&ops);
    cuda_fill_rope(&ops);
    cuda_fill_loss(&ops);
    cuda_fill_optimizer(&ops);
    cuda_fill_attention(&ops);
    cuda_fill_choose(&ops);
    return &ops;
}
