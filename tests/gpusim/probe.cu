// probe.cu - see probe.h.
#include "tests/gpusim/probe.h"

#include "kernels/cuda/prims.cuh"

static __global__ void probe_kernel(const probe_in *in, probe_out *out)
{
    GPU_DYN_SHARED(uint16_t, rows);             // [32][8], then [32][8] for the copies, twice
    int lane = (int)threadIdx.x;
    for (int i = 0; i < 2; i++) {
        float c[4] = { in->mma_c[i][lane][0], in->mma_c[i][lane][1], in->mma_c[i][lane][2], in->mma_c[i][lane][3] };
        uint32_t a[4] = { in->mma[i][lane][0], in->mma[i][lane][1], in->mma[i][lane][2], in->mma[i][lane][3] };
        mma_m16n8k16(c, a, in->mma[i][lane][4], in->mma[i][lane][5]);
        for (int k = 0; k < 4; k++) out->mma[i][lane][k] = c[k];
    }
    for (int k = 0; k < 8; k++) rows[lane * 8 + k] = in->rows[lane][k];
    __syncthreads();
    uint32_t r[4];
    ldmatrix_x4(r, rows + in->row_of[lane] * 8);
    for (int k = 0; k < 4; k++) out->ldmatrix[0][lane][k] = r[k];
    ldmatrix_x4_trans(r, rows + in->row_of[lane] * 8);
    for (int k = 0; k < 4; k++) out->ldmatrix[1][lane][k] = r[k];

    for (int k = 0; k < PROBE_CVT; k++) out->cvt[lane][k] = pack_bf16(in->cvt[lane][2 * k], in->cvt[lane][2 * k + 1]);
    out->exp2[lane] = exp2_fast(in->exp2[lane]);

    out->shuffle[0][lane] = __shfl_xor_sync(0xffffffffu, lane * 7, 5);
    out->shuffle[1][lane] = __shfl_down_sync(0xffffffffu, lane * 7, 3u);
    out->shuffle[2][lane] = __shfl_up_sync(0xffffffffu, lane * 7, 3u);
    out->shuffle[3][lane] = __shfl_sync(0xffffffffu, lane * 7, (lane * 11) % 32);
    out->shuffle[4][lane] = __shfl_down_sync(0xffffffffu, lane * 7, 3u, 8);
    out->shuffle[5][lane] = __shfl_sync(0xffffffffu, lane * 7, lane + 3, 8);
    out->ballot[lane] = __ballot_sync(0xffffffffu, lane % 3 == 0);

    uint16_t *copy = rows + 32 * 8, *zero = copy + 32 * 8;
    cp_async16(copy + lane * 8, in->rows[lane], 16);
    cp_async16(zero + lane * 8, in->rows[lane], 0);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    int from = (lane + 1) % 32;                 // another thread's copy
    for (int k = 0; k < 4; k++) {
        out->copied[lane][k] = copy[from * 8 + 2 * k] | (uint32_t)copy[from * 8 + 2 * k + 1] << 16;
        out->zeros[lane][k] = zero[from * 8 + 2 * k] | (uint32_t)zero[from * 8 + 2 * k + 1] << 16;
    }
}

int probe_run(const probe_in *in, probe_out *out)
{
    return GPU_LAUNCH(probe_kernel, dim3(1), dim3(32), 3 * 32 * 16, 0, in, out) != cudaSuccess;
}
