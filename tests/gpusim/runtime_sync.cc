// runtime_sync.cc - the smallest CUDA runtime: every call is done when it returns. For kernel tests; the worker's stand-in, where
// streams run behind and out of step, is runtime.cc.
#include <stdlib.h>

#include "tests/gpusim/gpusim.h"

namespace gpusim {

cudaError_t enqueue_kernel(const cudaLaunchConfig_t *config, const void *, std::function<void()> body)
{
    launch l = { config->gridDim, config->blockDim, config->dynamicSmemBytes, "kernel" };
    run_grid(l, body);
    return cudaSuccess;
}

}  // namespace gpusim

extern "C" {
cudaError_t cudaFuncSetAttribute(const void *, cudaFuncAttribute, int) { return cudaSuccess; }
const char *cudaGetErrorString(cudaError_t) { return "error"; }
}
