/* Fuzzes what Slurm's programs may answer: squeue, sacct, sbatch. */
#include <string.h>

#include "daemon/slurm.h"

static void line(void *arg, const struct slurm_line *l)
{
    if (l->state == NULL || l->id < 1 || strlen(l->comment) >= sizeof l->comment || strlen(l->why) >= sizeof l->why) __builtin_trap();
    (*(int *)arg)++;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t n)
{
    int lines = 0;
    int64_t id;
    char code[16];
    if (slurm_parse_queue((const char *)data, n, line, &lines) < 0) __builtin_trap();
    (void)slurm_parse_acct((const char *)data, n, 12, "rm-j1-a1-0123abcd", code);
    if (slurm_parse_id((const char *)data, n, &id) && id < 1) __builtin_trap();
    return 0;
}
