// spans.cu - see spans.h.
#include "kernels/cuda/spans.h"

#include <stdlib.h>

#include "kernels/cuda/common.cuh"

enum { CHUNK = 3584 };          // of the 4 KiB a kernel's arguments may have
struct chunk { uint4 words[CHUNK / 16]; };

static __global__ void store_kernel(uint4 *to, struct chunk c, int n)
{
    for (int i = (int)threadIdx.x; i < n; i += THREADS) to[i] = c.words[i];
}

static int store(struct stream *s, void *to, const void *from, size_t bytes)
{
    for (size_t at = 0; at < bytes; at += CHUNK) {
        struct chunk c = {};
        size_t n = bytes - at < CHUNK ? bytes - at : CHUNK;
        memcpy(&c, (const char *)from + at, n);
        int rc = cuda_status(s, GPU_LAUNCH(store_kernel, dim3(1), dim3(THREADS), 0, s->q, (uint4 *)((char *)to + at), c, (int)((n + 15) / 16)), "attention spans");
        if (rc != OK) return rc;
    }
    return OK;
}

static size_t round_up(size_t n) { return (n + 255) / 256 * 256; }

extern "C" size_t span_table_bytes(int64_t max_spans)
{
    return round_up((size_t)max_spans * sizeof(struct span_range)) + round_up((size_t)max_spans * sizeof(int32_t));
}

static const struct attn_span *sorting;     // one host thread launches (gpu.md 4.3), qsort has no argument

static int by_key_order(const void *a, const void *b)
{
    const struct attn_span *x = sorting + *(const int32_t *)a, *y = sorting + *(const int32_t *)b;
    if (x->k0 != y->k0) return x->k0 < y->k0 ? -1 : 1;
    return x->q0 < y->q0 ? -1 : x->q0 > y->q0;
}

extern "C" int span_table_build(struct stream *s, struct span_table *t, struct attn_spans spans, bool by_key, int64_t tile, void *ws)
{
    struct span_range *ranges = (struct span_range *)xcalloc((unsigned long)spans.n, sizeof *ranges);
    int32_t *order = (int32_t *)xcalloc((unsigned long)spans.n, sizeof *order);
    int64_t n = 0, tiles = 0, covered = 0;
    for (int64_t i = 0; i < spans.n; i++) order[i] = (int32_t)i;
    sorting = spans.host;
    if (by_key) qsort(order, (size_t)spans.n, sizeof *order, by_key_order);
    for (int64_t i = 0; i < spans.n; i++) {
        const struct attn_span *x = spans.host + order[i];
        int64_t row0 = by_key ? x->k0 : x->q0, rows = by_key ? x->nk : x->nq;
        if (n > 0 && ranges[n - 1].row0 == row0 && ranges[n - 1].rows == rows) {
            ranges[n - 1].count++;
            continue;
        }
        if (rows == 0) continue;
        struct span_range r = { row0, rows, (int32_t)tiles, (int32_t)i, 1, 0 };
        ranges[n++] = r;
        tiles += (rows + tile - 1) / tile;
        covered += rows;
    }
    size_t ranges_bytes = round_up((size_t)spans.n * sizeof *ranges);
    struct span_table out = { (const struct span_range *)ws, (const int32_t *)((char *)ws + ranges_bytes), spans.dev, (int32_t)n, (int32_t)tiles, covered };
    *t = out;
    int rc = tiles > INT32_MAX ? cuda_refuse(s, "attention: %lld tiles in one row", (long long)tiles) : OK;
    if (rc == OK && n > 0) rc = store(s, ws, ranges, (size_t)n * sizeof *ranges);
    if (rc == OK && n > 0) rc = store(s, (char *)ws + ranges_bytes, order, (size_t)spans.n * sizeof *order);
    free(ranges);
    free(order);
    return rc;
}
