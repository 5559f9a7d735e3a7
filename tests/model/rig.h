/* rig.h - a model on one CPU rank with its memory, and a case of tests/model/fixtures. */
#ifndef RM_TESTS_MODEL_RIG_H
#define RM_TESTS_MODEL_RIG_H

#include "worker/model/model.h"
#include "worker/model/safetensors.h"

struct rig {
    struct spec spec;
    struct model_config config;
    struct mesh mesh;
    const struct kernel_ops *ops;
    struct stream *s;
    struct arena arenas[MEM_PLACES];
    int64_t planned[MEM_PLACES];
    void *memory[MEM_PLACES];
    struct model *m;
};

extern int64_t rig_tile_rows;           /* model_options.tile_rows of what is opened next */
extern const struct kernel_ops *rig_ops;        /* the table of what is opened next; NULL: the CPU's */
/* Builds the model: plan on recording arenas, allocate exactly that, lay out again. more: further spec fields (",\"x\":1"). */
int rig_open(struct rig *r, const char *dir, const char *more, enum act_policy policy, int64_t max_T, int64_t max_docs, struct error *err);
/* The same on one rank of a connected world; shared memory is the world's. */
int rig_open_rank(struct rig *r, struct comm_world *w, int rank, const char *dir, const char *more, enum act_policy policy, int64_t max_T, int64_t max_docs, struct error *err);
void rig_close(struct rig *r);

struct test_case { struct safetensors *file; struct row row; };
void case_open(struct test_case *c, const char *dir);
void case_close(struct test_case *c);
/* A tensor of the case as f64; the caller frees. */
double *case_get(const struct test_case *c, const char *name, int64_t *n);

/* The fixture folder's path for a case; static buffer, four at a time. */
const char *fixture(const char *name);

#endif
