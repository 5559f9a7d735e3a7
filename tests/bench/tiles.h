/* tiles.h - attention's kernels at other tile sizes than the shipped ones (tiles.cu), for bench_gpu. */
#ifndef RM_TESTS_BENCH_TILES_H
#define RM_TESTS_BENCH_TILES_H

#include "kernels/cuda/attention.h"

#ifdef __cplusplus
extern "C" {
#endif

struct tile_call {
    void *o, *dq, *dk, *dv, *ws;
    float *lse, *delta;
    const void *q, *k, *v, *dout;
    struct attn_shape n;
    struct attn_spans spans;
};
/* pass: which third of attention is timed: fwd, dk+dv, dq. */
struct tile { const char *pass; int width, block, warps; int (*run)(struct stream *s, const struct tile_call *c); };
extern const struct tile tiles[];
extern const int n_tiles;

#ifdef __cplusplus
}
#endif
#endif
