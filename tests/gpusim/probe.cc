// probe.cc - do the primitives do what we read in the PTX manual? Runs probe.cu, in the emulator or on a device, and compares every lane
// with the layouts written out here. On a device `--record FILE` keeps what it gave; `--replay FILE` compares with such a record, so that
// the emulator can be held against a card that is no longer there.
// usage: probe [--record FILE | --replay FILE]...     exit 77 without a device
#include "tests/gpusim/probe.h"

#include <cuda_runtime_api.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#ifdef GPUSIM
namespace gpusim { extern bool any_pointer_allowed; }
#endif

static probe_in *in;
static probe_out *out, expected;
static int bad;

static uint16_t round_bf16(float x)
{
    uint32_t bits;
    memcpy(&bits, &x, sizeof bits);
    if (x != x) return 0x7fff;
    return (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}
static float widen(uint16_t b)
{
    uint32_t bits = (uint32_t)b << 16;
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static void make_mma(int which)
{
    float a[16][16], b[16][8], c[16][8];
    uint32_t x = 12345;
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) {
            x = x * 1664525u + 1013904223u;
            float v = which == 0 ? (float)((i * 5 + k * 3) % 17 - 8) : (float)(int32_t)x * 0x1p-31f;
            a[i][k] = widen(round_bf16(v));
            if (k < 8) b[i][k] = widen(round_bf16(which == 0 ? (float)((i * 7 + k) % 13 - 6) : v * 0.7f + 0.1f)), c[i][k] = which == 0 ? (float)(i * 8 + k) : v;
        }
    for (int l = 0; l < 32; l++) {
        int g = l / 4, t = l % 4 * 2;
        for (int r = 0; r < 4; r++) {       // rows g, g+8; columns t, t+8
            int row = g + r % 2 * 8, col = t + r / 2 * 8;
            in->mma[which][l][r] = round_bf16(a[row][col]) | (uint32_t)round_bf16(a[row][col + 1]) << 16;
        }
        for (int r = 0; r < 2; r++) in->mma[which][l][4 + r] = round_bf16(b[t + 8 * r][g]) | (uint32_t)round_bf16(b[t + 8 * r + 1][g]) << 16;
        for (int r = 0; r < 4; r++) {
            int row = g + r / 2 * 8, col = t + r % 2;
            double sum = (double)c[row][col];
            in->mma_c[which][l][r] = c[row][col];
            for (int k = 0; k < 16; k++) sum += (double)a[row][k] * (double)b[k][col];
            expected.mma[which][l][r] = (float)sum;
        }
    }
}

static void make_rest()
{
    static const float odd[] = { 0.0f, -0.0f, 1.00390625f, 1.01171875f, 3.0e38f, 3.4e38f, 1e-40f, -1e-40f, INFINITY, -INFINITY, NAN, 1.5f };
    for (int l = 0; l < 32; l++) {
        in->row_of[l] = (l * 5 + 3) % 32;
        for (int k = 0; k < 8; k++) in->rows[l][k] = (uint16_t)(l * 256 + k * 17 + 1);
    }
    for (int l = 0; l < 32; l++) {
        for (int m = 0; m < 4; m++) {
            const uint16_t *row = in->rows[in->row_of[m * 8 + l / 4]], *low = in->rows[in->row_of[m * 8 + l % 4 * 2]], *high = in->rows[in->row_of[m * 8 + l % 4 * 2 + 1]];
            expected.ldmatrix[0][l][m] = row[l % 4 * 2] | (uint32_t)row[l % 4 * 2 + 1] << 16;
            expected.ldmatrix[1][l][m] = low[l / 4] | (uint32_t)high[l / 4] << 16;
        }
        for (int k = 0; k < PROBE_CVT; k++) {
            float x = l < 12 ? odd[l] : (float)(l * 977 + k * 131) * 1.0001f, y = l < 12 ? odd[(l + k) % 12] : -x * 1.7f;
            in->cvt[l][2 * k] = x, in->cvt[l][2 * k + 1] = y;
            expected.cvt[l][k] = round_bf16(x) | (uint32_t)round_bf16(y) << 16;
        }
        in->exp2[l] = l == 0 ? -INFINITY : (float)(l - 24) * 1.37f;
        expected.exp2[l] = exp2f(in->exp2[l]);
        expected.shuffle[0][l] = (l ^ 5) * 7;
        expected.shuffle[1][l] = (l + 3 < 32 ? l + 3 : l) * 7;
        expected.shuffle[2][l] = (l >= 3 ? l - 3 : l) * 7;
        expected.shuffle[3][l] = l * 11 % 32 * 7;
        expected.shuffle[4][l] = (l % 8 + 3 < 8 ? l + 3 : l) * 7;
        expected.shuffle[5][l] = (l / 8 * 8 + (l + 3) % 8) * 7;
        for (int k = 0; k < 32; k += 3) expected.ballot[l] |= 1u << k;
        const uint16_t *from = in->rows[(l + 1) % 32];
        for (int k = 0; k < 4; k++) expected.copied[l][k] = from[2 * k] | (uint32_t)from[2 * k + 1] << 16;
    }
}

static void words(const char *what, const void *a, const void *b, size_t bytes)
{
    const uint32_t *x = (const uint32_t *)a, *y = (const uint32_t *)b;
    for (size_t i = 0; i < bytes / 4; i++)
        if (x[i] != y[i]) {
            printf("%s: word %zu is %08x, expected %08x\n", what, i, x[i], y[i]);
            bad++;
            return;
        }
}

static void floats(const char *what, const float *x, const float *y, size_t n, float tolerance)
{
    for (size_t i = 0; i < n; i++)
        if (!(fabsf(x[i] - y[i]) <= tolerance * (1 + fabsf(y[i])))) {
            printf("%s: element %zu is %.9g, expected %.9g\n", what, i, (double)x[i], (double)y[i]);
            bad++;
            return;
        }
}

// Sums of whole numbers are exact in any order; of others the order is the card's own.
static void compare(const probe_out *x, const char *with)
{
    printf("against %s\n", with);
    words("mma of whole numbers", out->mma[0], x->mma[0], sizeof x->mma[0]);
    floats("mma", &out->mma[1][0][0], &x->mma[1][0][0], 128, 2e-6f);
    words("ldmatrix", out->ldmatrix[0], x->ldmatrix[0], sizeof x->ldmatrix[0]);
    words("ldmatrix.trans", out->ldmatrix[1], x->ldmatrix[1], sizeof x->ldmatrix[1]);
    words("cvt to bf16", out->cvt, x->cvt, sizeof x->cvt);
    floats("ex2", out->exp2, x->exp2, 32, 1e-6f);
    words("shuffles", out->shuffle, x->shuffle, sizeof x->shuffle);
    words("ballot", out->ballot, x->ballot, sizeof x->ballot);
    words("cp.async", out->copied, x->copied, sizeof x->copied);
    words("cp.async zero fill", out->zeros, x->zeros, sizeof x->zeros);
}

static int file(const char *mode, const char *path)
{
    bool record = strcmp(mode, "--record") == 0;
    FILE *f = fopen(path, record ? "w" : "r");
    probe_out kept;
    uint32_t *w = (uint32_t *)&kept;
    if (!f) return fprintf(stderr, "%s: cannot be opened\n", path), 2;
    if (record) memcpy(&kept, out, sizeof kept);
    for (size_t i = 0; i < sizeof kept / 4; i++)
        if (record ? fprintf(f, "%08x%c", w[i], i % 16 == 15 ? '\n' : ' ') < 0 : fscanf(f, "%x", &w[i]) != 1) {
            fclose(f);
            return fprintf(stderr, "%s: word %zu of %zu is missing\n", path, i, sizeof kept / 4), 2;
        }
    if (fclose(f) != 0) return fprintf(stderr, "%s: not written\n", path), 2;
    if (!record) compare(&kept, path);
    return 0;
}

int main(int argc, char **argv)
{
#ifdef GPUSIM
    if (setenv("GPUSIM_STREAMS", "sync", 1) != 0) return 1;
    gpusim::any_pointer_allowed = true;         // the host's memory will do
    in = (probe_in *)calloc(1, sizeof *in);
    out = (probe_out *)calloc(1, sizeof *out);
#else
    int n = 0;
    if (cudaGetDeviceCount(&n) != cudaSuccess || n == 0) return fprintf(stderr, "skipped: no CUDA device\n"), 77;
    if (cudaMallocManaged((void **)&in, sizeof *in, cudaMemAttachGlobal) != cudaSuccess || cudaMallocManaged((void **)&out, sizeof *out, cudaMemAttachGlobal) != cudaSuccess) return 1;
    memset(in, 0, sizeof *in);
#endif
    make_mma(0);
    make_mma(1);
    make_rest();
    memset((void *)out, 0xee, sizeof *out);
    if (probe_run(in, out) != 0) return fprintf(stderr, "the probe does not start\n"), 1;
#ifndef GPUSIM
    cudaError_t e = cudaDeviceSynchronize();
    if (e != cudaSuccess) return fprintf(stderr, "the probe failed: %s\n", cudaGetErrorString(e)), 1;
#endif
    compare(&expected, "the manual");
    for (int i = 1; i + 1 < argc; i += 2) {
        int rc = file(argv[i], argv[i + 1]);
        if (rc) return rc;
    }
    printf("%s\n", bad ? "DIFFERENT" : "all equal");
    return bad != 0;
}
