// scheduler.cc - who runs next: barriers, warp collectives, the order of threads and blocks.
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "tests/gpusim/block.h"
#include "tests/gpusim/device.h"

uint3 blockIdx;
dim3 blockDim, gridDim;

namespace gpusim {

fiber *cur;
block *cur_block;

static settings the_settings;
static bool settings_read;

void set_seed(uint64_t seed)
{
    the_settings = { seed > 1 ? 2 : (int)seed, seed > 1 ? 2 : (int)seed, seed };
    const char *s = getenv("GPUSIM_COPIES");
    if (s) the_settings.copies = atoi(s);
    settings_read = true;
}

const settings &config()
{
    if (!settings_read) {
        const char *s = getenv("GPUSIM_SEED");
        set_seed(s ? strtoull(s, nullptr, 0) : 0);
    }
    return the_settings;
}

const uint3 &thread_index() { return cur->index; }
uint32_t lane() { return cur->lane; }

void die(const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    fprintf(stderr, "gpusim: ");
    vfprintf(stderr, fmt, ap);
    va_end(ap);
    if (cur_block && cur && cur != &cur_block->scheduler)
        fprintf(stderr, "\n  in %s block (%u,%u,%u) thread (%u,%u,%u)", cur_block->l->name, blockIdx.x, blockIdx.y, blockIdx.z, cur->index.x,
                cur->index.y, cur->index.z);
    fprintf(stderr, "\n");
    for (uint32_t i = 0; cur_block && i < cur_block->n_threads; i++) {
        const fiber &f = cur_block->p->fibers[i], *before = i ? &cur_block->p->fibers[i - 1] : nullptr;
        if (before && before->what == f.what && before->line == f.line && i % WARP) continue;
        fprintf(stderr, "  from thread %u on: %s at %s:%d\n", i, f.what ? f.what : "running", f.file ? f.file : "?", f.line);
    }
    abort();
}

uint64_t next_random(block *b)
{
    b->rng ^= b->rng << 13;
    b->rng ^= b->rng >> 7;
    b->rng ^= b->rng << 17;
    return b->rng;
}

static uint32_t rotate_right(uint32_t v, uint32_t n)
{
    n &= 31;
    return n ? v >> n | v << (32 - n) : v;
}

// First set bit at or after position `from`, cyclically.
static uint32_t next_bit(uint32_t mask, uint32_t from) { return (from + (uint32_t)__builtin_ctz(rotate_right(mask, from))) & 31; }

static fiber *pick(block *b, uint32_t w, uint32_t after)
{
    if (!b->runnable) return nullptr;
    switch (config().order) {
    case 0:
        if (!b->warps[w].run) {
            w = next_bit(b->runnable, w + 1);
            after = 31;
        }
        return &b->p->fibers[w * WARP + next_bit(b->warps[w].run, after + 1)];
    case 1:
        if (!b->warps[w].run) w = 31 - (uint32_t)__builtin_clz(b->runnable);
        return &b->p->fibers[w * WARP + 31 - (uint32_t)__builtin_clz(b->warps[w].run)];
    default: {
        uint64_t r = next_random(b);
        if (!b->warps[w].run || (r & 15) == 0) w = next_bit(b->runnable, (uint32_t)(r >> 8) & 31);
        return &b->p->fibers[w * WARP + next_bit(b->warps[w].run, (uint32_t)(r >> 16) & 31)];
    }
    }
}

static void give_way()
{
    block *b = cur_block;
    fiber *next = pick(b, cur->warp_no, cur->lane);
    if (!next) {
        if (b->alive) die("deadlock: no thread can go on (a divergent barrier or collective)");
        next = &b->scheduler;
    }
    if (next != cur) fiber_switch(next);
}

static void stop_running(fiber *f)
{
    f->w->run &= ~(1u << f->lane);
    if (!f->w->run) cur_block->runnable &= ~(1u << f->warp_no);
}

static void let_run(block *b, uint32_t w, uint32_t lanes)
{
    if (!lanes) return;
    b->warps[w].run |= lanes;
    b->runnable |= 1u << w;
}

static void stand(const char *what, const char *file, int line)
{
    cur->what = what;
    cur->file = file;
    cur->line = line;
}

static void open_barrier(block *b)
{
    b->at_barrier = 0;
    if (b->alive < b->n_threads)
        die("__syncthreads() at %s:%d after %u threads of the block have exited", b->barrier_file, b->barrier_line, b->n_threads - b->alive);
    if (b->barrier_mixed) die("__syncthreads() reached on different source lines by threads of one block");
    for (uint32_t w = 0; w < b->n_warps; w++) let_run(b, w, b->warps[w].alive & ~b->warps[w].wait);
}

void syncthreads(const char *file, int line)
{
    block *b = cur_block;
    stand("__syncthreads", file, line);
    __tsan_release(&b->p->barrier);
    if (b->at_barrier == 0) {
        b->barrier_file = file;
        b->barrier_line = line;
        b->barrier_mixed = false;
    } else if (b->barrier_line != line || strcmp(b->barrier_file, file) != 0) b->barrier_mixed = true;
    stop_running(cur);
    if (++b->at_barrier == b->alive) open_barrier(b);
    give_way();
    __tsan_acquire(&b->p->barrier);
    cur->what = nullptr;
}

static void leave_block()
{
    block *b = cur_block;
    __tsan_release(&b->p->edge[(b->p->blocks + 1) & 1]);
    cur->what = "exited";
    cur->w->alive &= ~(1u << cur->lane);
    stop_running(cur);
    b->alive--;
    if (b->alive && b->at_barrier == b->alive) open_barrier(b);
    give_way();
}

void warp_collective(const char *what, uint32_t mask, void *args, warp_fn fn, bool orders, const char *file, int line)
{
    fiber *f = cur;
    warp *w = f->w;
    uint32_t bit = 1u << f->lane;
    stand(what, file, line);
    if (!(mask & bit)) die("%s at %s:%d: the calling lane is not in mask %08x", what, file, line, mask);
    if (mask & ~w->alive) die("%s at %s:%d: mask %08x names exited lanes (alive: %08x)", what, file, line, mask, w->alive);
    if (orders) __tsan_release(&cur_block->p->warp_barrier[f->warp_no]);
    w->args[f->lane] = args;
    w->what[f->lane] = what;
    w->mask[f->lane] = mask;
    w->wait |= bit;
    if ((w->wait & mask) == mask) {
        for (uint32_t m = mask; m; m &= m - 1) {
            int l = __builtin_ctz(m);
            if (w->mask[l] != mask || strcmp(w->what[l], what) != 0)
                die("%s at %s:%d: lane %d of the mask is at %s with mask %08x", what, file, line, l, w->what[l], w->mask[l]);
        }
        if (fn) fn(w->args, mask);
        w->wait &= ~mask;
        let_run(cur_block, f->warp_no, mask);
        if (config().order == 2) give_way();
    } else {
        stop_running(f);
        give_way();
    }
    if (orders) __tsan_acquire(&cur_block->p->warp_barrier[f->warp_no]);
    f->what = nullptr;
}

void named_barrier(int id, int threads, bool arrive_only, const char *file, int line)
{
    block *b = cur_block;
    named &bar = b->bars[id];
    stand("bar.sync", file, line);
    __tsan_release(&bar.sync);
    if (bar.arrived == 0) bar.expect = threads;
    if (bar.expect != threads) die("barrier %d: thread counts differ (%d and %d)", id, bar.expect, threads);
    bar.arrived++;
    if (!arrive_only) {
        bar.waiting.push_back(cur);
        stop_running(cur);
    }
    if (bar.arrived == threads) {
        for (fiber *x : bar.waiting) let_run(b, x->warp_no, 1u << x->lane);
        bar.waiting.clear();
        bar.arrived = 0;
    }
    if (!arrive_only) {
        give_way();
        __tsan_acquire(&bar.sync);
    }
    cur->what = nullptr;
}

struct ballot_arg { bool predicate; uint32_t out; };

static void ballot_fn(void **args, uint32_t mask)
{
    uint32_t votes = 0;
    for (uint32_t m = mask; m; m &= m - 1) votes |= (uint32_t)((ballot_arg *)args[__builtin_ctz(m)])->predicate << __builtin_ctz(m);
    for (uint32_t m = mask; m; m &= m - 1) ((ballot_arg *)args[__builtin_ctz(m)])->out = votes;
}

uint32_t ballot(uint32_t mask, bool predicate, const char *file, int line)
{
    ballot_arg a = { predicate, 0 };
    warp_collective("__ballot_sync", mask, &a, ballot_fn, false, file, line);
    return a.out;
}

// --- blocks ---

static void fiber_main()
{
    fiber_entered(&cur_block->scheduler);
    for (;;) {
        __tsan_acquire(&cur_block->p->edge[cur_block->p->blocks & 1]);
        (*cur_block->body)();
        leave_block();
    }
}

#ifdef GPUSIM_LINK_TSAN
enum { POOLS = 2 };
#else
enum { POOLS = 1 };
#endif

static uint64_t gcd(uint64_t a, uint64_t b)
{
    while (b) {
        uint64_t t = a % b;
        a = b;
        b = t;
    }
    return a;
}

static void start_block(block *b, pool *p, uint64_t id)
{
    const launch &l = *b->l;
    blockIdx = { (unsigned)(id % l.grid.x), (unsigned)(id / l.grid.x % l.grid.y), (unsigned)(id / l.grid.x / l.grid.y) };
    b->p = p;
    p->blocks++;        // edge[] alternates: a block sees the exits of its pool's earlier blocks, not its own
    shared_poison(p);
    b->alive = b->n_threads;
    b->at_barrier = b->runnable = 0;
    for (uint32_t w = 0; w < b->n_warps; w++) {
        uint32_t lanes = w == b->n_threads / WARP ? (1u << b->n_threads % WARP) - 1 : 0xffffffffu;
        b->warps[w].alive = lanes;
        b->warps[w].wait = b->warps[w].run = 0;
        let_run(b, w, lanes);
    }
    for (uint32_t i = 0; i < b->n_threads; i++) {
        fiber &f = p->fibers[i];
        f.index = { i % l.block.x, i / l.block.x % l.block.y, i / (l.block.x * l.block.y) };
        f.number = i;
        f.lane = i % WARP;
        f.warp_no = i / WARP;
        f.w = &b->warps[i / WARP];
        f.copies.clear();
        f.copy_group = 0;
        f.what = f.file = nullptr;
        f.line = 0;
    }
}

struct grid_pools { pool at[POOLS]; };
grid_pools *cur_pools;

// Without TSan all streams share one: they never run at the same time.
grid_pools *grid_pools_new()
{
#ifndef GPUSIM_LINK_TSAN
    static
#endif
    grid_pools *p = new grid_pools;
    return p;
}

uint64_t only_last_blocks;

void run_grid(const launch &l, const std::function<void()> &body)
{
    pool (&pools)[POOLS] = cur_pools->at;
    uint32_t threads = l.block.x * l.block.y * l.block.z;
    if (!threads || threads > 1024) die("launch of %s: %u threads in a block", l.name, threads);
    block *b = new block();
    b->l = &l;
    b->body = &body;
    b->n_threads = threads;
    b->n_warps = (threads + WARP - 1) / WARP;
    b->rng = config().seed * 0x9E3779B97F4A7C15ull + 88172645463325252ull;
#ifdef GPUSIM_LINK_TSAN
    b->scheduler.tsan = __tsan_get_current_fiber();
#endif
    fiber *outer = cur;
    block *outer_block = cur_block;
    cur_block = b;
    cur = &b->scheduler;
    for (pool &p : pools) {
        if (p.fibers.empty()) p.fibers.reserve(1024);       // fibers hold pointers to themselves: they never move
        while (p.fibers.size() < b->n_warps * WARP) {
            p.fibers.emplace_back();
            fiber_init(&p.fibers.back(), (uint32_t)p.fibers.size() - 1, fiber_main);
        }
        shared_begin(&p, l.shared_bytes);
        __tsan_release(&p.edge[0]);
        __tsan_release(&p.edge[1]);
    }
    blockDim = l.block;
    gridDim = l.grid;
    uint64_t n = (uint64_t)l.grid.x * l.grid.y * l.grid.z, mul = 1, add = 0;
    if (config().order == 2) {      // a random affine permutation visits every block once
        add = next_random(b) % n;
        do mul = next_random(b) % n | 1; while (gcd(mul, n) != 1);
    }
    for (uint64_t i = 0; i < n; i++) {
        uint64_t id = config().order == 0 ? i : config().order == 1 ? n - 1 - i : (uint64_t)(((unsigned __int128)i * mul + add) % n);
        if (only_last_blocks && id + only_last_blocks < n) continue;
        start_block(b, &pools[i % POOLS], id);
        fiber_switch(pick(b, b->n_warps - 1, 31));
        shared_verify(b->p);
    }
    for (pool &p : pools) {
        __tsan_acquire(&p.edge[0]);
        __tsan_acquire(&p.edge[1]);
        shared_end(&p);
    }
    cur = outer;
    cur_block = outer_block;
    delete b;
}

}  // namespace gpusim
