#include "kernels/kernels.h"

#include <string.h>

static const struct { size_t size; const char *name; } dtypes[DTYPE_COUNT] = {
    [DT_F32] = { 4, "float32" }, [DT_BF16] = { 2, "bfloat16" }, [DT_F64] = { 8, "float64" }, [DT_F16] = { 2, "float16" },
    [DT_I32] = { 4, "int32" }, [DT_I64] = { 8, "int64" }, [DT_U8] = { 1, "uint8" },
};

size_t dtype_size(enum dtype dt) { return dtypes[dt].size; }
const char *dtype_name(enum dtype dt) { return dtypes[dt].name; }

float bf16_to_f32(bf16 x)
{
    uint32_t u = (uint32_t)x.bits << 16;
    float f;
    memcpy(&f, &u, sizeof f);
    return f;
}

bf16 f32_to_bf16(float x)
{
    uint32_t u;
    memcpy(&u, &x, sizeof u);
    if ((u & 0x7FFFFFFF) > 0x7F800000) return (bf16){ (uint16_t)(u >> 16 | 0x40) };    /* NaN: keep it quiet */
    u += 0x7FFF + (u >> 16 & 1);
    return (bf16){ (uint16_t)(u >> 16) };
}
