/* onednn.h - the two products we take from oneDNN, without its types. */
#ifndef RM_KERNELS_CPU_ONEDNN_H
#define RM_KERNELS_CPU_ONEDNN_H

#include "kernels/kernels.h"

/* c[M,N] = alpha op(a) op(b) + beta c, as in kernels.h. */
struct product {
    enum dtype dc, dab;
    bool ta, tb;
    int64_t M, N, K, lda, ldb, ldc;
    float alpha, beta;
};

/* f32 only. Returns oneDNN's status, 0 when done. */
int onednn_sgemm(const struct product *p, float *c, const float *a, const float *b);

/* bf16 inputs, in bf16 hardware. False when there is none worth using, or oneDNN has no fast way for this shape, or ws is too
 * small: nothing was done. What it builds for a shape (once) is kept for the life of the process. */
bool onednn_bf16(const struct product *p, void *c, const bf16 *a, const bf16 *b, void *ws, size_t ws_bytes);
/* Workspace for it with dense rows; other strides may need more, then onednn_bf16() says no. */
size_t onednn_bf16_ws(const struct product *p);
/* Tests and benchmarks: 1 use bf16 hardware of any kind, 0 none, -1 where it pays (AMX; the default). */
void onednn_bf16_policy(int policy);

#endif
