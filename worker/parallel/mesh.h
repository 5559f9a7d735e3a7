/* mesh.h - which rank does what: dp x R x U, Ulysses innermost.   rank = (dp * R + ring) * U + uly   (reference: USP, 2405.07719) */
#ifndef RM_WORKER_PARALLEL_MESH_H
#define RM_WORKER_PARALLEL_MESH_H

#include "api/spec.h"
#include "worker/comm/comm.h"

struct mesh {
    int world, rank;
    int dp, R, U;               /* degrees; sequence-parallel size P = R*U; world = dp*P */
    int dp_rank, r, u;          /* this rank's place on each axis */
    char why[200];              /* how the degrees were chosen, one line for the user */
    struct comm *all, *sp, *ring, *uly, *dpg;   /* NULL until mesh_connect */
};

/* Chooses U and R from the spec (sequence_parallel_size, ulysses_size, ring_size, sequence_parallel_method) and the head
 * counts; refuses what cannot be split, naming the field. No communication. */
int mesh_choose(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int rank, struct error *err);
int mesh_connect(struct mesh *m, struct comm_world *w, struct error *err);

#endif
