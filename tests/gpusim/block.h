// block.h - the running block, shared by the scheduler and the memory part of the emulator.
#ifndef RM_TESTS_GPUSIM_BLOCK_H
#define RM_TESTS_GPUSIM_BLOCK_H

#include "tests/gpusim/fiber.h"

namespace gpusim {

struct warp {
    uint32_t run, alive, wait;          // lane masks: can go on, not exited, inside a collective
    void *args[WARP];
    uint32_t mask[WARP];
    const char *what[WARP];
};

struct shared_array { const void *site; char *mem; size_t bytes; const char *name; };

// Fibers and shared memory of one block at a time. Under TSan two pools alternate, so that neighbouring blocks, which CUDA
// leaves unordered, are unordered here too.
struct pool {
    std::vector<fiber> fibers;
    std::vector<shared_array> arrays;
    char *dynamic = nullptr;
    size_t dynamic_bytes = 0;
    char *arena = nullptr;              // TSan: memory for arrays, allocated by the launcher
    size_t arena_used = 0;
    uint32_t blocks = 0;
    char edge[2] = {}, barrier = 0, warp_barrier[WARP] = {};     // TSan sync objects
};

struct named { int arrived, expect; std::vector<fiber *> waiting; char sync; };

struct block {
    pool *p;
    warp warps[WARP];
    uint32_t n_warps, n_threads, alive, at_barrier, runnable;   // runnable: warps with a lane that can go on
    const char *barrier_file;
    int barrier_line;
    bool barrier_mixed;
    named bars[16];
    const std::function<void()> *body;
    const launch *l;
    fiber scheduler;
    uint64_t rng;
};

extern block *cur_block;

struct settings {
    int order;                          // 0 forward, 1 reverse, 2 random
    int copies;                         // cp.async: 0 as late as possible, 1 at once, 2 random
    uint64_t seed;
};
const settings &config();               // from GPUSIM_SEED, GPUSIM_COPIES
void set_seed(uint64_t seed);           // tests run several in one process

uint64_t next_random(block *b);
void shared_begin(pool *p, size_t dynamic_bytes);       // before a grid
void shared_poison(pool *p);                            // before each block: all bytes 0xff, NaN as bf16 and float
void shared_verify(pool *p);                            // after each block: nothing was written around the arrays
void shared_end(pool *p);

}  // namespace gpusim

#endif
