// allocation.cc - device and pinned memory: who owns which address, and copies between them.
//
// Device memory is filled with 0xff (NaN) when it is made, ends at a guard page, and is unreadable while the device rests, so that
// host code which touches it stops with a message. GPUSIM_MEMORY: bytes a device has (default 16 GiB). GPUSIM_TAKEN: bytes of them
// that look free and are not, as if somebody else had taken them since.
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include <map>
#include <mutex>

#include "tests/gpusim/device.h"

#if defined(__SANITIZE_ADDRESS__)
#define GPUSIM_ASAN 1
extern "C" void __asan_poison_memory_region(const volatile void *p, size_t n);
extern "C" void __asan_unpoison_memory_region(const volatile void *p, size_t n);
#endif

namespace gpusim {

struct allocation { size_t bytes; char *pages; size_t page_bytes; };

struct memory {
    std::mutex lock;
    std::map<uintptr_t, allocation> device, pinned;
    size_t used = 0, limit = (size_t)16 << 30, taken = 0;
    int open = 0;                           // how many are executing operations
};

static memory &mem()
{
    static memory *m = [] {
        memory *x = new memory;
        const char *s = getenv("GPUSIM_MEMORY");
        if (s) x->limit = strtoull(s, nullptr, 0);
        if ((s = getenv("GPUSIM_TAKEN"))) x->taken = strtoull(s, nullptr, 0);
        return x;
    }();
    return *m;
}

static const allocation *holder(const std::map<uintptr_t, allocation> &in, const void *p, size_t bytes, bool whole, uintptr_t *start = nullptr)
{
    uintptr_t a = (uintptr_t)p;
    auto it = in.upper_bound(whole ? a : a + (bytes ? bytes - 1 : 0));
    if (it == in.begin()) return nullptr;
    --it;
    uintptr_t end = it->first + it->second.bytes;
    bool hit = whole ? a >= it->first && a + bytes <= end : a < end && a + bytes > it->first;
    if (hit && start) *start = it->first;
    return hit ? &it->second : nullptr;
}

bool is_device(const void *p, size_t bytes)
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    return holder(m.device, p, bytes, true) != nullptr;
}

bool touches_device(const void *p, size_t bytes)
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    return holder(m.device, p, bytes, false) != nullptr;
}

bool is_pinned(const void *p, size_t bytes)
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    return holder(m.pinned, p, bytes, true) != nullptr;
}

static void protect(memory &m, int how)
{
    for (auto &a : m.device)
        if (mprotect(a.second.pages, a.second.page_bytes, how) != 0) die("mprotect of device memory failed");
}

void memory_open()
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    if (m.open++ == 0) protect(m, PROT_READ | PROT_WRITE);
}

void memory_close()
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    if (--m.open == 0) protect(m, PROT_NONE);
}

static void on_fault(int sig, siginfo_t *info, void *)
{
    bool device = false;                    // no lock: a message is worth more than the small risk
    for (auto &a : mem().device) device |= (uintptr_t)info->si_addr - (uintptr_t)a.second.pages < a.second.page_bytes;
    static const char host[] = "gpusim: host code touched device memory\n", wild[] = "gpusim: access outside any allocation\n";
    if (write(2, device ? host : wild, device ? sizeof host - 1 : sizeof wild - 1) < 0) _exit(70);
    (void)signal(sig, SIG_DFL);             // the faulting instruction runs again, and ends the process as it would have
}

static void watch_faults()
{
#ifndef GPUSIM_ASAN
    static bool once;
    if (once) return;
    once = true;
    struct sigaction sa = {};
    sa.sa_sigaction = on_fault;
    sa.sa_flags = SA_SIGINFO | SA_ONSTACK;
    (void)sigaction(SIGSEGV, &sa, nullptr);
#endif
}

static cudaError_t device_alloc(void **p, size_t bytes, size_t align)
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    if (bytes + m.used + m.taken > m.limit) return note(cudaErrorMemoryAllocation);
    watch_faults();
    size_t page = 4096, padded = (bytes + align - 1) / align * align, pages = (padded + page - 1) / page * page;
    char *base = (char *)mmap(nullptr, pages + page, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return note(cudaErrorMemoryAllocation);
    memset(base, 0xff, pages);
    char *at = base + pages - padded;       // the end meets the guard page
#ifdef GPUSIM_ASAN
    __asan_poison_memory_region(base, (size_t)(at - base));
    __asan_poison_memory_region(at + bytes, padded - bytes);
#endif
    if (mprotect(base + pages, page, PROT_NONE) != 0 || (m.open == 0 && mprotect(base, pages, PROT_NONE) != 0)) die("mprotect of device memory failed");
    m.device[(uintptr_t)at] = { bytes, base, pages };
    m.used += bytes;
    *p = at;
    return cudaSuccess;
}

}  // namespace gpusim

using namespace gpusim;

extern "C" {

cudaError_t cudaMalloc(void **p, size_t bytes) { return device_alloc(p, bytes, 256); }

// As CUDA does, waits for everything first.
cudaError_t cudaFree(void *p)
{
    if (!p) return cudaSuccess;
    wait_for_all();
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    auto it = m.device.find((uintptr_t)p);
    if (it == m.device.end()) return note(cudaErrorInvalidValue);
    m.used -= it->second.bytes;
#ifdef GPUSIM_ASAN
    __asan_unpoison_memory_region(it->second.pages, it->second.page_bytes);
#endif
    (void)munmap(it->second.pages, it->second.page_bytes + 4096);
    m.device.erase(it);
    return cudaSuccess;
}

cudaError_t cudaMemGetInfo(size_t *free_bytes, size_t *total)
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    *total = m.limit;
    *free_bytes = m.limit - m.used;
    return cudaSuccess;
}

cudaError_t cudaHostAlloc(void **p, size_t bytes, unsigned)
{
    memory &m = mem();
    *p = nullptr;
    if (bytes == 0) return cudaSuccess;
    size_t pages = (bytes + 4095) / 4096 * 4096;
    char *base = (char *)mmap(nullptr, pages, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (base == MAP_FAILED) return note(cudaErrorMemoryAllocation);
    memset(base, 0xff, bytes);
    std::lock_guard<std::mutex> l(m.lock);
    m.pinned[(uintptr_t)base] = { bytes, base, pages };
    *p = base;
    return cudaSuccess;
}

cudaError_t cudaMallocHost(void **p, size_t bytes) { return cudaHostAlloc(p, bytes, cudaHostAllocDefault); }

cudaError_t cudaFreeHost(void *p)
{
    if (!p) return cudaSuccess;
    wait_for_all();
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    auto it = m.pinned.find((uintptr_t)p);
    if (it == m.pinned.end() || !it->second.pages) return note(cudaErrorInvalidValue);
    (void)munmap(it->second.pages, it->second.page_bytes);
    m.pinned.erase(it);
    return cudaSuccess;
}

cudaError_t cudaHostRegister(void *p, size_t bytes, unsigned)
{
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    if (!p || bytes == 0) return note(cudaErrorInvalidValue);
    if (holder(m.pinned, p, bytes, false)) return note(cudaErrorHostMemoryAlreadyRegistered);
    m.pinned[(uintptr_t)p] = { bytes, nullptr, 0 };
    return cudaSuccess;
}

cudaError_t cudaHostUnregister(void *p)
{
    wait_for_all();
    memory &m = mem();
    std::lock_guard<std::mutex> l(m.lock);
    auto it = m.pinned.find((uintptr_t)p);
    if (it == m.pinned.end() || it->second.pages) return note(cudaErrorHostMemoryNotRegistered);
    m.pinned.erase(it);
    return cudaSuccess;
}

cudaError_t cudaPointerGetAttributes(struct cudaPointerAttributes *a, const void *p)
{
    *a = {};
    a->type = is_device(p, 1) ? cudaMemoryTypeDevice : is_pinned(p, 1) ? cudaMemoryTypeHost : cudaMemoryTypeUnregistered;
    a->devicePointer = a->type == cudaMemoryTypeUnregistered ? nullptr : (void *)p;
    a->hostPointer = a->type == cudaMemoryTypeDevice ? nullptr : (void *)p;
    return cudaSuccess;
}

// What CUDA says about the host: from pageable memory, the source is read before the call returns; to pageable memory, and between
// host addresses, the call returns when the copy is done; everything else comes later, in the stream's order.
cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes, cudaMemcpyKind kind, cudaStream_t s)
{
    if (bytes == 0) return cudaSuccess;
    bool to_device = is_device(to, bytes), from_device = is_device(from, bytes);
    if (!to || !from || (!to_device && touches_device(to, bytes)) || (!from_device && touches_device(from, bytes)))
        return note(cudaErrorInvalidValue);         // NULL, or beyond an allocation's end
    if ((kind == cudaMemcpyHostToDevice && (!to_device || from_device)) || (kind == cudaMemcpyDeviceToHost && (to_device || !from_device)) ||
        (kind == cudaMemcpyDeviceToDevice && !(to_device && from_device)) || (kind == cudaMemcpyHostToHost && (to_device || from_device)))
        return note(cudaErrorInvalidValue);
    op o;
    if (to_device && !from_device && !is_pinned(from, bytes)) {
        std::shared_ptr<char> staged((char *)malloc(bytes), free);
        memcpy(staged.get(), from, bytes);
        o.poll = [to, staged, bytes](bool *) { memcpy(to, staged.get(), bytes); return true; };
    } else o.poll = [to, from, bytes](bool *) { memmove(to, from, bytes); return true; };
    enqueue(s, std::move(o));
    if (!to_device && (!from_device || !is_pinned(to, bytes))) wait_for(stream_end(s));
    return cudaSuccess;
}

cudaError_t cudaMemcpy(void *to, const void *from, size_t bytes, cudaMemcpyKind kind)
{
    cudaError_t e = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    if (e == cudaSuccess && !(is_device(to, bytes) && is_device(from, bytes))) wait_for(stream_end(nullptr));
    return e;
}

cudaError_t cudaMemsetAsync(void *p, int value, size_t bytes, cudaStream_t s)
{
    if (bytes == 0) return cudaSuccess;
    if (!is_device(p, bytes)) return note(cudaErrorInvalidValue);
    op o;
    o.poll = [p, value, bytes](bool *) { memset(p, value, bytes); return true; };
    enqueue(s, std::move(o));
    return cudaSuccess;
}

// On device memory this is asynchronous to the host, and a stream that is not blocking does not wait for it.
cudaError_t cudaMemset(void *p, int value, size_t bytes) { return cudaMemsetAsync(p, value, bytes, nullptr); }

}  // extern "C"

namespace gpusim {
cudaError_t device_alloc_pages(void **p, size_t bytes) { return device_alloc(p, bytes, 4096); }
}
