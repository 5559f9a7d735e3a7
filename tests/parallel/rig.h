/* rig.h - for tests: random small decoders and rows, and a rank's model of one, from a seed alone: the same on every rank and in every run. */
#ifndef RM_TESTS_PARALLEL_RIG_H
#define RM_TESTS_PARALLEL_RIG_H

#include "worker/comm/transport.h"
#include "worker/model/decoder.h"

enum { WORLD = 8, SHARED = 8 << 20, MAX_T = 96, MAX_DOCS = 40 };

struct config {
    int U, R, dp, accumulation, zero;
    enum act_policy policy;
    bool lora, overlap, last_quarter;           /* last_quarter: labels only there, so some ranks have none */
    struct model_config model;
};

void start_random(int seed);
int64_t pick(int64_t lo, int64_t hi);           /* lo…hi, both included */
struct config random_config(int seed);
/* The row of micro-step i on data-parallel rank d. */
struct row random_row(int seed, const struct config *c, int i, int d);
void row_release(struct row *r);

struct rig {
    struct spec spec;
    struct mesh mesh;
    struct stream *s;
    struct model *m;
    struct arena arenas[MEM_PLACES];
    void *memory[MEM_PLACES];
};

/* Planned first, then laid out in memory of exactly the planned size, full of NaN. dt F64 needs a table that has it (exact.h). */
int rig_open(struct rig *r, const struct config *c, const struct kernel_ops *ops, enum dtype dt, int world, int rank, int U, int R, struct comm_world *w, struct error *err);
void rig_close(struct rig *r);
/* A world of one. */
int world_of_one(struct comm_world **w, struct error *err);

#endif
