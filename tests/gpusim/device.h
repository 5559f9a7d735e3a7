// device.h - the simulated GPU's queues: what the stand-ins (runtime.cc, blas.cc, nccl.cc) put work on.
//
// One device thread per process executes all streams. It never has to run anything but what somebody waits for, so it picks, on
// purpose, one of the orders CUDA allows (GPUSIM_STREAMS, stream.cc); a missing wait then shows as wrong data, every time.
#ifndef RM_TESTS_GPUSIM_DEVICE_H
#define RM_TESTS_GPUSIM_DEVICE_H

#include <stdint.h>

#include <functional>
#include <memory>
#include <vector>

#include <cuda_runtime_api.h>

#include "tests/gpusim/checks.h"

namespace gpusim {

// The first `count` operations of a stream, as something to wait for.
struct point { CUstream_st *stream; uint64_t count; };

// One record of an event.
struct moment { double at; char sync; };

struct op {
    // Called again and again until it returns true; may be empty. *moved: set when it got further, though not to its end.
    std::function<bool(bool *moved)> poll;
    std::vector<point> after;               // what else must have happened first
    std::shared_ptr<moment> records, follows;
};

void enqueue(cudaStream_t stream, op o);
point stream_end(cudaStream_t stream);      // all that is queued by now
bool reached(point p);
void want(point p);                         // the host asks for it; when it asks often, the device works towards it
void wait_for(point p);
void wait_for_all();
void set_patience(double seconds);          // how long a greedy device gives a transfer to land before it computes on
double device_now();                        // seconds

cudaError_t note(cudaError_t e);            // keeps it for cudaGetLastError

// --- device memory (allocation.cc) ---
// The host may not touch it: it is unreadable while the device rests. Calls are balanced; made by who executes operations.
void memory_open();
void memory_close();
bool is_device(const void *p, size_t bytes);        // all of it in one allocation of device memory
bool touches_device(const void *p, size_t bytes);   // any of it
extern bool any_pointer_allowed;             // kernels may be given the host's memory: for tests of kernels alone
bool is_pinned(const void *p, size_t bytes);

// --- a grid's fibers; a stream has its own under TSan (scheduler.cc) ---
struct grid_pools;
grid_pools *grid_pools_new();

}  // namespace gpusim

#endif
