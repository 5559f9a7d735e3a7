/* library.h - attention by a vendor's library instead of our own kernels, when attn_choose found one that can be trusted. */
#ifndef RM_KERNELS_CUDA_LIBRARY_H
#define RM_KERNELS_CUDA_LIBRARY_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Belongs to one stream. fwd and bwd have attn_fwd's and attn_bwd's arguments and are called only when takes() said yes; they may still
 * return E_UNSUPPORTED (a shape the library has no plan for): nothing was done, our own kernel runs. */
struct attn_library {
    char name[64];              /* "cudnn 9.19.0" */
    int64_t done;               /* calls that ran in the library */
    char why[300];              /* why the last one returned E_UNSUPPORTED */
    struct attn_span *tail;     /* device memory for one span: what the library leaves of a document (attention.cu) */
    bool (*takes)(const struct attn_library *l, enum dtype dt, enum dtype dto, struct attn_shape n, struct attn_spans spans, bool merge);
    int (*fwd)(struct attn_library *l, struct stream *s, enum dtype dto, void *o, float *lse, const void *q, const void *k, const void *v, struct attn_shape n, struct attn_spans spans);
    int (*bwd)(struct attn_library *l, struct stream *s, float *dq, float *dk, float *dv, const void *dout, const void *q, const void *k, const void *v, const float *lse,
               const float *delta, struct attn_shape n, struct attn_spans spans);
    void (*release)(struct attn_library *l);
};

/* OK when lib gives what our own kernels give, forward and backward, on four small cases of width D; else E_UNSUPPORTED and which array differs. */
int cuda_library_check(struct stream *s, struct attn_library *lib, int64_t D, struct error *err);

/* cuDNN's, with memory for shapes up to n. NULL and why where it cannot be had. */
struct attn_library *cudnn_open(struct stream *s, struct attn_shape n, struct error *err);
/* For tests: builds the graph of one case for a device described in JSON (no device needed; the driver's stub is) and takes the engine found as
 * far as it goes. OK: an engine was found and its kernel compiled. *workspace: bytes it asks for. */
int cudnn_try(const char *device_json, bool backward, enum dtype dto, struct attn_shape n, int64_t diag, int64_t *workspace, struct error *err);

/* out[t,h,:] bf16 = the part of the (unseen) O along dO: dO delta / |dO|^2, so that sum_d dO out = delta. 0 where dO is 0. attention.cu */
int cuda_project(struct stream *s, void *out, const void *dout, const float *delta, int64_t delta_stride, int64_t T, int64_t H, int64_t D);
/* y f32 += x bf16. */
int cuda_add_bf16(struct stream *s, float *y, const void *x, int64_t n);

#ifdef __cplusplus
}
#endif
#endif
