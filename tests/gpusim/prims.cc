// prims.cc - tensor-core primitives, done by the last lane to arrive for the whole warp. The layouts are our reading of the PTX
// manual; scripts/gpu-check compares them with a device where there is one.
#include "tests/gpusim/fiber.h"

namespace gpusim {

static uint64_t conflicts;
uint64_t bank_conflicts() { return conflicts; }

static float low_half(uint32_t v)
{
    uint32_t bits = v << 16;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

static float high_half(uint32_t v)
{
    uint32_t bits = v & 0xffff0000u;
    float f;
    memcpy(&f, &bits, sizeof f);
    return f;
}

struct mma_arg { float *c; const uint32_t *a; uint32_t b0, b1; };
typedef float eight __attribute__((vector_size(32)));

static void mma_fn(void **args, uint32_t mask)
{
    if (mask != 0xffffffffu) die("mma.sync needs all 32 lanes");
    float a[16][16], b[16][8];
    eight c[16];
    for (int l = 0; l < WARP; l++) {
        const mma_arg *x = (const mma_arg *)args[l];
        int g = l / 4, t = l % 4 * 2;
        for (int half = 0; half < 4; half++) {      // rows g, g+8; columns t, t+8
            float *at = &a[g + half % 2 * 8][t + half / 2 * 8];
            at[0] = low_half(x->a[half]);
            at[1] = high_half(x->a[half]);
        }
        b[t][g] = low_half(x->b0);
        b[t + 1][g] = high_half(x->b0);
        b[t + 8][g] = low_half(x->b1);
        b[t + 9][g] = high_half(x->b1);
        c[g][t] = x->c[0];
        c[g][t + 1] = x->c[1];
        c[g + 8][t] = x->c[2];
        c[g + 8][t + 1] = x->c[3];
    }
    for (int i = 0; i < 16; i++)
        for (int k = 0; k < 16; k++) {
            eight row;
            memcpy(&row, b[k], sizeof row);
            c[i] += a[i][k] * row;
        }
    for (int l = 0; l < WARP; l++) {
        const mma_arg *x = (const mma_arg *)args[l];
        int g = l / 4, t = l % 4 * 2;
        x->c[0] = c[g][t];
        x->c[1] = c[g][t + 1];
        x->c[2] = c[g + 8][t];
        x->c[3] = c[g + 8][t + 1];
    }
}

void mma_m16n8k16(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1, const char *file, int line)
{
    mma_arg x = { c, a, b0, b1 };
    warp_collective("mma.m16n8k16", 0xffffffffu, &x, mma_fn, false, file, line);
}

struct ldmatrix_arg { const uint16_t *row; uint32_t *r; int n; bool trans; };

// Eight rows of 16 bytes are read at once; two rows in the same 16-byte column of the 128-byte bank line take two cycles.
static void count_conflicts(void **args, int first)
{
    int rows_in[8] = {}, worst = 1;
    for (int i = 0; i < 8; i++) {
        uintptr_t at = (uintptr_t)((ldmatrix_arg *)args[first + i])->row / 16;
        bool same = false;
        for (int k = 0; k < i; k++) same |= (uintptr_t)((ldmatrix_arg *)args[first + k])->row / 16 == at;
        if (!same && ++rows_in[at % 8] > worst) worst = rows_in[at % 8];
    }
    conflicts += (uint64_t)(worst - 1);
}

static void ldmatrix_fn(void **args, uint32_t mask)
{
    if (mask != 0xffffffffu) die("ldmatrix needs all 32 lanes");
    const ldmatrix_arg *first = (const ldmatrix_arg *)args[0];
    for (int m = 0; m < first->n; m++) {
        count_conflicts(args, m * 8);
        for (int l = 0; l < WARP; l++) {
            uint32_t *out = &((ldmatrix_arg *)args[l])->r[m];
            if (first->trans) {
                uint32_t a = ((ldmatrix_arg *)args[m * 8 + l % 4 * 2])->row[l / 4], b = ((ldmatrix_arg *)args[m * 8 + l % 4 * 2 + 1])->row[l / 4];
                *out = a | b << 16;
            } else memcpy(out, ((ldmatrix_arg *)args[m * 8 + l / 4])->row + l % 4 * 2, sizeof *out);
        }
    }
}

void ldmatrix(uint32_t (&r)[4], const void *row, int n, bool trans, const char *file, int line)
{
    ldmatrix_arg x = { (const uint16_t *)row, r, n, trans };
    if ((int)cur->lane < 8 * n) {
        if ((uintptr_t)row & 15) die("ldmatrix at %s:%d: the row's address is not a multiple of 16", file, line);
        shared_check(row, 16, "ldmatrix", file, line);
        tsan_read(row, 16, __builtin_return_address(0));
    }
    warp_collective(trans ? "ldmatrix.trans" : "ldmatrix", 0xffffffffu, &x, ldmatrix_fn, false, file, line);
}

}  // namespace gpusim
