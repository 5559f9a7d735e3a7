// nccl.cc - NCCL among several processes, through memory they share.
//
// The unique id names a memfd of the process that made it; others open it through /proc, so that nothing is left behind however the
// processes end. In it lies a ring of bytes for every ordered pair of ranks. A message begins with what its sender believes it is;
// a receiver that believes otherwise stops with both versions. Sums are made in rank order. Within a group everything progresses
// together; the groups of a communicator run in the order they were issued, whatever their streams.
// A communicator that does not block answers ncclInProgress first at its making and at every third group, and holds the group's work
// back until it was polled. As in NCCL, a dead peer is never reported: whoever waits for it waits until aborted.
#include <cuda_bf16.h>
#include <fcntl.h>
#include <nccl.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <mutex>

#include "tests/gpusim/device.h"

using namespace gpusim;

namespace gpusim { cudaError_t device_alloc_pages(void **p, size_t bytes); }

enum : size_t { RING = 256 << 10 };
enum : uint32_t { ID_MAGIC = 0x51d0cc1a, MESSAGE_MAGIC = 0x4e43434c };
enum { SHY_POLLS = 2, SHY_GROUPS = 3, MOST_RANKS = 256 };

static const double PATIENCE_S = 0.06;      // of every other rank: its neighbours then run ahead of it, as far as they can

struct ring { std::atomic<uint64_t> head, tail; char pad[48], data[RING]; };
struct board { std::atomic<uint32_t> ranks, joined, left; char pad[52]; ring rings[1]; };
struct id_text { uint32_t magic; int32_t pid, fd; uint64_t inode; };
static_assert(sizeof(id_text) <= sizeof(ncclUniqueId), "");

enum kind : uint32_t { SEND_RECV, ALL_REDUCE, REDUCE_SCATTER, ALL_GATHER, REDUCE, BROADCAST };
static const char *const kind_names[] = { "send/recv", "all-reduce", "reduce-scatter", "all-gather", "reduce", "broadcast" };

struct message { uint32_t magic, kind, dtype, root; uint64_t bytes; };

static thread_local char last_error[300];

static ncclResult_t fail(ncclResult_t r, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
static ncclResult_t fail(ncclResult_t r, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(last_error, sizeof last_error, fmt, ap);
    va_end(ap);
    return r;
}

struct held { cudaStream_t stream; op o; };

struct ncclComm {
    std::shared_ptr<ncclComm> self;         // dropped when the user lets go; operations under way keep theirs
    std::mutex lock;
    int rank, n;
    bool blocking, joined = false, finalizing = false;
    board *shared = nullptr;
    size_t shared_bytes = 0;
    int shy = 0;                            // polls still to be answered with ncclInProgress
    uint64_t groups = 0;
    std::vector<held> holding;
    uint64_t issued = 0;                    // groups
    std::atomic<uint64_t> turn { 0 };       // groups done
    const struct transfer *holder[2][MOST_RANKS] = {};      // whose message is in the middle of a ring, by direction and peer
    std::atomic<bool> over { false };       // revoked or aborted: operations end without having done their work
    std::vector<point> used;                // ends of the streams it was used on
    uint64_t sent = 0;                      // payload of sends to others
    ~ncclComm() { if (shared) (void)munmap((void *)shared, shared_bytes); }
};

// --- bytes through a ring ---

static size_t put(ring &r, const char *p, size_t n)
{
    uint64_t h = r.head.load(std::memory_order_relaxed), t = r.tail.load(std::memory_order_acquire);
    size_t most = std::min<size_t>(n, RING - (h - t));
    for (size_t done = 0; done < most;) {
        size_t at = (h + done) % RING, part = std::min(most - done, (size_t)RING - at);
        memcpy(r.data + at, p + done, part);
        done += part;
    }
    r.head.store(h + most, std::memory_order_release);
    return most;
}

static size_t get(ring &r, char *p, size_t n)
{
    uint64_t t = r.tail.load(std::memory_order_relaxed), h = r.head.load(std::memory_order_acquire);
    size_t most = std::min<size_t>(n, h - t);
    for (size_t done = 0; done < most;) {
        size_t at = (t + done) % RING, part = std::min(most - done, (size_t)RING - at);
        memcpy(p + done, r.data + at, part);
        done += part;
    }
    r.tail.store(t + most, std::memory_order_release);
    return most;
}

// One message in one direction, resumable.
struct transfer {
    bool sends;
    int peer;
    char *data;
    message m;
    size_t head_done = 0, done = 0;
    message got = {};
    bool finished = false;
};

static void check(const ncclComm *c, const transfer &x)
{
    const message &a = x.m, &b = x.got;
    if (a.magic == b.magic && a.kind == b.kind && a.dtype == b.dtype && a.root == b.root && a.bytes == b.bytes) return;
    die("NCCL mismatch: rank %d expects %s, type %u, root %u, %llu bytes from rank %d, which sent %s, type %u, root %u, %llu bytes", c->rank,
        kind_names[a.kind], a.dtype, a.root, (unsigned long long)a.bytes, x.peer, b.kind <= BROADCAST ? kind_names[b.kind] : "?", b.dtype, b.root,
        (unsigned long long)b.bytes);
}

static bool poll_transfer(ncclComm *c, transfer &x, bool *moved)
{
    ring &r = c->shared->rings[x.sends ? c->rank * c->n + x.peer : x.peer * c->n + c->rank];
    const transfer *&holder = c->holder[x.sends][x.peer];
    if (holder && holder != &x) return false;
    holder = &x;
    char *head = x.sends ? (char *)&x.m : (char *)&x.got;
    size_t part;
    if (x.head_done < sizeof(message)) {
        part = sizeof(message) - x.head_done;
        part = x.sends ? put(r, head + x.head_done, part) : get(r, head + x.head_done, part);
        x.head_done += part;
        *moved |= part > 0;
        if (x.head_done < sizeof(message)) return false;
        if (!x.sends) check(c, x);
    }
    part = x.m.bytes - x.done;
    part = x.sends ? put(r, x.data + x.done, part) : get(r, x.data + x.done, part);
    x.done += part;
    *moved |= part > 0;
    if (x.sends && x.peer != c->rank && x.m.kind == SEND_RECV) c->sent += part;
    x.finished = x.done == x.m.bytes;
    if (x.finished) holder = nullptr;
    return x.finished;
}

// --- types and sums ---

static size_t size_of(ncclDataType_t t)
{
    switch (t) {
    case ncclInt8: case ncclUint8: return 1;
    case ncclFloat16: case ncclBfloat16: return 2;
    case ncclInt64: case ncclUint64: case ncclFloat64: return 8;
    default: return 4;
    }
}

static bool summable(ncclDataType_t t) { return t == ncclFloat32 || t == ncclBfloat16 || t == ncclFloat64; }

static void sum(void *out, ncclDataType_t t, size_t n, const std::vector<const char *> &parts)
{
    tsan_write(out, n * size_of(t), __builtin_return_address(0));
    for (size_t i = 0; i < n; i++) {
        if (t == ncclFloat64) {
            double s = 0;
            for (const char *p : parts) s += ((const double *)p)[i];
            ((double *)out)[i] = s;
            continue;
        }
        float s = 0;
        for (const char *p : parts) s += t == ncclFloat32 ? ((const float *)p)[i] : __bfloat162float(((const __nv_bfloat16 *)p)[i]);
        if (t == ncclFloat32) ((float *)out)[i] = s;
        else ((__nv_bfloat16 *)out)[i] = __float2bfloat16_rn(s);
    }
}

// --- one call, as the device sees it ---

struct call {
    kind what;
    const char *in;
    char *out;
    size_t count;                           // elements; of a slice where the call has slices
    ncclDataType_t type;
    int root;                               // or the peer of a send or receive
    bool begun = false;
    std::vector<transfer> xs;
    std::vector<std::vector<char>> staged;  // by rank
};

static void message_to(call &k, bool sends, int peer, const char *data, size_t bytes)
{
    transfer x = { sends, peer, (char *)data, { MESSAGE_MAGIC, k.what, (uint32_t)k.type, k.what == SEND_RECV ? 0 : (uint32_t)k.root, bytes } };
    k.xs.push_back(x);
}

// The input is read now, when the device comes to the call, not when the host made it.
static void begin(call &k, ncclComm *c)
{
    size_t bytes = k.count * size_of(k.type);
    k.begun = true;
    bool reduces = k.what == ALL_REDUCE || k.what == REDUCE_SCATTER || k.what == REDUCE;
    bool gets = reduces && (k.what != REDUCE || k.root == c->rank);
    if (k.what == SEND_RECV) {
        message_to(k, k.in != nullptr, k.root, k.in ? k.in : k.out, bytes);
        return;
    }
    if (k.what == BROADCAST) {
        if (k.root != c->rank) message_to(k, false, k.root, k.out, bytes);
        else if (k.out != k.in) memmove(k.out, k.in, bytes);
    }
    if (k.what == ALL_GATHER) {
        char *mine = k.out + (size_t)c->rank * bytes;
        if (mine != k.in) memmove(mine, k.in, bytes);
    }
    if (reduces) k.staged.resize((size_t)c->n);
    for (int p = 0; p < c->n; p++) {
        const char *for_p = k.what == REDUCE_SCATTER ? k.in + (size_t)p * bytes : k.in;
        if (gets) k.staged[(size_t)p].resize(bytes);
        if (p == c->rank) {
            if (gets) memcpy(k.staged[(size_t)p].data(), for_p, bytes);
            continue;
        }
        bool sends = k.what == ALL_REDUCE || k.what == REDUCE_SCATTER || k.what == ALL_GATHER || (k.what == REDUCE && p == k.root) ||
                     (k.what == BROADCAST && k.root == c->rank);
        if (sends && reduces && !gets) {            // a copy: the output may be the input
            k.staged[(size_t)p].assign(for_p, for_p + bytes);
            message_to(k, true, p, k.staged[(size_t)p].data(), bytes);
        } else if (sends && k.what == ALL_REDUCE) message_to(k, true, p, nullptr, bytes);        // below: its own part
        else if (sends) message_to(k, true, p, k.what == ALL_GATHER ? k.out + (size_t)c->rank * bytes : for_p, bytes);
        if (gets) message_to(k, false, p, k.staged[(size_t)p].data(), bytes);
        if (k.what == ALL_GATHER) message_to(k, false, p, k.out + (size_t)p * bytes, bytes);
    }
    for (transfer &x : k.xs)
        if (x.sends && !x.data) x.data = k.staged[(size_t)c->rank].data();
}

static void end(call &k, ncclComm *c)
{
    if (k.staged.empty() || (k.what == REDUCE && k.root != c->rank)) return;
    std::vector<const char *> parts;
    for (const auto &p : k.staged) parts.push_back(p.data());
    sum(k.out, k.type, k.count, parts);
}

// The calls of one group on one communicator and stream.
struct batch {
    std::shared_ptr<ncclComm> c;
    cudaStream_t stream;
    uint64_t ticket;                        // the communicator's groups have their turns one after another
    std::shared_ptr<int> left;              // batches of this group and communicator that are not done
    std::vector<call> calls;
};

// Transfers in the order of the calls; a peer and direction takes one at a time.
static bool poll_batch(batch &b, bool *moved)
{
    ncclComm *c = b.c.get();
    if (c->over) return true;
    if (c->turn != b.ticket) return false;
    for (call &k : b.calls)
        if (!k.begun) begin(k, c);
    bool busy[2][MOST_RANKS] = {}, done = true;
    for (call &k : b.calls)
        for (transfer &x : k.xs) {
            if (x.finished) continue;
            bool &taken = busy[x.sends][x.peer];
            if (!taken && poll_transfer(c, x, moved)) continue;
            taken = true;
            done = false;
        }
    if (!done) return false;
    for (call &k : b.calls) end(k, c);
    if (--*b.left == 0) c->turn++;
    return true;
}

// --- groups ---

static thread_local struct { int depth; std::vector<std::shared_ptr<batch>> batches; ncclResult_t bad; } group;

static ncclResult_t usable(ncclComm *c)
{
    if (!c || !c->self) return fail(ncclInvalidArgument, "not a communicator");
    if (c->over || c->finalizing) return fail(ncclInvalidUsage, "the communicator was revoked, aborted or finalized");
    if (!c->joined || c->shy > 0 || !c->holding.empty()) return fail(ncclInvalidUsage, "the communicator is still in progress: poll ncclCommGetAsyncError first");
    return ncclSuccess;
}

static void remember(ncclComm *c, cudaStream_t s)
{
    point p = stream_end(s);
    for (point &x : c->used)
        if (x.stream == p.stream) {
            x = p;
            return;
        }
    c->used.push_back(p);
}

static ncclResult_t launch_group()
{
    ncclResult_t r = group.bad;
    std::vector<ncclComm *> begun;
    for (auto &b : group.batches) {
        if (group.bad != ncclSuccess) break;
        ncclComm *c = b->c.get();
        std::lock_guard<std::mutex> l(c->lock);
        if (std::find(begun.begin(), begun.end(), c) == begun.end()) {
            begun.push_back(c);
            auto left = std::make_shared<int>(0);
            for (auto &x : group.batches)
                if (x->c.get() == c) x->ticket = c->issued, x->left = left, ++*left;
            c->issued++;
            if (!c->blocking && ++c->groups % SHY_GROUPS == 0) c->shy = SHY_POLLS;
        }
        op o;
        o.poll = [b](bool *moved) { return poll_batch(*b, moved); };
        if (c->shy > 0) {
            c->holding.push_back({ b->stream, std::move(o) });
            r = ncclInProgress;
        } else {
            enqueue(b->stream, std::move(o));
            remember(c, b->stream);
        }
    }
    group.batches.clear();
    group.bad = ncclSuccess;
    return r;
}

static ncclResult_t issue(ncclComm *c, cudaStream_t s, call k)
{
    ncclResult_t r = usable(c);
    size_t bytes = k.count * size_of(k.type), slices = k.what == ALL_GATHER || k.what == REDUCE_SCATTER ? (size_t)(c ? c->n : 1) : 1;
    bool at_root = r == ncclSuccess && k.root == c->rank;
    if (r == ncclSuccess && (k.root < 0 || k.root >= c->n)) r = fail(ncclInvalidArgument, "peer or root %d of %d ranks", k.root, c->n);
    if (r == ncclSuccess && (k.what != BROADCAST || at_root) && (k.what != SEND_RECV || k.in) && !is_device(k.in, bytes * (k.what == REDUCE_SCATTER ? slices : 1)))
        r = fail(ncclInvalidArgument, "the %s's input is not device memory", kind_names[k.what]);
    if (r == ncclSuccess && (k.what != REDUCE || at_root) && (k.what != SEND_RECV || k.out) && !is_device(k.out, bytes * (k.what == ALL_GATHER ? slices : 1)))
        r = fail(ncclInvalidArgument, "the %s's output is not device memory", kind_names[k.what]);
    if (r == ncclSuccess && (k.what == ALL_REDUCE || k.what == REDUCE_SCATTER || k.what == REDUCE) && !summable(k.type))
        r = fail(ncclInvalidArgument, "sums of type %d are not simulated", (int)k.type);
    if (r != ncclSuccess) {
        if (group.depth > 0) group.bad = r;
        return r;
    }
    if (k.count > 0) {
        std::shared_ptr<batch> b;
        for (auto &x : group.batches)
            if (x->c.get() == c && x->stream == s) b = x;
        if (!b) {
            b = std::make_shared<batch>(batch{ c->self, s, 0, nullptr, {} });
            group.batches.push_back(b);
        }
        b->calls.push_back(std::move(k));
    }
    return group.depth > 0 ? ncclSuccess : launch_group();
}

// --- making and ending communicators ---

static void join_if_all(ncclComm *c)
{
    if (!c->joined && c->shared->joined == c->shared->ranks) c->joined = true;
}

static ncclResult_t open_board(const ncclUniqueId &id, int n, board **out, size_t *bytes)
{
    id_text t;
    memcpy(&t, &id, sizeof t);
    if (t.magic != ID_MAGIC) return fail(ncclInvalidArgument, "the unique id is damaged");
    char path[64];
    (void)snprintf(path, sizeof path, "/proc/%d/fd/%d", t.pid, t.fd);
    int fd = open(path, O_RDWR | O_CLOEXEC);
    struct stat st;
    if (fd < 0 || fstat(fd, &st) != 0 || st.st_ino != t.inode) {
        if (fd >= 0) (void)close(fd);
        return fail(ncclSystemError, "the process that made the unique id is gone");
    }
    *bytes = sizeof(board) + sizeof(ring) * ((size_t)n * (size_t)n - 1);
    void *m = ftruncate(fd, (off_t)*bytes) == 0 ? mmap(nullptr, *bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;
    (void)close(fd);
    if (m == MAP_FAILED) return fail(ncclSystemError, "no shared memory");
    *out = (board *)m;
    return ncclSuccess;
}

extern "C" {

ncclResult_t ncclGetVersion(int *v)
{
    *v = NCCL_VERSION_CODE;
    return ncclSuccess;
}

const char *ncclGetErrorString(ncclResult_t r)
{
    static const char *const names[] = { "no error", "unhandled cuda error", "unhandled system error", "internal error", "invalid argument", "invalid usage", "remote process exited or there was a network error", "NCCL operation in progress" };
    return (unsigned)r < sizeof names / sizeof names[0] ? names[r] : "unknown result code";
}

const char *ncclGetLastError(ncclComm_t) { return last_error; }

ncclResult_t ncclGetUniqueId(ncclUniqueId *id)
{
    struct stat st;
    int fd = memfd_create("gpusim-nccl", MFD_CLOEXEC);
    if (fd < 0 || fstat(fd, &st) != 0) return fail(ncclSystemError, "no memory file");
    id_text t = { ID_MAGIC, getpid(), fd, st.st_ino };
    memset(id, 0, sizeof *id);
    memcpy(id, &t, sizeof t);
    return ncclSuccess;
}

ncclResult_t ncclCommInitRankConfig(ncclComm_t *out, int n, ncclUniqueId id, int rank, ncclConfig_t *config)
{
    *out = nullptr;
    if (n < 1 || n > MOST_RANKS || rank < 0 || rank >= n) return fail(ncclInvalidArgument, "rank %d of %d", rank, n);
    if (config && (config->magic != 0xcafebeef || config->size != sizeof *config)) return fail(ncclInvalidArgument, "the config was not made with NCCL_CONFIG_INITIALIZER");
    auto c = std::make_shared<ncclComm>();
    ncclResult_t r = open_board(id, n, &c->shared, &c->shared_bytes);
    if (r != ncclSuccess) return r;
    uint32_t none = 0;
    if (!c->shared->ranks.compare_exchange_strong(none, (uint32_t)n) && none != (uint32_t)n)
        return fail(ncclInvalidArgument, "rank %d says there are %d ranks, another said %u", rank, n, none);
    c->rank = rank;
    c->n = n;
    c->blocking = !config || config->blocking != 0;
    c->self = c;
    *out = c.get();
    set_patience(rank % 2 ? 0 : PATIENCE_S);
    c->shared->joined++;
    if (!c->blocking) {
        c->shy = SHY_POLLS;
        return ncclInProgress;
    }
    while (!c->joined) {
        join_if_all(c.get());
        usleep(50);
    }
    return ncclSuccess;
}

ncclResult_t ncclCommInitRank(ncclComm_t *out, int n, ncclUniqueId id, int rank) { return ncclCommInitRankConfig(out, n, id, rank, nullptr); }

ncclResult_t ncclCommGetAsyncError(ncclComm_t c, ncclResult_t *state)
{
    if (!c || !c->self) return fail(ncclInvalidArgument, "not a communicator");
    std::lock_guard<std::mutex> l(c->lock);
    *state = ncclInProgress;
    if (!c->over) join_if_all(c);
    if (c->shy > 0) c->shy--;
    if (c->shy > 0 || (!c->joined && !c->over)) return ncclSuccess;
    for (held &h : c->holding) {
        enqueue(h.stream, std::move(h.o));
        remember(c, h.stream);
    }
    c->holding.clear();
    if (c->finalizing && !c->over) {
        for (point p : c->used)
            if (!reached(p)) {
                want(p);
                return ncclSuccess;
            }
        if (c->shared->left < c->shared->ranks) return ncclSuccess;
    }
    *state = ncclSuccess;
    return ncclSuccess;
}

// GPUSIM_REPORT: what really went out, for tests to compare with what the program counted.
static void report(const ncclComm *c)
{
    if (getenv("GPUSIM_REPORT")) fprintf(stderr, "gpusim: a communicator of %d ranks sent %llu bytes by send/recv\n", c->n, (unsigned long long)c->sent);
}

ncclResult_t ncclCommFinalize(ncclComm_t c)
{
    ncclResult_t r = usable(c);
    if (r != ncclSuccess) return r;
    c->finalizing = true;
    c->shared->left++;
    if (!c->blocking) return ncclInProgress;
    for (point p : c->used) wait_for(p);
    while (c->shared->left < c->shared->ranks) usleep(50);
    return ncclSuccess;
}

ncclResult_t ncclCommDestroy(ncclComm_t c)
{
    if (!c || !c->self) return fail(ncclInvalidArgument, "not a communicator");
    for (point p : c->used) wait_for(p);
    report(c);
    std::shared_ptr<ncclComm> last = std::move(c->self);
    return ncclSuccess;
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
ncclResult_t ncclCommRevoke(ncclComm_t c, int flags)
{
    if (!c || !c->self || flags != 0) return fail(ncclInvalidArgument, "not a communicator, or flags that are not 0");
    std::lock_guard<std::mutex> l(c->lock);
    c->over = true;
    c->shy = SHY_POLLS;
    return c->blocking ? ncclSuccess : ncclInProgress;
}
#endif

ncclResult_t ncclCommAbort(ncclComm_t c)
{
    if (!c || !c->self) return fail(ncclInvalidArgument, "not a communicator");
    c->over = true;
    std::shared_ptr<ncclComm> last = std::move(c->self);
    return ncclSuccess;
}

ncclResult_t ncclCommCount(const ncclComm_t c, int *n)
{
    *n = c->n;
    return ncclSuccess;
}

ncclResult_t ncclCommUserRank(const ncclComm_t c, int *rank)
{
    *rank = c->rank;
    return ncclSuccess;
}

ncclResult_t ncclMemAlloc(void **p, size_t bytes)
{
    return device_alloc_pages(p, bytes) == cudaSuccess ? ncclSuccess : fail(ncclUnhandledCudaError, "out of memory");
}

ncclResult_t ncclMemFree(void *p) { return cudaFree(p) == cudaSuccess ? ncclSuccess : fail(ncclUnhandledCudaError, "not memory from ncclMemAlloc"); }

ncclResult_t ncclCommRegister(const ncclComm_t c, void *p, size_t bytes, void **handle)
{
    ncclResult_t r = usable(c);
    if (r == ncclSuccess && !is_device(p, bytes)) r = fail(ncclInvalidArgument, "only device memory can be registered");
    if (r == ncclSuccess) *handle = p;
    return r;
}

ncclResult_t ncclCommDeregister(const ncclComm_t c, void *handle)
{
    if (!c || !c->self || !handle) return fail(ncclInvalidArgument, "not registered");
    return ncclSuccess;
}

ncclResult_t ncclGroupStart()
{
    group.depth++;
    return ncclSuccess;
}

ncclResult_t ncclGroupEnd()
{
    if (group.depth == 0) return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    return --group.depth == 0 ? launch_group() : ncclSuccess;
}

ncclResult_t ncclSend(const void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    return issue(c, s, { SEND_RECV, (const char *)p, nullptr, n, t, peer });
}

ncclResult_t ncclRecv(void *p, size_t n, ncclDataType_t t, int peer, ncclComm_t c, cudaStream_t s)
{
    return issue(c, s, { SEND_RECV, nullptr, (char *)p, n, t, peer });
}

static ncclResult_t only_sum(ncclRedOp_t o) { return o == ncclSum ? ncclSuccess : fail(ncclInvalidArgument, "only sums are simulated"); }

ncclResult_t ncclAllReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t s)
{
    ncclResult_t r = only_sum(o);
    return r == ncclSuccess ? issue(c, s, { ALL_REDUCE, (const char *)in, (char *)out, n, t, 0 }) : r;
}

ncclResult_t ncclReduceScatter(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t o, ncclComm_t c, cudaStream_t s)
{
    ncclResult_t r = only_sum(o);
    return r == ncclSuccess ? issue(c, s, { REDUCE_SCATTER, (const char *)in, (char *)out, n, t, 0 }) : r;
}

ncclResult_t ncclReduce(const void *in, void *out, size_t n, ncclDataType_t t, ncclRedOp_t o, int root, ncclComm_t c, cudaStream_t s)
{
    ncclResult_t r = only_sum(o);
    return r == ncclSuccess ? issue(c, s, { REDUCE, (const char *)in, (char *)out, n, t, root }) : r;
}

ncclResult_t ncclAllGather(const void *in, void *out, size_t n, ncclDataType_t t, ncclComm_t c, cudaStream_t s)
{
    return issue(c, s, { ALL_GATHER, (const char *)in, (char *)out, n, t, 0 });
}

ncclResult_t ncclBroadcast(const void *in, void *out, size_t n, ncclDataType_t t, int root, ncclComm_t c, cudaStream_t s)
{
    return issue(c, s, { BROADCAST, (const char *)in, (char *)out, n, t, root });
}

}  // extern "C"
