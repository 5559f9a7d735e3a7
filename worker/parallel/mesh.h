/* mesh.h - which rank does what: dp x R x U, Ulysses innermost.   rank = (dp * R + ring) * U + uly   (reference: USP, 2405.07719) */
#ifndef RM_WORKER_PARALLEL_MESH_H
#define RM_WORKER_PARALLEL_MESH_H

#include "api/spec.h"
#include "worker/comm/comm.h"

struct mesh {
    int world, rank;
    int dp, R, U;               /* degrees; sequence-parallel size P = R*U; world = dp*P */
    int dp_rank, r, u;          /* this rank's place on each axis */
    char why[240];              /* how the degrees were chosen, one line for the user */
    struct comm *all, *sp, *ring, *uly, *dpg;   /* NULL until mesh_connect */
};

/* What auto weighs transfers against. how: "measured", "given", "assumed", "assumed: deterministic", "NVLink", "PCIe". */
struct link_speed { double link_Bps, attn_flops; const char *how; };
/* From link_speed_gb_s, else a figure for the kind of device ("cpu", "cuda"). */
struct link_speed link_speed_assumed(const struct spec *spec, const char *device);
/* Whether auto has anything to weigh: several degrees are possible and none is prescribed. */
bool mesh_undecided(const struct spec *spec, int64_t H, int64_t Hkv);

/* Chooses U and R from the spec (sequence_parallel_size, ulysses_size, ring_size, sequence_parallel_method) and the head
 * counts; refuses what cannot be split, naming the field. No communication: all ranks that give the same speed choose the same. mesh_choose
 * assumes the speed. */
int mesh_choose_at(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int rank, const struct link_speed *speed, struct error *err);
int mesh_choose(struct mesh *m, const struct spec *spec, int64_t H, int64_t Hkv, int rank, struct error *err);
int mesh_connect(struct mesh *m, struct comm_world *w, struct error *err);

#endif
