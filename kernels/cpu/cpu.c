/* cpu.c - picks the instruction set once and assembles the table; threads; refusals. */
#include "kernels/cpu/cpu.h"

#include <omp.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static int threads_wanted;                              /* 0: as many as OpenMP would take */

void kernel_cpu_threads(int n) { threads_wanted = n > 0 ? n : 0; }

int cpu_threads(int64_t units)
{
    return units <= 1 ? 1 : threads_wanted ? threads_wanted : omp_get_num_procs();
}

int cpu_refuse(struct stream *s, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    vsnprintf(s->text, sizeof s->text, fmt, ap);
    va_end(ap);
    return E_INVALID;
}

static bool cpu_has_baseline(void) { return true; }
#ifdef RM_HAVE_X86_LEVELS
static bool cpu_has_v3(void) { return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("bmi2"); }
static bool cpu_has_v4(void)
{
    return cpu_has_v3() && __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
           __builtin_cpu_supports("avx512cd") && __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
}
#endif

#define FILL_WITH(isa) \
    static void fill_##isa(struct kernel_ops *ops) \
    { \
        fill_elementwise_##isa(ops); \
        fill_matmul_##isa(ops); \
        fill_norm_##isa(ops); \
        fill_rope_##isa(ops); \
        fill_attention_##isa(ops); \
        fill_loss_##isa(ops); \
        fill_optimizer_##isa(ops); \
    }
FILL_WITH(baseline)
#ifdef RM_HAVE_X86_LEVELS
FILL_WITH(v3)
FILL_WITH(v4)
#endif

/* Best first. */
static struct level { const char *isa; bool (*has)(void); void (*fill)(struct kernel_ops *ops); struct kernel_ops ops; bool usable; } levels[] = {
#ifdef RM_HAVE_X86_LEVELS
    { "v4", cpu_has_v4, fill_v4, { 0 }, false },
    { "v3", cpu_has_v3, fill_v3, { 0 }, false },
#endif
    { "baseline", cpu_has_baseline, fill_baseline, { 0 }, false },
};
enum { LEVELS = sizeof levels / sizeof levels[0] };

static void levels_init(void)
{
    for (struct level *l = levels; l < levels + LEVELS; l++) {
        l->usable = l->has();
        l->ops.name = "cpu";
        cpu_fill_device(&l->ops);
        l->fill(&l->ops);
    }
}

const struct kernel_ops *kernel_ops_cpu_isa(const char *isa)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, levels_init);
    for (struct level *l = levels; l < levels + LEVELS; l++)
        if (l->usable && (!isa || strcmp(isa, l->isa) == 0)) return &l->ops;
    return NULL;
}

const struct kernel_ops *kernel_ops_cpu(void) { return kernel_ops_cpu_isa(NULL); }
