/* transport.h - what a transport must supply, and how its ranks find each other. For comm/ only (and its tests).
 *
 * comm.c checks arguments, counts calls and bytes and, for transports that are done when they return, time. A transport that
 * works behind the caller's back (nccl) sets `async` and adds busy_s and exposed_s to w->counts itself, by settle() at the latest.
 * Transports are called only with groups of two ranks or more and with counts above 0, all_to_all with strides filled in. */
#ifndef RM_WORKER_COMM_TRANSPORT_H
#define RM_WORKER_COMM_TRANSPORT_H

#include "api/clock.h"
#include "worker/comm/comm.h"

/* Rendezvous: small strings by key. put and get as in worker/link.h; lost may be NULL. */
struct comm_meeting {
    int (*put)(void *arg, const char *key, const char *value, struct error *err);
    int (*get)(void *arg, const char *key, char **value, int timeout_ms, struct error *err);
    bool (*lost)(void *arg);        /* somebody who watches the ranks says that one died */
    void *arg;
};

/* What every transport's transfer begins with. */
struct comm_hop { enum comm_kind kind; };

struct comm_transport {
    const char *name;
    bool async;
    int64_t (*overhead_bytes)(int world);                           /* NULL: open.c knows it, so that a plan needs no transport */
    int  (*open)(struct comm_world *w, int64_t shared_bytes, int deadline_ms, struct error *err);   /* sets w->memory, w->priv */
    void (*close)(struct comm_world *w);                                                            /* safe after a failed open */
    void (*settle)(struct comm_world *w);                           /* counts what has ended since; may be NULL */
    int  (*group)(struct comm *c, struct error *err);               /* c->ranks, n, me are set; may set c->priv. May be NULL */
    void (*group_free)(struct comm *c);                             /* may be NULL */
    int  (*all_to_all)(struct comm *c, struct stream *s, const struct comm_part *parts, int n_parts, struct error *err);
    int  (*hop_start)(struct comm *c, struct stream *s, void *recv, const void *send, int64_t bytes, struct comm_hop **h, struct error *err);
    int  (*hop_wait)(struct comm *c, struct stream *s, struct comm_hop *h, double *busy_s, double *late_s, struct error *err);
    int  (*reduce_pieces_start)(struct comm *c, struct stream *s, float *out, const float *in, const int64_t *cuts, struct comm_hop **h, struct error *err);
    int  (*gather_pieces_start)(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, const int64_t *cuts, struct comm_hop **h,
                                struct error *err);                 /* NULL, both: this transport has none (E_UNSUPPORTED) */
    int  (*all_reduce)(struct comm *c, struct stream *s, enum dtype dt, void *x, int64_t count, struct error *err);
    int  (*reduce_scatter)(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err);
    int  (*all_gather)(struct comm *c, struct stream *s, enum dtype dt, void *out, const void *in, int64_t count, struct error *err);
    int  (*broadcast)(struct comm *c, struct stream *s, void *x, int64_t bytes, int root, struct error *err);
    int  (*barrier)(struct comm *c, struct error *err);
    const void *(*peer_memory)(const struct comm *c, int p);        /* may be NULL */
};
extern const struct comm_transport comm_transport_shm;

struct comm {
    struct comm_world *w;
    int *ranks, n, me;              /* world ranks of the members; me: this rank's place among them */
    void *priv;                     /* the transport's */
    struct comm *next;              /* all groups of the world, for comm_close */
};

struct comm_world {
    const struct comm_transport *t;
    const struct kernel_ops *ops;
    struct comm_meeting meeting;
    int rank, world;
    char *memory;                   /* shared_bytes of this rank */
    int64_t shared_bytes;
    struct comm_count counts[COMM_KINDS];
    double late_s;                  /* the transport adds here while a call runs; comm.c moves it to the call's kind */
    struct comm *groups;
    void *door;                     /* comm_open's, freed with the world */
    void *priv;                     /* the transport's */
};

/* comm_open with any rendezvous and any table: what comm_open and the tests call. */
int comm_open_with(struct comm_world **w, const struct comm_transport *t, const struct kernel_ops *ops, const struct comm_meeting *meeting,
                   int rank, int world, int64_t shared_bytes, int deadline_ms, struct error *err);

#endif
