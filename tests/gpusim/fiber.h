// fiber.h - a CUDA thread: a stack, its place in the block, and where it stands (for error reports).
#ifndef RM_TESTS_GPUSIM_FIBER_H
#define RM_TESTS_GPUSIM_FIBER_H

#include <vector>

#include "tests/gpusim/gpusim.h"

#if defined(__SANITIZE_ADDRESS__)
#define GPUSIM_ASAN 1
#endif

namespace gpusim {

struct warp;

struct async_copy { void *to; const void *from; uint32_t bytes, src_bytes, group; bool done; };

struct fiber {
    void *sp = nullptr;
    uint3 index = {};
    uint32_t lane = 0, warp_no = 0, number = 0;
    warp *w = nullptr;
    std::vector<async_copy> copies;
    uint32_t copy_group = 0;
    const char *file = nullptr, *what = nullptr;
    int line = 0;
    char *stack = nullptr;
    size_t stack_bytes = 0;
    void *asan_fake = nullptr, *tsan = nullptr;
};

// Gives f a stack that starts at entry(). number: staggers the stacks' hot lines over the cache sets.
void fiber_init(fiber *f, uint32_t number, void (*entry)());
// Leaves cur for `to`; returns when somebody switches back.
void fiber_switch(fiber *to);
// First thing in entry(): tells ASan where it is. scheduler: the fiber that stands for the OS thread's own stack.
void fiber_entered(fiber *scheduler);

}  // namespace gpusim

#endif
