// gpu.h - the one header a .cu file includes for the language: CUDA under nvcc, tests/gpusim on the host.
//
// Kernels use no bare __shared__, <<<>>>, asm or launch: GPU_SHARED, GPU_DYN_SHARED, GPU_LAUNCH and prims.cuh stand between, so
// that the same source runs on the CPU, where races and bad indexes can be seen (tests/gpusim/README.md).
#ifndef RM_KERNELS_CUDA_GPU_H
#define RM_KERNELS_CUDA_GPU_H

#include <stdint.h>

#ifdef GPUSIM
#include "gpusim.h"          // found by -I tests/gpusim
// A shared array of type T with dims, e.g. GPU_SHARED(float, partial, [32]). One per source line and block.
#define GPU_SHARED(T, name, dims)                                                                   \
    typedef T name##_shared_type dims;                                                              \
    static const char name##_site = 0;                                                              \
    name##_shared_type &name =                                                                      \
        *(name##_shared_type *)gpusim::shared_static(&name##_site, sizeof(name##_shared_type), #name)
#define GPU_DYN_SHARED(T, name) T *name = (T *)gpusim::shared_dynamic()
#else
#include <cuda_bf16.h>
#include <cuda_runtime.h>
#include <math_constants.h>
#define GPU_SHARED(T, name, dims) __shared__ T name dims
#define GPU_DYN_SHARED(T, name)                                                                     \
    extern __shared__ __align__(1024) unsigned char gpu_dynamic_shared[];                           \
    T *name = (T *)gpu_dynamic_shared
#endif

// Queues kernel on stream; kernel may be a template instance in parentheses: GPU_LAUNCH((k<64, true>), …). Result: cudaError_t.
#define GPU_LAUNCH(kernel, grid_, block_, smem_, stream_, ...)                                      \
    [&]() -> cudaError_t {                                                                          \
        cudaLaunchConfig_t config = {};                                                             \
        config.gridDim = grid_;                                                                     \
        config.blockDim = block_;                                                                   \
        config.dynamicSmemBytes = smem_;                                                            \
        config.stream = stream_;                                                                    \
        return cudaLaunchKernelEx(&config, kernel, __VA_ARGS__);                                    \
    }()

#endif
