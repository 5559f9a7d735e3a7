// runtime.cc - the rest of the CUDA runtime: devices, launches, errors. GPUSIM_DEVICES: how many devices there are (default 1).
#include <stdio.h>
#include <stdlib.h>

#include <map>
#include <mutex>

#include "tests/gpusim/device.h"
#include "tests/gpusim/gpusim.h"

namespace gpusim {

static thread_local cudaError_t last_error;
static thread_local int current_device;
bool any_pointer_allowed;

cudaError_t note(cudaError_t e)
{
    if (e != cudaSuccess) last_error = e;
    return e;
}

enum : size_t { PLAIN_SHARED = 48 << 10, MOST_SHARED = 163 << 10 };     // what sm_80 gives a block without and with asking

static std::mutex attributes_lock;
static std::map<const void *, int> &shared_allowed()
{
    static auto *m = new std::map<const void *, int>;
    return *m;
}

cudaError_t enqueue_kernel(const cudaLaunchConfig_t *c, const void *kernel, const void *const *pointers, int n_pointers, std::function<void()> body)
{
    launch l = { c->gridDim, c->blockDim, c->dynamicSmemBytes, "kernel" };
    uint64_t threads = (uint64_t)l.block.x * l.block.y * l.block.z;
    if (!l.grid.x || !l.grid.y || !l.grid.z || l.grid.x > INT32_MAX || l.grid.y > 65535 || l.grid.z > 65535 || !threads || threads > 1024 || l.block.z > 64)
        return note(cudaErrorInvalidConfiguration);
    {
        std::lock_guard<std::mutex> g(attributes_lock);
        auto it = shared_allowed().find(kernel);
        if (l.shared_bytes > (it == shared_allowed().end() ? PLAIN_SHARED : (size_t)it->second)) return note(cudaErrorInvalidValue);
    }
    for (int i = 0; i < n_pointers && !any_pointer_allowed; i++)
        if (pointers[i] && !is_device(pointers[i], 0) && !is_pinned(pointers[i], 0))
            die("a kernel was given %p as pointer %d, which is neither device nor pinned memory", pointers[i], i);
    op o;
    o.poll = [l, body](bool *) {
        run_grid(l, body);
        return true;
    };
    enqueue(c->stream, std::move(o));
    return cudaSuccess;
}

static int devices()
{
    const char *s = getenv("GPUSIM_DEVICES");
    return s ? atoi(s) : 1;
}

}  // namespace gpusim

using namespace gpusim;

extern "C" {

cudaError_t cudaGetDeviceCount(int *n)
{
    if (devices() <= 0) return note(cudaErrorNoDevice);         // n is left alone, as the real one does on errors
    *n = devices();
    return cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    if (device < 0 || device >= devices()) return note(cudaErrorInvalidDevice);
    current_device = device;
    return cudaSuccess;
}

cudaError_t cudaGetDevice(int *device)
{
    *device = current_device;
    return cudaSuccess;
}

cudaError_t cudaGetDeviceProperties(struct cudaDeviceProp *p, int device)
{
    if (device < 0 || device >= devices()) return note(cudaErrorInvalidDevice);
    *p = {};
    (void)snprintf(p->name, sizeof p->name, "simulated GPU");
    for (int i = 0; i < 16; i++) p->uuid.bytes[i] = (char)(i == 15 ? device : 0x51);
    size_t free_bytes;
    (void)cudaMemGetInfo(&free_bytes, &p->totalGlobalMem);
    p->major = 8;
    p->minor = 0;
    p->warpSize = WARP;
    p->multiProcessorCount = 4;
    p->maxThreadsPerBlock = 1024;
    p->maxThreadsPerMultiProcessor = 2048;
    p->sharedMemPerBlock = PLAIN_SHARED;
    p->sharedMemPerBlockOptin = MOST_SHARED;
    p->pciBusID = device + 1;
    return cudaSuccess;
}

cudaError_t cudaDeviceGetAttribute(int *value, enum cudaDeviceAttr what, int device)
{
    struct cudaDeviceProp p;
    cudaError_t e = cudaGetDeviceProperties(&p, device);
    if (e != cudaSuccess) return e;
    switch (what) {
    case cudaDevAttrComputeCapabilityMajor: *value = p.major; break;
    case cudaDevAttrComputeCapabilityMinor: *value = p.minor; break;
    case cudaDevAttrMultiProcessorCount: *value = p.multiProcessorCount; break;
    case cudaDevAttrMaxSharedMemoryPerBlockOptin: *value = (int)MOST_SHARED; break;
    case cudaDevAttrMaxSharedMemoryPerBlock: *value = (int)PLAIN_SHARED; break;
    case cudaDevAttrWarpSize: *value = WARP; break;
    default: return note(cudaErrorInvalidValue);
    }
    return cudaSuccess;
}

cudaError_t cudaDeviceGetPCIBusId(char *id, int bytes, int device)
{
    if (device < 0 || device >= devices()) return note(cudaErrorInvalidDevice);
    (void)snprintf(id, (size_t)bytes, "0000:%02X:00.0", device + 1);
    return cudaSuccess;
}

cudaError_t cudaDriverGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaRuntimeGetVersion(int *v)
{
    *v = CUDART_VERSION;
    return cudaSuccess;
}

cudaError_t cudaFuncSetAttribute(const void *kernel, cudaFuncAttribute what, int value)
{
    if (what != cudaFuncAttributeMaxDynamicSharedMemorySize) return cudaSuccess;
    if (value < 0 || (size_t)value > MOST_SHARED) return note(cudaErrorInvalidValue);
    std::lock_guard<std::mutex> g(attributes_lock);
    shared_allowed()[kernel] = value;
    return cudaSuccess;
}

cudaError_t cudaGetLastError(void)
{
    cudaError_t e = last_error;
    last_error = cudaSuccess;
    return e;
}

cudaError_t cudaPeekAtLastError(void) { return last_error; }

const char *cudaGetErrorName(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "cudaSuccess";
    case cudaErrorInvalidValue: return "cudaErrorInvalidValue";
    case cudaErrorMemoryAllocation: return "cudaErrorMemoryAllocation";
    case cudaErrorInvalidConfiguration: return "cudaErrorInvalidConfiguration";
    case cudaErrorNoDevice: return "cudaErrorNoDevice";
    case cudaErrorInvalidDevice: return "cudaErrorInvalidDevice";
    case cudaErrorInvalidResourceHandle: return "cudaErrorInvalidResourceHandle";
    case cudaErrorNotReady: return "cudaErrorNotReady";
    default: return "cudaErrorUnknown";
    }
}

const char *cudaGetErrorString(cudaError_t e)
{
    switch (e) {
    case cudaSuccess: return "no error";
    case cudaErrorInvalidValue: return "invalid argument";
    case cudaErrorMemoryAllocation: return "out of memory";
    case cudaErrorInvalidConfiguration: return "invalid configuration argument";
    case cudaErrorNoDevice: return "no CUDA-capable device is detected";
    case cudaErrorInvalidDevice: return "invalid device ordinal";
    case cudaErrorInvalidResourceHandle: return "invalid resource handle";
    case cudaErrorNotReady: return "device not ready";
    default: return "unknown error";
    }
}

}  // extern "C"
