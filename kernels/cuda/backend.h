/* backend.h - what the files of the CUDA backend share: the stream, refusals, and how the table is put together. C and C++. */
#ifndef RM_KERNELS_CUDA_BACKEND_H
#define RM_KERNELS_CUDA_BACKEND_H

#include <cuda_runtime_api.h>

#include "kernels/kernels.h"

#ifdef __cplusplus
extern "C" {
#endif

enum { CUDA_SUM_PARTS = 512 };

struct stream {
    cudaStream_t q;
    bool deterministic;
    void *blas;                 /* matmul.c's handle and plans; made with the stream */
    double *parts;              /* [CUDA_SUM_PARTS], device: sumsq's partial sums */
    enum attn_impl attn;        /* attn_choose; ATTN_FLASH until then (stream_new) */
    char text[300];             /* why the last call failed */
    struct attn_library *library;   /* attention by cuDNN; NULL: by our own kernels (choose.c) */
    char attn_why[300];         /* "flash: why no library" */
    char attn_text[300];        /* attn_name's answer */
};

/* Records why a shape is refused and returns E_INVALID. */
int cuda_refuse(struct stream *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* OK, or records "what: reason" and returns E_CUDA. Every launch and runtime call on a stream goes through here. */
int cuda_status(struct stream *s, cudaError_t e, const char *what);

/* Waits until q is empty. While it waits it calls look(arg), about once a millisecond or more often, and gives up with what that returns:
 * the transport sets it, for a stream may stand behind a transfer whose other end is dead. NULL: nothing to look at. */
void cuda_watch_set(int (*look)(void *arg, struct error *err), void *arg);
int cuda_wait(cudaStream_t q, const char *what, struct error *err);

/* cuBLASLt's handle of a stream; made and dropped with it. */
int cuda_matmul_prepare(struct stream *s, struct error *err);
void cuda_matmul_release(struct stream *s);

/* Each file puts its functions into the table. */
void cuda_fill_device(struct kernel_ops *ops);
void cuda_fill_matmul(struct kernel_ops *ops);
void cuda_fill_elementwise(struct kernel_ops *ops);
void cuda_fill_norm(struct kernel_ops *ops);
void cuda_fill_rope(struct kernel_ops *ops);
void cuda_fill_loss(struct kernel_ops *ops);
void cuda_fill_optimizer(struct kernel_ops *ops);
void cuda_fill_attention(struct kernel_ops *ops);
void cuda_fill_choose(struct kernel_ops *ops);          /* last: it keeps the table for its check */
void cuda_library_release(struct stream *s);

#ifdef __cplusplus
}
#endif
#endif
