// loss.cu - cross-entropy over the vocabulary: a block per row; maximum and sum in one visit, the gradient in a second.
#include "kernels/cuda/common.cuh"

// Running (max, sum of e^(z-max)) of what a thread has seen; -inf and 0 at first.
struct soft { float max; double sum; int64_t at; };     // at: first place of the maximum

static __device__ __forceinline__ soft merge(soft a, soft b)
{
    if (b.max > a.max || (b.max == a.max && b.at < a.at)) {
        soft t = a;
        a = b;
        b = t;
    }
    if (b.sum > 0) a.sum += b.sum * (double)expf(b.max - a.max);
    return a;
}

template <class T>
static __global__ void cross_entropy_kernel(float *loss, uint8_t *correct, T *z, const int32_t *labels, const float *weight, float scale, bool grad,
                                            int64_t N, int64_t V)
{
    GPU_SHARED(float, maxima, [THREADS]);
    GPU_SHARED(double, sums, [THREADS]);
    GPU_SHARED(int64_t, places, [THREADS]);
    for (int64_t n = blockIdx.x; n < N; n += gridDim.x) {
        T *zn = z + n * V;
        int64_t label = labels[n];
        if (label < 0 || label >= V) {
            if (threadIdx.x == 0) {
                loss[n] = label < 0 ? 0.0f : CUDART_NAN_F;      // >= V is the caller's bug: seen, never a wild write
                if (correct) correct[n] = 0;
            }
            if (grad)
                for (int64_t c = threadIdx.x; c < V; c += THREADS) zn[c] = from_float<T>(0.0f);
            continue;       // the same for the whole block
        }
        soft mine = { -CUDART_INF_F, 0.0, V };
        bool bad = false;
        for (int64_t c = threadIdx.x; c < V; c += THREADS) {
            float v = to_float(zn[c]);
            bad |= v != v;
            soft one = { v, 1.0, c };
            mine = merge(mine, one);
        }
        if (bad) mine.sum = (double)CUDART_NAN_F;
        __syncthreads();
        maxima[threadIdx.x] = mine.max;
        sums[threadIdx.x] = mine.sum;
        places[threadIdx.x] = mine.at;
        for (int half = THREADS / 2; half > 0; half /= 2) {
            __syncthreads();
            if (threadIdx.x < half) {
                soft a = { maxima[threadIdx.x], sums[threadIdx.x], places[threadIdx.x] };
                soft b = { maxima[threadIdx.x + half], sums[threadIdx.x + half], places[threadIdx.x + half] };
                bool nan = !(a.sum == a.sum) || !(b.sum == b.sum);
                a = merge(a, b);
                maxima[threadIdx.x] = a.max;
                sums[threadIdx.x] = nan ? (double)CUDART_NAN_F : a.sum;
                places[threadIdx.x] = a.at;
            }
        }
        __syncthreads();
        float max = maxima[0], zl = to_float(zn[label]), w = weight[n];
        double sum = sums[0];
        int64_t best = places[0];
        float inv = (float)(1.0 / sum), factor = scale * w, p_label = expf(zl - max) * inv;
        __syncthreads();        // zn[label] is read by all before it changes
        if (threadIdx.x == 0) {
            loss[n] = w * (float)(log(sum) + (double)max - (double)zl);
            if (correct) correct[n] = best == label;
        }
        if (grad)
            for (int64_t c = threadIdx.x; c < V; c += THREADS)
                zn[c] = from_float<T>(c == label ? factor * (p_label - 1.0f) : factor * (expf(to_float(zn[c]) - max) * inv));
    }
}

static int cross_entropy(struct stream *s, enum dtype dt, float *loss, uint8_t *correct, void *z, const int32_t *labels, const float *weight, float scale,
                         bool grad, int64_t N, int64_t V)
{
    if (N == 0) return OK;
    if (V < 1) return cuda_refuse(s, "cross_entropy: V %lld, expected 1 or more", (long long)V);
    dim3 grid((unsigned)(N < 65536 ? N : 65536));
    return BY_TYPE(s, "cross_entropy", dt,
                   GPU_LAUNCH((cross_entropy_kernel<float>), grid, dim3(THREADS), 0, s->q, loss, correct, (float *)z, labels, weight, scale, grad, N, V),
                   GPU_LAUNCH((cross_entropy_kernel<gbf16>), grid, dim3(THREADS), 0, s->q, loss, correct, (gbf16 *)z, labels, weight, scale, grad, N, V));
}

extern "C" void cuda_fill_loss(struct kernel_ops *ops) { ops->cross_entropy = cross_entropy; }
