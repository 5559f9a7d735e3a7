// memory.cc - shared memory (poisoned, fenced) and asynchronous copies.
#include <stdlib.h>

#include "tests/gpusim/block.h"

namespace gpusim {

// Raw stores: TSan intercepts libc's memset and memcpy even from code it does not instrument.
static void raw_set(void *p, int v, size_t n)
{
#if defined(__x86_64__)
    asm volatile("rep stosb" : "+D"(p), "+c"(n) : "a"(v) : "memory");
#else
    for (size_t i = 0; i < n; i++) ((volatile char *)p)[i] = (char)v;
#endif
}

static void raw_copy(void *to, const void *from, size_t n)
{
#if defined(__x86_64__)
    asm volatile("rep movsb" : "+D"(to), "+S"(from), "+c"(n) : : "memory");
#else
    for (size_t i = 0; i < n; i++) ((volatile char *)to)[i] = ((const volatile char *)from)[i];
#endif
}

#ifdef GPUSIM_LINK_TSAN
// pc: the kernel's line, pushed on TSan's shadow stack so that the report shows it
void tsan_read(const void *p, size_t n, void *pc)
{
    __tsan_func_entry(pc);
    __tsan_read_range((void *)p, n);
    __tsan_func_exit();
}
void tsan_write(void *p, size_t n, void *pc)
{
    __tsan_func_entry(pc);
    __tsan_write_range(p, n);
    __tsan_func_exit();
}
static char fence_sync;
void fence()
{
    __tsan_release(&fence_sync);
    __tsan_acquire(&fence_sync);
}
#else
void tsan_read(const void *, size_t, void *) {}
void tsan_write(void *, size_t, void *) {}
void fence() { __atomic_thread_fence(__ATOMIC_SEQ_CST); }
#endif

// ASan brings redzones of its own; elsewhere 256 poisoned bytes on both sides are looked at after each block.
#ifdef GPUSIM_ASAN
enum : size_t { RED = 0, PAD = 0 };
#else
enum : size_t { RED = 256, PAD = 1024 };
#endif
enum : size_t { ARENA = 256 << 10 };

static char *array_new(size_t n)
{
    void *p = nullptr;
    if (posix_memalign(&p, 1024, n + 2 * PAD + (n == 0)) != 0) abort();
    return (char *)p + PAD;
}

static void array_free(char *p) { free(p - PAD); }

static void poison(char *p, size_t n) { raw_set(p - RED, 0xff, n + 2 * RED); }

static void verify(const char *p, size_t n, const char *name)
{
    for (size_t i = 0; i < RED; i++)
        if ((uint8_t)p[n + i] != 0xff || (uint8_t)p[-1 - (ptrdiff_t)i] != 0xff) die("a write outside shared array %s (%zu bytes)", name, n);
}

void shared_begin(pool *p, size_t dynamic_bytes)
{
    p->dynamic = array_new(dynamic_bytes);
    p->dynamic_bytes = dynamic_bytes;
#ifdef GPUSIM_LINK_TSAN
    if (!p->arena) p->arena = array_new(ARENA);
    p->arena_used = 0;
#endif
}

void shared_poison(pool *p)
{
    poison(p->dynamic, p->dynamic_bytes);
    for (shared_array &a : p->arrays) poison(a.mem, a.bytes);
}

void shared_verify(pool *p)
{
    verify(p->dynamic, p->dynamic_bytes, "(dynamic)");
    for (shared_array &a : p->arrays) verify(a.mem, a.bytes, a.name);
}

void shared_end(pool *p)
{
#ifndef GPUSIM_LINK_TSAN
    for (shared_array &a : p->arrays) array_free(a.mem);
#endif
    p->arrays.clear();
    array_free(p->dynamic);
    p->dynamic = nullptr;
}

void *shared_static(const void *site, size_t bytes, const char *name)
{
    pool *p = cur_block->p;
    for (shared_array &a : p->arrays)
        if (a.site == site) return a.mem;
#ifdef GPUSIM_LINK_TSAN     // malloc would count as a write by the lane that comes first: carve from what the launcher allocated
    p->arena_used = (p->arena_used + 1023) & ~(size_t)1023;
    char *mem = p->arena + 1024 + p->arena_used;
    p->arena_used += bytes + 1024;
    if (p->arena_used + 2048 > ARENA) die("static shared memory is exhausted");
#else
    char *mem = array_new(bytes);
#endif
    poison(mem, bytes);
    p->arrays.push_back({ site, mem, bytes, name });
    return mem;
}

void *shared_dynamic() { return cur_block->p->dynamic; }

void shared_check(const void *at, size_t bytes, const char *what, const char *file, int line)
{
    pool *p = cur_block->p;
    const char *q = (const char *)at;
    if (q >= p->dynamic && q + bytes <= p->dynamic + p->dynamic_bytes) return;
    for (shared_array &a : p->arrays)
        if (q >= a.mem && q + bytes <= a.mem + a.bytes) return;
    die("%s at %s:%d: outside the block's shared memory (offset %td of %zu dynamic bytes)", what, file, line, q - p->dynamic, p->dynamic_bytes);
}

// --- cp.async: recorded, and done as late as the program allows (or at once, or at random) ---

static void do_copy(const async_copy &c, void *pc)
{
    if (c.src_bytes) tsan_read(c.from, c.src_bytes, pc);
    raw_copy(c.to, c.from, c.src_bytes);
    if (c.src_bytes < c.bytes) raw_set((char *)c.to + c.src_bytes, 0, c.bytes - c.src_bytes);
}

void cp_async(void *shared, const void *global, uint32_t bytes, uint32_t src_bytes, const char *file, int line)
{
    void *pc = __builtin_return_address(0);
    if (((uintptr_t)shared | (src_bytes ? (uintptr_t)global : 0)) & (bytes - 1)) die("cp.async at %s:%d: misaligned address", file, line);
    if (src_bytes > bytes) die("cp.async at %s:%d: reads %u of %u bytes", file, line, src_bytes, bytes);
    shared_check(shared, bytes, "cp.async", file, line);
    tsan_write(shared, bytes, pc);
    bool early = config().copies == 1 || (config().copies == 2 && (next_random(cur_block) & 1));
    async_copy c = { shared, global, bytes, src_bytes, cur->copy_group, early };
    if (early) do_copy(c, pc);
    else raw_set(shared, 0xff, bytes);
    cur->copies.push_back(c);
}

void cp_async_commit() { cur->copy_group++; }

void cp_async_wait(uint32_t pending)
{
    fiber *f = cur;
    void *pc = __builtin_return_address(0);
    uint32_t done = 0, below = f->copy_group > pending ? f->copy_group - pending : 0;
    for (; done < f->copies.size() && f->copies[done].group < below; done++) {
        const async_copy &c = f->copies[done];
        tsan_write(c.to, c.bytes, pc);
        if (!c.done) do_copy(c, pc);
    }
    f->copies.erase(f->copies.begin(), f->copies.begin() + done);
}

}  // namespace gpusim
