// standins.cc - the stand-ins for the CUDA runtime, cuBLASLt and NCCL do what the real ones promise, no less and on purpose no more:
// each test is a program that needs a wait, with and without it.
#include <check.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <functional>
#include <vector>

#include "kernels/cuda/gpu.h"
#include "tests/suite.h"

#include <nccl.h>

static const char *const modes[] = { "lazy", "greedy", "random:1", "random:2" };
enum { MODES = 4, N = 1000 };

static __global__ void add_kernel(float *y, const float *x, float a)
{
    for (int i = (int)(blockIdx.x * blockDim.x + threadIdx.x); i < N; i += (int)(gridDim.x * blockDim.x)) y[i] = x[i] + a;
}

static void add(float *y, const float *x, float a, cudaStream_t s)
{
    ck_assert_int_eq(GPU_LAUNCH(add_kernel, dim3(2), dim3(64), 0, s, y, x, a), cudaSuccess);
}

struct rig {
    float *x, *y, *z, *pinned, *back;
    cudaStream_t a, b;
    cudaEvent_t e;
    explicit rig(const char *mode)
    {
        (void)setenv("GPUSIM_STREAMS", mode, 1);
        for (float **p : { &x, &y, &z }) {
            ck_assert_int_eq(cudaMalloc((void **)p, N * sizeof(float)), cudaSuccess);
            ck_assert_int_eq(cudaMemset(*p, 0, N * sizeof(float)), cudaSuccess);
        }
        ck_assert_int_eq(cudaDeviceSynchronize(), cudaSuccess);
        for (float **p : { &pinned, &back }) ck_assert_int_eq(cudaMallocHost((void **)p, N * sizeof(float)), cudaSuccess);
        ck_assert_int_eq(cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking), cudaSuccess);
        ck_assert_int_eq(cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking), cudaSuccess);
        ck_assert_int_eq(cudaEventCreate(&e), cudaSuccess);
    }
    float first(const float *p)             // waits for stream b
    {
        ck_assert_int_eq(cudaMemcpyAsync(back, p, N * sizeof(float), cudaMemcpyDeviceToHost, b), cudaSuccess);
        ck_assert_int_eq(cudaStreamSynchronize(b), cudaSuccess);
        for (int i = 1; i < N; i++) ck_assert(back[i] == back[0]);
        return back[0];
    }
};

// Stream b reads what stream a makes.
static float handed_over(const char *mode, bool with_wait)
{
    rig r(mode);
    add(r.y, r.x, 1, r.a);
    if (with_wait) {
        (void)cudaEventRecord(r.e, r.a);
        (void)cudaStreamWaitEvent(r.b, r.e, 0);
    }
    add(r.z, r.y, 1, r.b);
    return r.first(r.z);
}

// Stream a fills y again after b has read it.
static float read_before_overwritten(const char *mode, bool with_wait)
{
    rig r(mode);
    add(r.z, r.y, 1, r.b);
    if (with_wait) {
        (void)cudaEventRecord(r.e, r.b);
        (void)cudaStreamWaitEvent(r.a, r.e, 0);
    }
    add(r.y, r.x, 10, r.a);
    return r.first(r.z);
}

// A pinned buffer is written again while a copy out of it is queued.
static float pinned_reused(const char *mode, bool with_wait)
{
    rig r(mode);
    for (int i = 0; i < N; i++) r.pinned[i] = 2;
    ck_assert_int_eq(cudaMemcpyAsync(r.y, r.pinned, N * sizeof(float), cudaMemcpyHostToDevice, r.b), cudaSuccess);
    if (with_wait) (void)cudaStreamSynchronize(r.b);
    for (int i = 0; i < N; i++) r.pinned[i] = 50;
    return r.first(r.y);
}

// cudaMemset of device memory returns at once, and a non-blocking stream does not wait for it.
static float cleared_late(const char *mode, bool with_wait)
{
    rig r(mode);
    (void)cudaMemset(r.y, 0, N * sizeof(float));
    if (with_wait) (void)cudaDeviceSynchronize();
    add(r.y, r.x, 2, r.a);
    (void)cudaEventRecord(r.e, r.a);
    (void)cudaStreamWaitEvent(r.b, r.e, 0);
    (void)cudaDeviceSynchronize();
    return r.first(r.y);
}

static const struct ordering { const char *name; float (*run)(const char *mode, bool with_wait); float right; } orderings[] = {
    { "handed over", handed_over, 2 },
    { "overwritten", read_before_overwritten, 1 },
    { "pinned", pinned_reused, 2 },
    { "cleared", cleared_late, 2 },
};
enum { ORDERINGS = sizeof orderings / sizeof orderings[0] };

// One process per run: a mode is chosen once.
static int in_child(const std::function<int()> &f)
{
    pid_t pid = fork();
    if (pid == 0) _exit(f());
    int status = 0;
    ck_assert(waitpid(pid, &status, 0) == pid);
    return status;
}

START_TEST(waits)
{
    const ordering &o = orderings[_i];
    int seen = 0;
    for (const char *mode : modes) {
        ck_assert_msg(in_child([&] { return o.run(mode, true) == o.right ? 0 : 1; }) == 0, "%s, %s: wrong with its wait", o.name, mode);
        seen += in_child([&] { return o.run(mode, false) == o.right ? 0 : 1; }) != 0;
    }
    ck_assert_msg(seen > 0, "%s: no order showed the missing wait", o.name);
}
END_TEST

START_TEST(host_touches_device_memory)
{
    rig r("lazy");
    add(r.y, r.x, 1, r.b);
    ck_assert(r.first(r.y) == 1);
    printf("%g\n", (double)*(volatile float *)r.y);     // SIGSEGV
}
END_TEST

START_TEST(kernel_given_host_memory)
{
    rig r("sync");
    std::vector<float> v(N);
    add(v.data(), r.x, 1, r.b);             // abort
}
END_TEST

START_TEST(refusals)
{
    (void)setenv("GPUSIM_MEMORY", "100000", 1);
    (void)setenv("GPUSIM_DEVICES", "2", 1);
    int n = 0;
    ck_assert(cudaGetDeviceCount(&n) == cudaSuccess && n == 2);
    ck_assert_int_eq(cudaSetDevice(2), cudaErrorInvalidDevice);
    rig r("lazy");
    void *p;
    size_t free_bytes, total;
    ck_assert_int_eq(cudaMalloc(&p, 90000), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaGetLastError(), cudaErrorMemoryAllocation);
    ck_assert_int_eq(cudaGetLastError(), cudaSuccess);
    ck_assert(cudaMemGetInfo(&free_bytes, &total) == cudaSuccess && total == 100000 && free_bytes == 100000 - 3 * N * sizeof(float));
    ck_assert_int_eq(cudaMemcpyAsync(r.x, r.pinned, 4, cudaMemcpyDeviceToHost, r.a), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaMemcpyAsync(r.x + N - 1, r.pinned, 8, cudaMemcpyHostToDevice, r.a), cudaErrorInvalidValue);
    ck_assert_int_eq(GPU_LAUNCH(add_kernel, dim3(1), dim3(64), 60000, r.a, r.y, (const float *)r.x, 1.0f), cudaErrorInvalidValue);
    ck_assert_int_eq(cudaFuncSetAttribute(add_kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, 60000), cudaSuccess);
    ck_assert_int_eq(GPU_LAUNCH(add_kernel, dim3(1), dim3(64), 60000, r.a, r.y, (const float *)r.x, 1.0f), cudaSuccess);
    ck_assert_int_eq(GPU_LAUNCH(add_kernel, dim3(1, 70000), dim3(64), 0, r.a, r.y, (const float *)r.x, 1.0f), cudaErrorInvalidConfiguration);
    ck_assert_int_eq(cudaFree(r.x), cudaSuccess);
    ck_assert_int_eq(cudaFree(r.x), cudaErrorInvalidValue);
}
END_TEST

// --- NCCL ---

enum { P = 3 };

static ncclResult_t settle(ncclComm_t c, ncclResult_t r)
{
    for (int i = 0; r == ncclInProgress && i < 100000; i++) {
        if (ncclCommGetAsyncError(c, &r) != ncclSuccess) return ncclInternalError;
        usleep(50);
    }
    return r;
}

// f on P processes with a communicator; rank 0 says there are `shape` ranks. Their statuses.
static std::vector<int> gang(const char *mode, const std::function<int(int, ncclComm_t, rig &)> &f, int shape = P)
{
    auto *id = (ncclUniqueId *)mmap(nullptr, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ck_assert_int_eq(ncclGetUniqueId(id), ncclSuccess);
    std::vector<pid_t> pids;
    for (int rank = 0; rank < P; rank++) {
        pid_t pid = fork();
        if (pid == 0) {
            (void)alarm(60);
            rig r(mode);
            ncclComm_t c;
            ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
            config.blocking = 0;
            ncclResult_t said = ncclCommInitRankConfig(&c, rank == 0 ? shape : P, *id, rank, &config);
            if (said == ncclInvalidArgument) _exit(9);
            if (said != ncclInProgress || ncclSend(r.x, 1, ncclFloat, 0, c, r.a) != ncclInvalidUsage) _exit(8);     // too early
            if (settle(c, ncclInProgress) != ncclSuccess) _exit(7);
            _exit(f(rank, c, r));
        }
        pids.push_back(pid);
    }
    std::vector<int> out;
    for (pid_t pid : pids) {
        int status = 0;
        (void)waitpid(pid, &status, 0);
        out.push_back(status);
    }
    (void)munmap(id, 4096);
    return out;
}

static int all_right(int rank, ncclComm_t c, rig &r)
{
    for (int round = 0; round < 7; round++) {
        add(r.x, r.x, (float)(rank + 1), r.a);              // x = (rank + 1) * (round + 1)
        float one = (float)(round + 1), all = one * 6;      // ranks 1, 2, 3
        if (settle(c, ncclAllReduce(r.x, r.y, N, ncclFloat, ncclSum, c, r.a)) != ncclSuccess) return 1;
        (void)ncclGroupStart();
        (void)ncclSend(r.x, N, ncclFloat, (rank + 1) % P, c, r.a);
        (void)ncclRecv(r.z, N, ncclFloat, (rank + P - 1) % P, c, r.a);
        if (settle(c, ncclGroupEnd()) != ncclSuccess) return 2;
        (void)cudaEventRecord(r.e, r.a);
        (void)cudaStreamWaitEvent(r.b, r.e, 0);
        if (r.first(r.y) != all || r.first(r.z) != one * (float)((rank + P - 1) % P + 1)) return 3;
        (void)ncclGroupStart();
        (void)ncclReduce(r.x, r.y, N, ncclFloat, ncclSum, 1, c, r.b);
        (void)ncclBroadcast(r.x, r.z, N, ncclFloat, 2, c, r.b);
        if (settle(c, ncclGroupEnd()) != ncclSuccess) return 4;
        if (r.first(r.z) != one * 3 || (rank == 1 && r.first(r.y) != all)) return 5;
        if (settle(c, ncclAllGather(r.x, r.z, N / P, ncclFloat, c, r.b)) != ncclSuccess) return 6;
        (void)cudaMemcpyAsync(r.back, r.z, N / P * P * sizeof(float), cudaMemcpyDefault, r.b);
        (void)cudaStreamSynchronize(r.b);
        for (int i = 0; i < N / P * P; i++)
            if (r.back[i] != one * (float)(i / (N / P) + 1)) return 10;
        if (settle(c, ncclReduceScatter(r.z, r.y, N / P, ncclFloat, ncclSum, c, r.b)) != ncclSuccess) return 11;
        (void)cudaMemcpyAsync(r.back, r.y, N / P * sizeof(float), cudaMemcpyDefault, r.b);
        (void)cudaStreamSynchronize(r.b);
        if (r.back[0] != one * (float)(rank + 1) * P) return 12;
        (void)cudaEventRecord(r.e, r.b);
        (void)cudaStreamWaitEvent(r.a, r.e, 0);
    }
    if (settle(c, ncclCommFinalize(c)) != ncclSuccess) return 13;
    return ncclCommDestroy(c) == ncclSuccess ? 0 : 14;
}

START_TEST(collectives)
{
    for (int status : gang(modes[_i], all_right)) ck_assert_int_eq(status, 0);
}
END_TEST

START_TEST(mismatch_is_named)
{
    auto out = gang("lazy", [](int rank, ncclComm_t c, rig &r) {
        (void)settle(c, ncclBroadcast(r.x, r.y, (size_t)(rank == 2 ? 7 : 8), ncclFloat, 0, c, r.b));
        (void)cudaStreamSynchronize(r.b);
        return 0;
    });
    ck_assert(WIFSIGNALED(out[2]) && WTERMSIG(out[2]) == SIGABRT);
}
END_TEST

START_TEST(shapes_must_agree)
{
    auto out = gang("lazy", [](int, ncclComm_t, rig &) { return 0; }, P + 1);
    int refused = 0;
    for (int status : out) refused += WIFEXITED(status) && WEXITSTATUS(status) == 9;
    ck_assert_int_ge(refused, 1);
}
END_TEST

// A rank dies; nobody is told; whoever waits for it gets free by revoking and aborting.
START_TEST(a_dead_peer_holds_until_aborted)
{
    auto out = gang("lazy", [](int rank, ncclComm_t c, rig &r) {
        if (rank == 1) (void)kill(getpid(), SIGKILL);
        (void)settle(c, ncclAllReduce(r.x, r.y, N, ncclFloat, ncclSum, c, r.b));
        for (int i = 0; i < 100; i++) {
            if (cudaStreamQuery(r.b) != cudaErrorNotReady) return 1;
            usleep(1000);
        }
        ncclResult_t state = ncclSuccess;
        if (ncclCommGetAsyncError(c, &state) != ncclSuccess || state != ncclSuccess) return 2;
#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
        if (settle(c, ncclCommRevoke(c, NCCL_REVOKE_DEFAULT)) != ncclSuccess) return 3;
#endif
        if (ncclCommAbort(c) != ncclSuccess) return 5;
        return cudaStreamSynchronize(r.b) == cudaSuccess ? 0 : 4;
    });
    ck_assert(out[0] == 0 && out[2] == 0 && WIFSIGNALED(out[1]));
}
END_TEST

int main()
{
    Suite *s = suite_create("standins");
    TCase *t = tcase_create("standins");
    tcase_set_timeout(t, 120);
    tcase_add_loop_test(t, waits, 0, ORDERINGS);
    tcase_add_test(t, refusals);
    tcase_add_test_raise_signal(t, host_touches_device_memory, SIGSEGV);
    tcase_add_test_raise_signal(t, kernel_given_host_memory, SIGABRT);
    tcase_add_loop_test(t, collectives, 0, MODES);
    tcase_add_test(t, mismatch_is_named);
    tcase_add_test(t, shapes_must_agree);
    tcase_add_test(t, a_dead_peer_holds_until_aborted);
    suite_add_tcase(s, t);
    return suite_run(s, CK_FORK);
}
