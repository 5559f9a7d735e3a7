// common.cuh - what the token-local kernels share: loads and stores by type, grids, block sums in a fixed order.
#ifndef RM_KERNELS_CUDA_COMMON_CUH
#define RM_KERNELS_CUDA_COMMON_CUH

#include "kernels/cuda/backend.h"
#include "kernels/cuda/gpu.h"

typedef __nv_bfloat16 gbf16;

__device__ __forceinline__ float to_float(float x) { return x; }
__device__ __forceinline__ float to_float(gbf16 x) { return __bfloat162float(x); }
__device__ __forceinline__ float to_float(double x) { return (float)x; }
template <class T> __device__ __forceinline__ T from_float(float x);
template <> __device__ __forceinline__ float from_float<float>(float x) { return x; }
template <> __device__ __forceinline__ gbf16 from_float<gbf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ double from_float<double>(float x) { return (double)x; }

enum { THREADS = 256 };

// Enough blocks to fill a card; kernels stride over the rest, so any 64-bit size works.
static inline dim3 grid_for(int64_t n)
{
    int64_t blocks = (n + THREADS - 1) / THREADS;
    return dim3((unsigned)(blocks < 1 ? 1 : blocks > 65536 ? 65536 : blocks));
}

// for (i over 0..n) split over the grid
#define GRID_STRIDE(i, n) \
    for (int64_t i = (int64_t)blockIdx.x * blockDim.x + threadIdx.x, i##_step = (int64_t)gridDim.x * blockDim.x; i < (n); i += i##_step)

// Sum over the block's THREADS threads, in a fixed order; every thread gets it. `partial`: shared, 32 entries.
template <class T> __device__ __forceinline__ T block_sum(T x, T *partial)
{
    for (int d = 16; d > 0; d /= 2) x += __shfl_xor_sync(0xffffffffu, x, d);
    __syncthreads();            // partial may still be read from the last call
    if (threadIdx.x % 32 == 0) partial[threadIdx.x / 32] = x;
    __syncthreads();
    T sum = 0;
    for (int w = 0; w < THREADS / 32; w++) sum += partial[w];
    return sum;
}

// Calls launcher<T> for the two activation types; others are refused by name.
#define BY_TYPE(s, op, dt, CALL_F32, CALL_BF16)                                                     \
    ((dt) == DT_F32 ? cuda_status(s, CALL_F32, op) : (dt) == DT_BF16 ? cuda_status(s, CALL_BF16, op)  \
                    : cuda_refuse(s, "%s: type %s is not supported on CUDA", op, dtype_name(dt)))

#endif
