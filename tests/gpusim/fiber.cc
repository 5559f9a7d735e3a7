#include "tests/gpusim/fiber.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>

#ifdef GPUSIM_ASAN
extern "C" void __sanitizer_start_switch_fiber(void **fake, const void *bottom, size_t size);
extern "C" void __sanitizer_finish_switch_fiber(void *fake, const void **bottom_old, size_t *size_old);
#endif

// swapcontext makes two system calls a switch and is 15 times slower; saving the callee-saved registers is all it takes.
extern "C" void gpusim_swap(void **save_sp, void *load_sp);
#if defined(__x86_64__)
asm(R"(
.text
.globl gpusim_swap
.type gpusim_swap,@function
gpusim_swap:
  pushq %rbp
  pushq %rbx
  pushq %r12
  pushq %r13
  pushq %r14
  pushq %r15
  movq %rsp, (%rdi)
  movq %rsi, %rsp
  popq %r15
  popq %r14
  popq %r13
  popq %r12
  popq %rbx
  popq %rbp
  ret
.size gpusim_swap,.-gpusim_swap
.section .note.GNU-stack,"",@progbits
)");
#elif defined(__aarch64__)
asm(R"(
.text
.globl gpusim_swap
gpusim_swap:
  sub sp, sp, #160
  stp x19, x20, [sp, #0]
  stp x21, x22, [sp, #16]
  stp x23, x24, [sp, #32]
  stp x25, x26, [sp, #48]
  stp x27, x28, [sp, #64]
  stp x29, x30, [sp, #80]
  stp d8, d9, [sp, #96]
  stp d10, d11, [sp, #112]
  stp d12, d13, [sp, #128]
  stp d14, d15, [sp, #144]
  mov x9, sp
  str x9, [x0]
  mov sp, x1
  ldp x19, x20, [sp, #0]
  ldp x21, x22, [sp, #16]
  ldp x23, x24, [sp, #32]
  ldp x25, x26, [sp, #48]
  ldp x27, x28, [sp, #64]
  ldp x29, x30, [sp, #80]
  ldp d8, d9, [sp, #96]
  ldp d10, d11, [sp, #112]
  ldp d12, d13, [sp, #128]
  ldp d14, d15, [sp, #144]
  add sp, sp, #160
  ret
)");
#else
#error "gpusim knows x86-64 and aarch64"
#endif

namespace gpusim {

#if defined(GPUSIM_ASAN) || defined(GPUSIM_LINK_TSAN)
enum : size_t { STACK = 256 << 10 };
#else
enum : size_t { STACK = 64 << 10 };
#endif
enum : size_t { GUARD = 4096 };

void fiber_init(fiber *f, uint32_t number, void (*entry)())
{
    char *m = (char *)mmap(nullptr, STACK + GUARD, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (m == MAP_FAILED || mprotect(m, GUARD, PROT_NONE) != 0) abort();
    f->stack = m + GUARD;
    f->stack_bytes = STACK;
    char *top = f->stack + STACK - (number * 1088u) % 16384u;
    top = (char *)((uintptr_t)top & ~(uintptr_t)63);
#if defined(__x86_64__)
    void **s = (void **)top;
    *--s = nullptr;                 // entry's "return address"; also its alignment
    *--s = (void *)entry;
    for (int i = 0; i < 6; i++) *--s = nullptr;
    f->sp = s;
#else
    char *s = top - 160;
    memset(s, 0, 160);
    ((void **)s)[11] = (void *)entry;
    f->sp = s;
#endif
#ifdef GPUSIM_LINK_TSAN
    char name[32];
    (void)snprintf(name, sizeof name, "cuda-thread-%u", number);
    f->tsan = __tsan_create_fiber(0);
    __tsan_set_fiber_name(f->tsan, name);
#endif
}

void fiber_switch(fiber *to)
{
    fiber *from = cur;
    cur = to;
#ifdef GPUSIM_LINK_TSAN
    __tsan_switch_to_fiber(to->tsan, 1);        // 1: the switch orders nothing
#endif
#ifdef GPUSIM_ASAN
    __sanitizer_start_switch_fiber(&from->asan_fake, to->stack, to->stack_bytes);
#endif
    gpusim_swap(&from->sp, to->sp);
#ifdef GPUSIM_ASAN
    __sanitizer_finish_switch_fiber(from->asan_fake, nullptr, nullptr);
#endif
}

void fiber_entered(fiber *scheduler)
{
#ifdef GPUSIM_ASAN
    const void *bottom;
    size_t bytes;
    __sanitizer_finish_switch_fiber(cur->asan_fake, &bottom, &bytes);
    if (!scheduler->stack) {
        scheduler->stack = (char *)bottom;
        scheduler->stack_bytes = bytes;
    }
#else
    (void)scheduler;
#endif
}

}  // namespace gpusim
