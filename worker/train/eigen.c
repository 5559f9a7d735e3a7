#include "worker/train/eigen.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { SWEEPS = 60, POWER_STEPS = 12 };

/* a [n,n] = g g^T (left) or g^T g. */
static void gram(double *a, const float *g, int64_t rows, int64_t cols, bool left)
{
    int64_t n = left ? rows : cols, m = left ? cols : rows, si = left ? cols : 1, sk = left ? 1 : cols;
    for (int64_t i = 0; i < n; i++)
        for (int64_t j = 0; j <= i; j++) {
            double sum = 0;
            for (int64_t k = 0; k < m; k++) sum += (double)g[i * si + k * sk] * (double)g[j * si + k * sk];
            a[i * n + j] = a[j * n + i] = sum;
        }
}

/* Eigenvalues to a's diagonal, eigenvectors to the columns of v. Golub & Van Loan, cyclic Jacobi. */
static bool jacobi(double *a, double *v, int64_t n)
{
    double total = 0;
    for (int64_t i = 0; i < n * n; i++) total += a[i] * a[i];
    memset(v, 0, (size_t)(n * n) * sizeof *v);
    for (int64_t i = 0; i < n; i++) v[i * n + i] = 1;
    for (int sweep = 0; sweep < SWEEPS; sweep++) {
        double off = 0;
        for (int64_t i = 0; i < n; i++)
            for (int64_t j = 0; j < i; j++) off += a[i * n + j] * a[i * n + j];
        if (off <= 1e-28 * total) return true;
        for (int64_t p = 0; p < n; p++)
            for (int64_t q = p + 1; q < n; q++) {
                double apq = a[p * n + q];
                if (apq == 0) continue;
                double theta = (a[q * n + q] - a[p * n + p]) / (2 * apq), t = 1 / (fabs(theta) + sqrt(theta * theta + 1));
                if (theta < 0) t = -t;
                double c = 1 / sqrt(t * t + 1), s = t * c;
                for (int64_t k = 0; k < n; k++) {
                    double x = a[k * n + p], y = a[k * n + q];
                    a[k * n + p] = c * x - s * y;
                    a[k * n + q] = s * x + c * y;
                }
                for (int64_t k = 0; k < n; k++) {
                    double x = a[p * n + k], y = a[q * n + k];
                    a[p * n + k] = c * x - s * y;
                    a[q * n + k] = s * x + c * y;
                    x = v[k * n + p], y = v[k * n + q];
                    v[k * n + p] = c * x - s * y;
                    v[k * n + q] = s * x + c * y;
                }
            }
    }
    return false;
}

/* Rows of q [r,n] made orthonormal, in order; false if one depends on those before it. Twice is enough (Kahan). */
static bool gram_schmidt(double *q, int64_t r, int64_t n)
{
    for (int64_t i = 0; i < r; i++) {
        double *qi = q + i * n, before = 0, after = 0;
        for (int64_t k = 0; k < n; k++) before += qi[k] * qi[k];
        for (int pass = 0; pass < 2; pass++)
            for (int64_t j = 0; j < i; j++) {
                double dot = 0;
                for (int64_t k = 0; k < n; k++) dot += qi[k] * q[j * n + k];
                for (int64_t k = 0; k < n; k++) qi[k] -= dot * q[j * n + k];
            }
        for (int64_t k = 0; k < n; k++) after += qi[k] * qi[k];
        if (!(after > 1e-24 * before) || after == 0) return false;
        for (int64_t k = 0; k < n; k++) qi[k] /= sqrt(after);
    }
    return true;
}

/* y [r,m] = q [r,n] x, x = g seen as [n,m] (left) or its transpose. */
static void apply(double *y, const double *q, const float *g, int64_t r, int64_t rows, int64_t cols, bool transposed)
{
    int64_t n = transposed ? cols : rows, m = transposed ? rows : cols;
    for (int64_t i = 0; i < r; i++) {
        double *yi = y + i * m;
        const double *qi = q + i * n;
        memset(yi, 0, (size_t)m * sizeof *yi);
        if (!transposed)
            for (int64_t k = 0; k < rows; k++)
                for (int64_t j = 0; j < cols; j++) yi[j] += qi[k] * (double)g[k * cols + j];
        else
            for (int64_t j = 0; j < rows; j++) {
                double sum = 0;
                for (int64_t k = 0; k < cols; k++) sum += qi[k] * (double)g[j * cols + k];
                yi[j] = sum;
            }
    }
}

static double start_value(uint64_t i)      /* a fixed scatter of [-1,1): splitmix64 */
{
    uint64_t z = (i + 1) * 0x9E3779B97F4A7C15u;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9u;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBu;
    return (double)(int64_t)(z ^ (z >> 31)) / 9223372036854775808.0;
}

static bool power(double *q, const float *g, int64_t rows, int64_t cols, bool left, int64_t r)
{
    int64_t n = left ? rows : cols, m = left ? cols : rows;
    double *y = xmalloc((unsigned long)(r * m) * sizeof *y);
    bool ok = true;
    for (int64_t i = 0; i < r * n; i++) q[i] = start_value((uint64_t)i);
    ok = gram_schmidt(q, r, n);
    for (int step = 0; step < POWER_STEPS && ok; step++) {
        apply(y, q, g, r, rows, cols, !left);
        apply(q, y, g, r, rows, cols, left);
        ok = gram_schmidt(q, r, n);
    }
    free(y);
    return ok;
}

int singular_vectors(float *basis, const float *g, int64_t rows, int64_t cols, bool left, int64_t r, struct error *err)
{
    int64_t n = left ? rows : cols;
    double norm = 0;
    for (int64_t i = 0; i < rows * cols; i++) norm += (double)g[i] * (double)g[i];
    if (!isfinite(norm) || norm == 0) return error_set(err, E_INVALID, "the gradient is %s: it has no singular vectors", norm == 0 ? "zero" : "not finite");
    double *q = xmalloc((unsigned long)((n <= EIGEN_EXACT ? n : r) * n) * sizeof *q);
    bool ok;
    if (n <= EIGEN_EXACT) {
        double *a = xmalloc((unsigned long)(2 * n * n) * sizeof *a), *v = a + n * n;
        bool *used = xcalloc((unsigned long)n, sizeof *used);
        gram(a, g, rows, cols, left);
        ok = jacobi(a, v, n);
        for (int64_t i = 0; i < r && ok; i++) {
            int64_t best = -1;
            for (int64_t k = 0; k < n; k++)
                if (!used[k] && (best < 0 || a[k * n + k] > a[best * n + best])) best = k;
            used[best] = true;
            for (int64_t k = 0; k < n; k++) q[i * n + k] = v[k * n + best];
        }
        free(used);
        free(a);
    } else ok = power(q, g, rows, cols, left, r);
    for (int64_t i = 0; i < r && ok; i++) {
        int64_t top = 0;
        for (int64_t k = 1; k < n; k++)
            if (fabs(q[i * n + k]) > fabs(q[i * n + top])) top = k;
        double sign = q[i * n + top] < 0 ? -1 : 1;
        for (int64_t k = 0; k < n; k++) basis[i * n + k] = (float)(sign * q[i * n + k]);
    }
    free(q);
    return ok ? OK : error_set(err, E_INVALID, "the singular vectors of a %lld x %lld gradient did not settle", (long long)rows, (long long)cols);
}
