#include "worker/failpoint.h"

#include <inttypes.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { PATIENCE_MS = 30000 };       /* nobody came: go on, the test will say so */

static struct {
    bool read, armed;
    char file[1000], phase[32];
    int rank, at_rank;
    int64_t step, at_step;
} fp;

static void read_once(void)
{
    fp.read = true;
    const char *name = getenv("RM_FAILPOINT");
    if (name == NULL || snprintf(fp.file, sizeof fp.file, "%s", name) >= (int)sizeof fp.file) return;
    FILE *f = fopen(fp.file, "r");
    if (f == NULL) return;
    fp.armed = fscanf(f, "%d %" SCNd64 " %31s", &fp.rank, &fp.step, fp.phase) == 3;
    (void)fclose(f);
}

void failpoint(const char *phase)
{
    if (!fp.armed || fp.at_rank != fp.rank || fp.at_step != fp.step || strcmp(phase, fp.phase) != 0) return;
    char reached[1020];
    fp.armed = false;
    (void)snprintf(reached, sizeof reached, "%s.reached", fp.file);
    if (rename(fp.file, reached) != 0) return;
    struct timespec tick = { .tv_nsec = 10 * 1000000L };
    for (int i = 0; i < PATIENCE_MS / 10 && access(reached, F_OK) == 0; i++) (void)nanosleep(&tick, NULL);
}

void failpoint_step(int rank, int64_t step, const char *phase)
{
    if (!fp.read) read_once();
    fp.at_rank = rank;
    fp.at_step = step;
    failpoint(phase);
}
