/* eigen.h - leading singular vectors of a matrix, for GaLore; small and deterministic, no LAPACK. */
#ifndef RM_WORKER_TRAIN_EIGEN_H
#define RM_WORKER_TRAIN_EIGEN_H

#include <stdbool.h>
#include <stdint.h>

#include "api/error.h"

/* basis [r, n] f32, orthonormal rows: the r leading left (n = rows) or right (n = cols) singular vectors of g [rows, cols], largest
 * first; each row's largest component is positive. Host memory. Up to EIGEN_EXACT on the wanted side: the Gram matrix's eigenvectors by cyclic
 * Jacobi in f64; beyond: block power iteration with Gram-Schmidt in f64, which finds the subspace GaLore needs to a few digits.
 * E_INVALID: g is not finite or is zero, or the iteration did not settle; basis is then unchanged. r <= min(rows, cols). */
enum { EIGEN_EXACT = 160 };
int singular_vectors(float *basis, const float *g, int64_t rows, int64_t cols, bool left, int64_t r, struct error *err);

#endif
