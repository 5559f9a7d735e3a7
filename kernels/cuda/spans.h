/* spans.h - from a list of spans to what attention's blocks need: ranges of rows, each with the spans that touch it.
 *
 * The list is sorted by query; a block that owns keys needs it by key. Both orders are made on the host, where the list is short,
 * and travel to the device as kernel arguments: nothing to keep alive, nothing to wait for. A block finds its range by binary
 * search over first_tile. */
#ifndef RM_KERNELS_CUDA_SPANS_H
#define RM_KERNELS_CUDA_SPANS_H

#include "kernels/cuda/backend.h"

#ifdef __cplusplus
extern "C" {
#endif

struct span_range {
    int64_t row0, rows;         /* of q (or of k and v) */
    int32_t first_tile;         /* tiles of the ranges before this one */
    int32_t first, count;       /* its spans: order[first, first+count) */
    int32_t unused;
};

/* In device memory, inside the caller's ws. */
struct span_table {
    const struct span_range *ranges;
    const int32_t *order;
    const struct attn_span *spans;
    int32_t n_ranges, n_tiles;
    int64_t rows_covered;       /* sum of rows: equals Tq when every query is in a range */
};

/* Bytes of ws for one table of up to max_spans spans. */
size_t span_table_bytes(int64_t max_spans);
/* Builds the table of the queries (by_key false) or of the keys for tiles of `tile` rows, in ws. */
int span_table_build(struct stream *s, struct span_table *t, struct attn_spans spans, bool by_key, int64_t tile, void *ws);

#ifdef __cplusplus
}
#endif
#endif
