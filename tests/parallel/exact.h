/* exact.h - for tests: the CPU table with every operation of the decoder computed in f64, element by element, and rounded once when it is stored.
 *
 * With activations in F64 (spec.torch_dtype "float64", which only tests can set) a model on this table is the truth that f32 runs are measured by: of it
 * only the gradients' additions round, to f32. It also notes how large the summands of each gradient were, for the tolerance of gradients.c. Small sizes
 * only; one rank. */
#ifndef RM_TESTS_PARALLEL_EXACT_H
#define RM_TESTS_PARALLEL_EXACT_H

#include "kernels/kernels.h"

/* eps: that of the norms, which rmsnorm_bwd must know again since rstd is f32. Forgets all notes. */
const struct kernel_ops *exact_ops(double eps);
/* Sum over tokens of the squared norms of what was added to the f32 gradient that starts at g: what its square would be if its summands did not know of
 * each other. The gradient's own square is far below it only where they cancel. */
double exact_summands(const float *g);
/* The same inside attention, where dS = P dP - P delta: the norm that dq (k: dk) would have with both parts as summands of their own, over the norm it
 * has, in calls i, i + n, … of attn_bwd. */
double exact_attention_loss(int i, int n, bool k);

#endif
