// gpusim.h - CUDA C on the CPU, for tests: the language part (what <cuda_runtime.h> would give a .cu file).
//
// A block's threads are fibers on one OS thread; barriers and warp collectives are rendezvous points where the emulator decides
// who goes on, in adversarial orders (GPUSIM_SEED: 0 forward with copies as late as possible, 1 reverse with copies at once,
// 2… random). Blocks run one after another. Types and prototypes come from the toolkit's own headers, so the compiler checks
// every signature; the runtime's functions are in runtime.cc, stream.cc and allocation.cc.
#ifndef RM_TESTS_GPUSIM_GPUSIM_H
#define RM_TESTS_GPUSIM_GPUSIM_H

#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <array>
#include <functional>
#include <tuple>
#include <type_traits>
#include <utility>

#include <cuda_runtime_api.h>
#include <cuda_bf16.h>      // has host code for __nv_bfloat16
#include <math_constants.h>
#define __CUDA_RUNTIME_H__      // nccl.h would include it; its templates are ours, below

#include "tests/gpusim/checks.h"

#undef __global__
#define __global__ __attribute__((noinline))        // keeps the kernel's name and lines in reports
#undef __shared__
#define __shared__ use_GPU_SHARED_instead
#undef __forceinline__
#define __forceinline__ inline __attribute__((always_inline))
#undef __launch_bounds__
#define __launch_bounds__(...)

namespace gpusim {

enum { WARP = 32 };
#define GPUSIM_PLACE const char *file = __builtin_FILE(), int line = __builtin_LINE()

// --- what the running thread is ---
struct fiber;
extern fiber *cur;
const uint3 &thread_index();
uint32_t lane();

// --- rendezvous ---
void syncthreads(const char *file, int line);
void named_barrier(int id, int threads, bool arrive_only, GPUSIM_PLACE);
// The last lane of mask to arrive runs fn(args by lane, mask). orders: also a memory barrier among them (__syncwarp).
typedef void (*warp_fn)(void **args, uint32_t mask);
void warp_collective(const char *what, uint32_t mask, void *args, warp_fn fn, bool orders, const char *file, int line);

// --- memory ---
void *shared_static(const void *site, size_t bytes, const char *name);
void *shared_dynamic();
void shared_check(const void *p, size_t bytes, const char *what, const char *file, int line);     // inside this block's shared memory
void cp_async(void *shared, const void *global, uint32_t bytes, uint32_t src_bytes, GPUSIM_PLACE);
void cp_async_commit();
void cp_async_wait(uint32_t pending);
void fence();

// --- tensor cores (prims.cc) ---
void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, GPUSIM_PLACE);
void ldmatrix(uint32_t (&r)[4], const void *row, int n, bool trans, GPUSIM_PLACE);
// Bank conflicts of ldmatrix and cp.async seen so far: extra cycles beyond one per 8-row phase.
uint64_t bank_conflicts();

// --- launches ---
struct launch { dim3 grid, block; size_t shared_bytes; const char *name; };
void run_grid(const launch &l, const std::function<void()> &body);      // on the calling OS thread, to its end
extern uint64_t only_last_blocks;       // above 0: of each grid only so many; what far indexes need of a huge one (far.cc)
// pointers: the kernel's arguments that are pointers; each must be memory a device can reach, unless any_pointer_allowed (device.h). runtime.cc
cudaError_t enqueue_kernel(const cudaLaunchConfig_t *config, const void *kernel, const void *const *pointers, int n_pointers, std::function<void()> body);

template <class T> struct shuffle_arg { T value, out; uint32_t from; };

template <class T> __attribute__((no_sanitize("thread"))) void shuffle_fn(void **args, uint32_t mask)
{
    for (uint32_t m = mask; m; m &= m - 1) {
        auto *x = (shuffle_arg<T> *)args[__builtin_ctz(m)];
        if (mask >> x->from & 1) x->out = ((shuffle_arg<T> *)args[x->from])->value;
        else memset(&x->out, 0xff, sizeof(T));      // reading a lane that is not there is undefined: poison
    }
}

template <class T> T shuffle(const char *what, uint32_t mask, T v, uint32_t from, const char *file, int line)
{
    shuffle_arg<T> a = { v, v, from };
    warp_collective(what, mask, &a, shuffle_fn<T>, false, file, line);
    return a.out;
}

uint32_t ballot(uint32_t mask, bool predicate, const char *file, int line);

template <class T> T atomic_loop(T *p, T v, T (*f)(T, T))
{
    typedef typename std::conditional<sizeof(T) == 4, uint32_t, uint64_t>::type bits;
    static_assert(sizeof(T) == 4 || sizeof(T) == 8, "");
    bits old = __atomic_load_n((bits *)p, __ATOMIC_RELAXED), next;
    T before;
    do {
        memcpy(&before, &old, sizeof before);
        T after = f(before, v);
        memcpy(&next, &after, sizeof next);
    } while (!__atomic_compare_exchange_n((bits *)p, &old, next, false, __ATOMIC_RELAXED, __ATOMIC_RELAXED));
    return before;
}

}  // namespace gpusim

#define threadIdx (gpusim::thread_index())
extern uint3 blockIdx;              // variables, not macros: cudaLaunchConfig_t has members of the last two names
extern dim3 blockDim, gridDim;
enum { warpSize = 32 };

static inline void gpusim_syncthreads(GPUSIM_PLACE) { gpusim::syncthreads(file, line); }
#define __syncthreads() gpusim_syncthreads()
static inline void __syncwarp(uint32_t mask = 0xffffffffu, GPUSIM_PLACE)
{
    gpusim::warp_collective("__syncwarp", mask, nullptr, nullptr, true, file, line);
}
template <class T> static inline T __shfl_sync(uint32_t mask, T v, int src, int width = 32, GPUSIM_PLACE)
{
    uint32_t base = gpusim::lane() & ~(uint32_t)(width - 1);
    return gpusim::shuffle("__shfl_sync", mask, v, base + ((uint32_t)src & (uint32_t)(width - 1)), file, line);
}
template <class T> static inline T __shfl_xor_sync(uint32_t mask, T v, int x, int width = 32, GPUSIM_PLACE)
{
    uint32_t l = gpusim::lane(), from = l ^ (uint32_t)x;
    return gpusim::shuffle("__shfl_xor_sync", mask, v, from / (uint32_t)width > l / (uint32_t)width ? l : from, file, line);
}
template <class T> static inline T __shfl_down_sync(uint32_t mask, T v, unsigned d, int width = 32, GPUSIM_PLACE)
{
    uint32_t l = gpusim::lane();
    return gpusim::shuffle("__shfl_down_sync", mask, v, (l & (uint32_t)(width - 1)) + d >= (uint32_t)width ? l : l + d, file, line);
}
template <class T> static inline T __shfl_up_sync(uint32_t mask, T v, unsigned d, int width = 32, GPUSIM_PLACE)
{
    uint32_t l = gpusim::lane();
    return gpusim::shuffle("__shfl_up_sync", mask, v, (l & (uint32_t)(width - 1)) < d ? l : l - d, file, line);
}
static inline uint32_t __ballot_sync(uint32_t mask, int p, GPUSIM_PLACE) { return gpusim::ballot(mask, p != 0, file, line); }
static inline int __any_sync(uint32_t mask, int p, GPUSIM_PLACE) { return gpusim::ballot(mask, p != 0, file, line) != 0; }
static inline int __all_sync(uint32_t mask, int p, GPUSIM_PLACE) { return gpusim::ballot(mask, p != 0, file, line) == mask; }

template <class T> static inline T atomicAdd(T *p, T v) { return gpusim::atomic_loop<T>(p, v, [](T a, T b) -> T { return a + b; }); }
template <class T> static inline T atomicMax(T *p, T v) { return gpusim::atomic_loop<T>(p, v, [](T a, T b) -> T { return a > b ? a : b; }); }
template <class T> static inline T atomicMin(T *p, T v) { return gpusim::atomic_loop<T>(p, v, [](T a, T b) -> T { return a < b ? a : b; }); }
template <class T> static inline T atomicExch(T *p, T v) { return gpusim::atomic_loop<T>(p, v, [](T, T b) -> T { return b; }); }
static inline void __threadfence() { gpusim::fence(); }
static inline void __threadfence_block() { gpusim::fence(); }

#define __expf(x) expf(x)           // glibc declares functions of these names itself
#define __logf(x) logf(x)
static inline float rsqrtf(float x) { return 1.0f / sqrtf(x); }
static inline float __fdividef(float a, float b) { return a / b; }
static inline uint32_t __float_as_uint(float f) { uint32_t u; memcpy(&u, &f, sizeof u); return u; }
static inline float __int_as_float(int i) { float f; memcpy(&f, &i, sizeof f); return f; }
static inline float __uint_as_float(uint32_t u) { float f; memcpy(&f, &u, sizeof f); return f; }
static inline uint32_t __umulhi(uint32_t a, uint32_t b) { return (uint32_t)((uint64_t)a * b >> 32); }
template <class T> static inline T __ldg(const T *p) { return *p; }
template <class T> static inline T min(T a, T b) { return a < b ? a : b; }
template <class T> static inline T max(T a, T b) { return a > b ? a : b; }

template <class T> static inline const void *gpusim_pointer(T *p) { return (const void *)p; }
template <class T> static inline const void *gpusim_pointer(const T &) { return nullptr; }
template <class... P, class... A>
static inline cudaError_t cudaLaunchKernelEx(const cudaLaunchConfig_t *config, void (*kernel)(P...), A &&...a)
{
    std::tuple<std::decay_t<P>...> args(static_cast<P>(std::forward<A>(a))...);
    const auto pointers = std::apply([](auto... x) { return std::array<const void *, sizeof...(P)>{ gpusim_pointer(x)... }; }, args);
    return gpusim::enqueue_kernel(config, (const void *)kernel, pointers.data(), (int)sizeof...(P), [kernel, args]() { std::apply(kernel, args); });
}
template <class... P> static inline cudaError_t cudaFuncSetAttribute(void (*kernel)(P...), cudaFuncAttribute what, int value)
{
    return cudaFuncSetAttribute((const void *)kernel, what, value);
}

#endif
