/* graphs.c - cuDNN's attention graphs, built for sm_90 and sm_80 without a device: each must find an engine and its kernel must compile; memory
 * must grow with the length and not with its square (NVIDIA/cudnn-frontend PR 398: hundreds of GiB at 128K). No number is checked: that is
 * attn_choose's work on a device. usage: graphs STUB_LIBCUDA      exit 77 without cuDNN or the stub */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>

#include "kernels/cuda/library.h"

/* Never reached: nothing runs. */
int cuda_project(struct stream *s, void *out, const void *dout, const float *delta, int64_t delta_stride, int64_t T, int64_t H, int64_t D)
{
    (void)s, (void)out, (void)dout, (void)delta, (void)delta_stride, (void)T, (void)H, (void)D;
    abort();
}
int cuda_add_bf16(struct stream *s, float *y, const void *x, int64_t n)
{
    (void)s, (void)y, (void)x, (void)n;
    abort();
}
int cuda_status(struct stream *s, cudaError_t e, const char *what)
{
    (void)s, (void)e, (void)what;
    abort();
}

/* The fields cuDNN asks for, with the values of the two cards. */
#define CARD(name, version, sms, shared, memory, sm_khz, mem_khz, l2) \
    "{\"deviceName\": \"" name "\", \"cudaDeviceId\": 0, \"deviceVer\": " version ", \"multiProcessorCount\": " sms ", \"driverVer\": 13000, \"maxSharedMemoryPerBlockOptin\": " shared \
    ", \"totalGlobalMem\": " memory ", \"maxGridSize\": [2147483647, 65535, 65535], \"maxBlockSize\": [1024, 1024, 64], \"regsPerBlock\": 65536, \"warpSize\": 32, " \
    "\"maxSharedMemoryPerBlock\": 49152, \"reservedSharedMemoryPerBlock\": 1024, \"maxRegistersPerSM\": 65536, \"maxCtasPerSM\": 32, \"maxThreadsPerBlock\": 1024, " \
    "\"maxThreadsPerSM\": 2048, \"pciDeviceId\": 1, \"isTccDriver\": 0, \"supportCoopLaunch\": 1, \"smClockRateKHz\": " sm_khz ", \"memClockRateKHz\": " mem_khz \
    ", \"l2CacheSize\": " l2 "}"
static const char hopper[] = CARD("NVIDIA H200", "900", "132", "232448", "150121545728", "1980000", "3201000", "62914560");
static const char ampere[] = CARD("NVIDIA A100-SXM4-80GB", "800", "108", "166912", "85098430464", "1410000", "1593000", "41943040");

static const struct { const char *what, *card; bool backward; enum dtype dto; int64_t T, H, Hkv, D, diag; } cases[] = {
    { "sm_90 forward, diagonal, GQA, f32 output", hopper, false, DT_F32, 131072, 32, 8, 128, 0 },
    { "sm_90 forward, shifted, width 64", hopper, false, DT_BF16, 8231, 14, 2, 64, 100 },
    { "sm_90 backward, diagonal, GQA", hopper, true, DT_BF16, 131072, 32, 8, 128, 0 },
    { "sm_90 backward, shifted, width 64", hopper, true, DT_BF16, 8231, 14, 2, 64, 100 },
    { "sm_80 forward, all keys", ampere, false, DT_BF16, 8192, 32, 8, 128, 8192 },
    { "sm_80 backward, diagonal", ampere, true, DT_BF16, 8192, 32, 32, 128, 0 },
};

int main(int argc, char **argv)
{
    int bad = 0;
    struct error err = { 0 };
    void *driver = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    if (driver == NULL && (argc < 2 || dlopen(argv[1], RTLD_NOW | RTLD_GLOBAL) == NULL)) return puts("skipped: neither a driver nor the toolkit's stub of it"), 77;
    if (dlopen("libcudnn.so.9", RTLD_NOW | RTLD_LOCAL) == NULL) return puts("skipped: no libcudnn.so.9"), 77;
    for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
        struct attn_shape n = { cases[i].T, cases[i].T, cases[i].H, cases[i].Hkv, cases[i].D, 0.1f, 0 };
        int64_t ws = 0, most = 2 * n.Tk * n.H * n.D * 2 + (16 << 20);
        int rc = cudnn_try(cases[i].card, cases[i].backward, cases[i].dto, n, cases[i].diag, &ws, &err);
        bool ok = rc == OK && ws <= most;
        printf("%-45s %s, workspace %lld MiB%s%s\n", cases[i].what, ok ? "built" : "FAILED", (long long)ws >> 20, rc == OK ? "" : ": ", rc == OK ? "" : err.text);
        bad += !ok;
    }
    struct attn_shape odd = { 8192, 8192, 8, 8, 68, 0.1f, 0 };      /* a refusal arrives as one */
    int64_t ws;
    bool refused = cudnn_try(hopper, false, DT_BF16, odd, 0, &ws, &err) == E_UNSUPPORTED;
    printf("%-45s %s\n", "width 68", refused ? "refused" : "NOT refused");
    return bad || !refused;
}
