// tiles.cu - see tiles.h. The shipped sources themselves, instantiated at more sizes.
#include "tests/bench/tiles.h"

#include "kernels/cuda/tile.cuh"

#define ATTENTION_KERNELS_ONLY
namespace fwd {
#include "kernels/cuda/attention_fwd.cu"
}
namespace bwd {
#include "kernels/cuda/attention_bwd.cu"
}

template <int W, int BN, int WARPS> static int forward(struct stream *s, const struct tile_call *c)
{
    fwd::fwd_args p = { (const gbf16 *)c->q, (const gbf16 *)c->k, (const gbf16 *)c->v, c->o, c->lse, {}, c->n.Tq, c->n.H, c->n.Hkv, 0, (int)c->n.D, c->n.scale * LOG2E, false };
    return fwd::launch<W, BN, WARPS, gbf16>(s, p, c->spans, c->ws);
}

static bwd::bwd_args backward_args(const struct tile_call *c)
{
    bwd::bwd_args p = { (const gbf16 *)c->q, (const gbf16 *)c->k, (const gbf16 *)c->v, (const gbf16 *)c->dout, c->lse, c->delta, (float *)c->dq, (float *)c->dk, (float *)c->dv, {},
                        c->n.Tq, c->n.H, c->n.Hkv, 0, (int)c->n.D, c->n.scale, c->n.scale * LOG2E };
    return p;
}

template <int W, int BM, int WARPS> static int backward_keys(struct stream *s, const struct tile_call *c)
{
    bwd::bwd_args p = backward_args(c);
    int rc = span_table_build(s, &p.table, c->spans, true, WARPS * 16, c->ws);
    return rc == OK ? bwd::keys<W, BM, WARPS, true, true>(s, p) : rc;
}

template <int W, int BN, int WARPS> static int backward_queries(struct stream *s, const struct tile_call *c)
{
    bwd::bwd_args p = backward_args(c);
    int rc = span_table_build(s, &p.table, c->spans, false, WARPS * 16, c->ws);
    return rc == OK ? bwd::queries<W, BN, WARPS>(s, p) : rc;
}

#define FWD(W, BN, WARPS) { "fwd", W, BN, WARPS, forward<W, BN, WARPS> }
#define KEYS(W, BM, WARPS) { "dk+dv", W, BM, WARPS, backward_keys<W, BM, WARPS> }
#define QUERIES(W, BN, WARPS) { "dq", W, BN, WARPS, backward_queries<W, BN, WARPS> }
extern "C" const struct tile tiles[] = {
    FWD(64, 64, 4), FWD(64, 128, 4), FWD(64, 64, 8), FWD(64, 128, 8), FWD(128, 32, 4), FWD(128, 64, 4), FWD(128, 64, 8), FWD(128, 128, 8),
    KEYS(64, 32, 8), KEYS(64, 64, 8), KEYS(64, 64, 4), KEYS(128, 32, 8), KEYS(128, 64, 8), KEYS(128, 32, 4),
    QUERIES(64, 64, 4), QUERIES(64, 64, 8), QUERIES(128, 32, 4), QUERIES(128, 64, 4), QUERIES(128, 64, 8),
};
extern "C" const int n_tiles = (int)(sizeof tiles / sizeof tiles[0]);
