// probe.h - one warp that runs each primitive of prims.cuh once; see probe.cc.
#ifndef RM_TESTS_GPUSIM_PROBE_H
#define RM_TESTS_GPUSIM_PROBE_H

#include <stdint.h>

enum { PROBE_CVT = 4, PROBE_SHUFFLES = 6 };

struct probe_in {
    uint32_t mma[2][32][6];         // a[4], b[2] of each lane: small whole numbers, then arbitrary ones
    float mma_c[2][32][4];
    uint16_t rows[32][8];           // what ldmatrix reads
    int32_t row_of[32];             // the row whose address lane l gives
    float cvt[32][2 * PROBE_CVT];
    float exp2[32];
};

struct probe_out {
    float mma[2][32][4];
    uint32_t ldmatrix[2][32][4];    // plain, transposed
    uint32_t cvt[32][PROBE_CVT];
    float exp2[32];
    int32_t shuffle[PROBE_SHUFFLES][32];
    uint32_t ballot[32];
    uint32_t copied[32][4], zeros[32][4];      // cp.async, and its zero fill
};

int probe_run(const probe_in *in, probe_out *out);      // both where host and kernel reach them; 0 when it ran

#endif
