/* cpu.h - what the files of the CPU backend share: the stream, refusals, threads, and how a table is put together.
 *
 * Sources listed as `isa` in meson.build are compiled once per instruction set with RM_ISA set to a suffix; each
 * exports one ISA(fill_…) that puts its functions into a table. cpu.c picks the set once, from the processor. */
#ifndef RM_KERNELS_CPU_CPU_H
#define RM_KERNELS_CPU_CPU_H

#include "kernels/kernels.h"

struct stream { bool deterministic; char text[300]; };
struct event { double ms; };

/* Records why a call was refused and returns E_INVALID. */
int cpu_refuse(struct stream *s, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Threads to use for `units` independent pieces of work: all of ours, or 1 when there is one piece. Nothing in between: a team
 * that changes size between calls makes libgomp end and start threads. */
int cpu_threads(int64_t units);

/* The table for one instruction set, "baseline", "v3" (AVX2) or "v4" (AVX-512): NULL when this build or processor has it
 * not. For tests and benchmarks; everybody else takes kernel_ops_cpu(). */
const struct kernel_ops *kernel_ops_cpu_isa(const char *isa);

void cpu_fill_device(struct kernel_ops *ops);

#define CPU_FILL(isa) \
    void fill_elementwise_##isa(struct kernel_ops *ops); \
    void fill_matmul_##isa(struct kernel_ops *ops); \
    void fill_norm_##isa(struct kernel_ops *ops); \
    void fill_rope_##isa(struct kernel_ops *ops); \
    void fill_attention_##isa(struct kernel_ops *ops); \
    void fill_loss_##isa(struct kernel_ops *ops); \
    void fill_optimizer_##isa(struct kernel_ops *ops);
CPU_FILL(baseline)
CPU_FILL(v3)
CPU_FILL(v4)

#endif
