// prims.cuh - what the attention kernels need beyond CUDA C: inline PTX on the device, the emulator's calls on the host.
// All of them are warp-wide where PTX is (.sync.aligned): every lane must come.
#ifndef RM_KERNELS_CUDA_PRIMS_CUH
#define RM_KERNELS_CUDA_PRIMS_CUH

#include "kernels/cuda/gpu.h"

// c += a b for one 16x8 tile: a 16x16 row-major, b 16x8 column-major, bf16 in, fp32 sums. Fragments as in the PTX manual,
// "Matrix Fragments for mma.m16n8k16": lane l holds rows l/4 and l/4+8, columns 2(l%4), +1 (and +8, +9).
__device__ __forceinline__ void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1)
{
#if defined(__CUDA_ARCH__)
    asm volatile("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};\n"
                 : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b0), "r"(b1));
#elif defined(GPUSIM)
    gpusim::mma_m16n8k16(c, a, b0, b1);
#endif
}

// Four 8x8 matrices of 16-bit elements; lane l gives the address of row l%8 of matrix l/8 (16-byte aligned, shared memory).
__device__ __forceinline__ void ldmatrix_x4(uint32_t (&r)[4], const void *row)
{
#if defined(__CUDA_ARCH__)
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
#elif defined(GPUSIM)
    gpusim::ldmatrix(r, row, 4, false);
#endif
}

__device__ __forceinline__ void ldmatrix_x4_trans(uint32_t (&r)[4], const void *row)
{
#if defined(__CUDA_ARCH__)
    uint32_t at = (uint32_t)__cvta_generic_to_shared(row);
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0,%1,%2,%3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3]) : "r"(at) : "memory");
#elif defined(GPUSIM)
    gpusim::ldmatrix(r, row, 4, true);
#endif
}

// 16 bytes from global to shared memory, later; of them the first src_bytes (0 or 16) are read, the rest is zero-filled.
__device__ __forceinline__ void cp_async16(void *shared, const void *global, int src_bytes)
{
#if defined(__CUDA_ARCH__)
    uint32_t at = (uint32_t)__cvta_generic_to_shared(shared);
    asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" :: "r"(at), "l"(global), "r"(src_bytes) : "memory");
#elif defined(GPUSIM)
    gpusim::cp_async(shared, global, 16, (uint32_t)src_bytes);
#endif
}

__device__ __forceinline__ void cp_async_commit()
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.commit_group;\n" ::: "memory");
#elif defined(GPUSIM)
    gpusim::cp_async_commit();
#endif
}

// Waits until at most PENDING of this thread's groups are under way; other threads' copies need a barrier after it.
template <int PENDING> __device__ __forceinline__ void cp_async_wait()
{
#if defined(__CUDA_ARCH__)
    asm volatile("cp.async.wait_group %0;\n" :: "n"(PENDING) : "memory");
#elif defined(GPUSIM)
    gpusim::cp_async_wait(PENDING);
#endif
}

// 2^x; ex2.approx: 2 ulp, denormal results flushed to 0.
__device__ __forceinline__ float exp2_fast(float x)
{
#if defined(__CUDA_ARCH__)
    float y;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
#else
    return exp2f(x);
#endif
}

// Two floats as one register of two bf16, low half first, rounded to nearest even.
__device__ __forceinline__ uint32_t pack_bf16(float low, float high)
{
    __nv_bfloat162 v = __floats2bfloat162_rn(low, high);
    uint32_t bits;
    memcpy(&bits, &v, sizeof bits);
    return bits;
}

#endif
