// stream.cc - streams and events: which operation runs next.
//
// GPUSIM_STREAMS  lazy      (default) only what the host waits for, and what that in turn waits for: a missing wait reads stale data
//                 greedy    before each operation of the awaited stream all others run as far as they go, and transfers get time to
//                           land: a buffer filled again too early is overwritten. Every other rank is patient, or none gets ahead.
//                 random:N  any mixture, by seed N
//                 sync      at once, in the calling thread; shows no ordering bug
// Whatever the mode, a process whose host makes no CUDA call for a while, or which cannot get on, runs everything it has: its
// peers may need it.
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <thread>

#include "tests/gpusim/device.h"

using namespace gpusim;

struct CUstream_st {
    unsigned number = 0;
    bool blocking = false;                  // orders itself with the default stream, as CUDA's legacy streams do
    bool destroyed = false;
    std::deque<std::unique_ptr<op>> queue;
    uint64_t queued = 0, done = 0;
    bool pending = false;                   // the head was begun
    double patience = 0;                    // greedy: how much longer the head may hold the others up
    grid_pools *pools = nullptr;
    void *tsan = nullptr;
    char sync = 0;
};

struct CUevent_st {
    bool timed = true, recorded = false;
    point when = {};
    std::shared_ptr<moment> last;
};

namespace gpusim {

extern grid_pools *cur_pools;

enum mode { LAZY, GREEDY, RANDOM, SYNC };
static const double IDLE_S = 0.05;          // without a CUDA call for so long, everything queued runs
static const double STALL_S = 0.004;        // awaited work that gets no further: perhaps a peer waits for our other streams
static const int ASKING = 8;                // so many queries in a row are a host that waits by asking
static double landing_s = 0.02;             // greedy: time a transfer gets to land before others go on

struct device {
    std::mutex lock, inline_lock;
    std::condition_variable work, progress;
    std::vector<CUstream_st *> streams;
    std::vector<CUstream_st *> gone;        // destroyed: events may still name them
    CUstream_st *legacy;
    std::vector<point> wants;
    mode how = LAZY;
    uint64_t rng = 0;
    bool started = false, open = false;
    double last_call = 0;
    int asked = 0;                          // queries since work was last queued
};

double device_now()
{
    return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

static void parse_mode(device *d)
{
    const char *s = getenv("GPUSIM_STREAMS");
    if (!s || strcmp(s, "lazy") == 0) return;
    if (strcmp(s, "greedy") == 0) d->how = GREEDY;
    else if (strcmp(s, "sync") == 0) d->how = SYNC;
    else if (strncmp(s, "random", 6) == 0) {
        d->how = RANDOM;
        d->rng = s[6] == ':' ? strtoull(s + 7, nullptr, 0) : 1;
    } else die("GPUSIM_STREAMS=%s: expected lazy, greedy, random:SEED or sync", s);
    d->rng = (d->rng + 1) * 0x9E3779B97F4A7C15ull;
}

static CUstream_st *stream_new(device *d, bool blocking)
{
    CUstream_st *s = new CUstream_st;
    s->number = (unsigned)d->streams.size();
    s->blocking = blocking;
    s->pools = grid_pools_new();
#ifdef GPUSIM_LINK_TSAN
    char name[32];
    (void)snprintf(name, sizeof name, "stream-%u", s->number);
    s->tsan = __tsan_create_fiber(0);
    __tsan_set_fiber_name(s->tsan, name);
#endif
    d->streams.push_back(s);
    return s;
}

static device &dev()
{
    static device *d = [] {
        device *x = new device;
        parse_mode(x);
        x->legacy = stream_new(x, true);
        return x;
    }();
    return *d;
}

static uint64_t dice(device &d)
{
    d.rng ^= d.rng << 13;
    d.rng ^= d.rng >> 7;
    d.rng ^= d.rng << 17;
    return d.rng >> 11;
}

// --- running one operation ---

// Runs o's poll in the stream's name; true when it is done.
static bool run(CUstream_st *s, op *o, bool *moved)
{
    grid_pools *before = cur_pools;
    cur_pools = s->pools;
#ifdef GPUSIM_LINK_TSAN
    void *me = __tsan_get_current_fiber();
    __tsan_switch_to_fiber(s->tsan, 1);
    __tsan_acquire(o);                      // what the host did before it queued this
    if (o->follows) __tsan_acquire(&o->follows->sync);
#endif
    bool done = !o->poll || o->poll(moved);
    if (done) {
        o->poll = nullptr;                  // its closure dies in the stream's name
        __tsan_release(&s->sync);
        if (o->records) __tsan_release(&o->records->sync);
    }
#ifdef GPUSIM_LINK_TSAN
    __tsan_switch_to_fiber(me, 1);
#endif
    cur_pools = before;
    return done;
}

static const point *unmet(const op *o)
{
    for (const point &p : o->after)
        if (p.stream->done < p.count) return &p;
    return nullptr;
}

// Takes the head of s one step further, with d.lock held (not while it runs). True when something got on.
static bool step(device &d, std::unique_lock<std::mutex> &lock, CUstream_st *s)
{
    if (s->queue.empty() || unmet(s->queue.front().get())) return false;
    op *o = s->queue.front().get();
    if (!s->pending) s->patience = landing_s;
    s->pending = true;
    lock.unlock();
    bool moved = false, done = run(s, o, &moved);
    lock.lock();
    if (!done) return moved;
    if (o->records) o->records->at = device_now();
    s->pending = false;
    s->queue.pop_front();
    s->done++;
    return true;
}

// Towards the next operation of s, other streams only where an event it waits for asks for it.
static bool advance(device &d, std::unique_lock<std::mutex> &lock, CUstream_st *s)
{
    for (int hops = 0; hops < 64 && !s->queue.empty(); hops++) {
        const point *p = unmet(s->queue.front().get());
        if (!p) return step(d, lock, s);
        s = p->stream;
    }
    return false;
}

static bool all_others(device &d, std::unique_lock<std::mutex> &lock, CUstream_st *but)
{
    bool ran = false;
    for (bool more = true; more;) {
        more = false;
        CUstream_st *landing = nullptr;
        for (size_t i = 0; i < d.streams.size(); i++) {
            CUstream_st *s = d.streams[i];
            if (s == but) continue;
            while (step(d, lock, s)) ran = more = true;
            if (s->pending && s->patience > 0) landing = s;
        }
        if (!more && landing) {             // a transfer that waits for its peer: a little time, once
            double t0 = device_now();
            lock.unlock();
            usleep(50);
            lock.lock();
            landing->patience -= device_now() - t0;
            more = true;
        }
    }
    return ran;
}

static bool serve(device &d, std::unique_lock<std::mutex> &lock, CUstream_st *s)
{
    bool ran = false;
    if (d.how == GREEDY) ran = all_others(d, lock, s);
    if (d.how == RANDOM)
        for (uint64_t n = dice(d) % 4; n > 0; n--) ran |= step(d, lock, d.streams[dice(d) % d.streams.size()]);
    return advance(d, lock, s) || ran;
}

// --- the device thread ---

static bool anything_queued(device &d)
{
    for (CUstream_st *s : d.streams)
        if (!s->queue.empty()) return true;
    return false;
}

static void forget_reached(device &d)
{
    for (size_t i = 0; i < d.wants.size();) {
        if (d.wants[i].stream->done < d.wants[i].count) i++;
        else d.wants.erase(d.wants.begin() + (ptrdiff_t)i);
    }
    for (size_t i = 1; i < d.streams.size();) {
        CUstream_st *s = d.streams[i];
        if (!s->destroyed || !s->queue.empty()) i++;
        else {
            d.gone.push_back(s);
            d.streams.erase(d.streams.begin() + (ptrdiff_t)i);
        }
    }
}

static void set_open(device &d, bool open)
{
    if (d.open == open) return;
    d.open = open;
    open ? memory_open() : memory_close();
}

static void device_main()
{
    device &d = dev();
    std::unique_lock<std::mutex> lock(d.lock);
    double got_on = device_now();
    for (;;) {
        forget_reached(d);
        bool rest = d.wants.empty();
        if (rest) {
            bool drain = anything_queued(d) && device_now() - d.last_call > IDLE_S;
            if (!drain) {
                set_open(d, false);
                d.progress.notify_all();
                d.work.wait_for(lock, std::chrono::milliseconds(anything_queued(d) ? 10 : 1000));
                got_on = device_now();
                continue;
            }
        }
        set_open(d, true);
        bool ran = false;
        std::vector<point> wants = d.wants;
        for (const point &p : wants)
            if (p.stream->done < p.count) ran |= serve(d, lock, p.stream);
        if (rest || (!ran && device_now() - got_on > STALL_S))
            for (size_t i = 0; i < d.streams.size(); i++) ran |= step(d, lock, d.streams[i]);
        if (ran) {
            got_on = device_now();
            for (const point &p : wants)
                if (p.stream->done >= p.count && d.wants.size() > 1) d.progress.notify_all();
        } else {
            lock.unlock();
            usleep(30);
            lock.lock();
        }
    }
}

static void start(device &d)
{
    if (d.started) return;
    d.started = true;
    std::thread(device_main).detach();
}

// --- what the stand-ins call ---

void enqueue(cudaStream_t stream, op o)
{
    device &d = dev();
    CUstream_st *s = stream ? stream : d.legacy;
    std::unique_ptr<op> x(new op(std::move(o)));
    if (s->destroyed) die("work is queued on a stream that was destroyed");
    if (d.how == SYNC) {
        std::lock_guard<std::mutex> one(d.inline_lock);
        memory_open();
        bool moved = false;
        __tsan_release(x.get());
        while (!run(s, x.get(), &moved)) usleep(20);
        __tsan_acquire(&s->sync);
        memory_close();
        std::lock_guard<std::mutex> l(d.lock);
        if (x->records) x->records->at = device_now();
        s->queued++;
        s->done++;
        return;
    }
    std::lock_guard<std::mutex> l(d.lock);
    if (s == d.legacy) {
        for (CUstream_st *t : d.streams)
            if (t != s && t->blocking) x->after.push_back({ t, t->queued });
    } else if (s->blocking) x->after.push_back({ d.legacy, d.legacy->queued });
    __tsan_release(x.get());
    s->queued++;
    s->queue.push_back(std::move(x));
    d.last_call = device_now();
    d.asked = 0;
    start(d);
}

point stream_end(cudaStream_t stream)
{
    device &d = dev();
    std::lock_guard<std::mutex> l(d.lock);
    CUstream_st *s = stream ? stream : d.legacy;
    return { s, s->queued };
}

bool reached(point p)
{
    device &d = dev();
    std::lock_guard<std::mutex> l(d.lock);
    d.last_call = device_now();
    bool yes = !p.stream || p.stream->done >= p.count;
    if (yes && p.stream) __tsan_acquire(&p.stream->sync);
    return yes;
}

static void add_want(device &d, point p)
{
    for (const point &x : d.wants)
        if (x.stream == p.stream && x.count >= p.count) return;
    d.wants.push_back(p);
    d.work.notify_all();
}

void set_patience(double seconds) { landing_s = seconds; }

void want(point p)
{
    device &d = dev();
    std::lock_guard<std::mutex> l(d.lock);
    if (p.stream->done < p.count && ++d.asked > ASKING) add_want(d, p);
}

void wait_for(point p)
{
    device &d = dev();
    std::unique_lock<std::mutex> l(d.lock);
    if (!p.stream) return;
    if (p.stream->done < p.count) add_want(d, p);
    while (p.stream->done < p.count) d.progress.wait(l);
    d.last_call = device_now();
    __tsan_acquire(&p.stream->sync);
}

void wait_for_all()
{
    device &d = dev();
    std::vector<point> ends;
    {
        std::lock_guard<std::mutex> l(d.lock);
        for (CUstream_st *s : d.streams) ends.push_back({ s, s->queued });
    }
    for (point p : ends) wait_for(p);
}

}  // namespace gpusim

// --- the runtime's streams and events ---

extern "C" {

cudaError_t cudaStreamCreateWithFlags(cudaStream_t *s, unsigned flags)
{
    device &d = dev();
    std::lock_guard<std::mutex> l(d.lock);
    *s = stream_new(&d, !(flags & cudaStreamNonBlocking));
    return cudaSuccess;
}

cudaError_t cudaStreamCreateWithPriority(cudaStream_t *s, unsigned flags, int) { return cudaStreamCreateWithFlags(s, flags); }
cudaError_t cudaStreamCreate(cudaStream_t *s) { return cudaStreamCreateWithFlags(s, cudaStreamDefault); }

cudaError_t cudaDeviceGetStreamPriorityRange(int *least, int *greatest)
{
    if (least) *least = 0;
    if (greatest) *greatest = -5;
    return cudaSuccess;
}

// Returns at once; what is queued still runs.
cudaError_t cudaStreamDestroy(cudaStream_t s)
{
    device &d = dev();
    std::lock_guard<std::mutex> l(d.lock);
    if (!s || s->destroyed) return note(cudaErrorInvalidResourceHandle);
    s->destroyed = true;
    return cudaSuccess;
}

cudaError_t cudaStreamQuery(cudaStream_t s)
{
    point p = stream_end(s);
    if (reached(p)) return cudaSuccess;
    want(p);
    return cudaErrorNotReady;
}

cudaError_t cudaStreamSynchronize(cudaStream_t s)
{
    wait_for(stream_end(s));
    return cudaSuccess;
}

cudaError_t cudaDeviceSynchronize(void)
{
    wait_for_all();
    return cudaSuccess;
}

cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned)
{
    if (!e) return note(cudaErrorInvalidResourceHandle);
    if (!e->recorded) return cudaSuccess;           // as CUDA has it: nothing to wait for
    op o;
    o.after.push_back(e->when);
    o.follows = e->last;
    enqueue(s, std::move(o));
    return cudaSuccess;
}

cudaError_t cudaEventCreateWithFlags(cudaEvent_t *e, unsigned flags)
{
    *e = new CUevent_st;
    (*e)->timed = !(flags & cudaEventDisableTiming);
    return cudaSuccess;
}

cudaError_t cudaEventCreate(cudaEvent_t *e) { return cudaEventCreateWithFlags(e, cudaEventDefault); }

cudaError_t cudaEventDestroy(cudaEvent_t e)
{
    delete e;
    return cudaSuccess;
}

cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s)
{
    if (!e) return note(cudaErrorInvalidResourceHandle);
    op o;
    o.records = e->last = std::make_shared<moment>();
    enqueue(s, std::move(o));
    e->when = stream_end(s);
    e->recorded = true;
    return cudaSuccess;
}

cudaError_t cudaEventQuery(cudaEvent_t e)
{
    if (!e->recorded || reached(e->when)) return cudaSuccess;
    want(e->when);
    return cudaErrorNotReady;
}

cudaError_t cudaEventSynchronize(cudaEvent_t e)
{
    if (e->recorded) wait_for(e->when);
    return cudaSuccess;
}

cudaError_t cudaEventElapsedTime(float *ms, cudaEvent_t from, cudaEvent_t to)
{
    if (!from->recorded || !to->recorded || !from->timed || !to->timed) return note(cudaErrorInvalidResourceHandle);
    if (!reached(from->when) || !reached(to->when)) return cudaErrorNotReady;
    *ms = (float)((to->last->at - from->last->at) * 1e3);
    return cudaSuccess;
}

}  // extern "C"
