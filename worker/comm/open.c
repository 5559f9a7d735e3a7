/* open.c - comm_open: the transport by its name (nccl comes out of the CUDA module), the rendezvous over the link to the keeper. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "worker/comm/transport.h"

/* What NCCL takes on a GPU beside the exchange memory, for each communicator a rank is in (all, sequence-parallel, Ulysses, ring, data-parallel: the
 * groups of different ranks, at most four): channel buffers, assumed. NCCL 2.28 gives each of a communicator's channels 4 MiB for SIMPLE (NCCL_BUFFSIZE)
 * and under 1 MiB for its other protocols, connects them as peers are first met, and uses up to 16 to 24 on NVLink. */
enum { NCCL_CHANNEL_BYTES = 5 << 20, NCCL_CHANNELS = 16, NCCL_TEAMS = 4 };

static int64_t nccl_bytes(int world)
{
    int teams = world < 4 ? 1 : NCCL_TEAMS;
    return (int64_t)teams * NCCL_CHANNELS * NCCL_CHANNEL_BYTES;
}

static const struct comm_transport *find(const char *name)
{
    if (strcmp(name, comm_transport_shm.name) == 0) return &comm_transport_shm;
    if (strcmp(name, "nccl") != 0) return NULL;
    const struct comm_transport *(*get)(void) = NULL;
    *(void **)&get = kernel_cuda_symbol("ringmaster_cuda_transport");
    return get ? get() : NULL;
}

/* The rendezvous of one world: keys carry its name, or a second world would find what the first has left there. */
struct door { struct link *link; char name[24]; };

static int put(void *arg, const char *key, const char *value, struct error *err)
{
    const struct door *d = arg;
    char *full = xasprintf("%s.%s", d->name, key);
    int rc = link_put(d->link, full, value, err);
    free(full);
    return rc;
}

static int get(void *arg, const char *key, char **value, int timeout_ms, struct error *err)
{
    const struct door *d = arg;
    char *full = xasprintf("%s.%s", d->name, key);
    int rc = link_get(d->link, full, value, timeout_ms, err);
    free(full);
    return rc;
}

static bool lost(void *arg) { return link_peer_lost(((const struct door *)arg)->link); }

int comm_usable(const char *transport, int world, struct error *err)
{
    bool nccl = strcmp(transport, "nccl") == 0;
    if (find(transport) || (nccl && world == 1)) return OK;
    return error_set(err, E_UNSUPPORTED, "this build has no transport \"%s\" (%s); more than one rank needs it", transport, nccl ? "its CUDA backend was built without NCCL" : "it has shm and nccl");
}

int comm_open(struct comm_world **w, const char *name, const char *transport, const struct kernel_ops *ops, struct link *link, int rank, int world,
              int64_t shared_bytes, int deadline_ms, struct error *err)
{
    *w = NULL;
    static const struct comm_transport alone = { .name = "nccl" };     /* one GPU has nobody to talk to: no call reaches it */
    const struct comm_transport *t = find(transport);
    int rc = comm_usable(transport, world, err);
    if (rc != OK) return rc;
    struct door *d = xcalloc(1, sizeof *d);
    d->link = link;
    (void)snprintf(d->name, sizeof d->name, "%s", name);
    struct comm_meeting m = { put, get, lost, d };
    rc = comm_open_with(w, t ? t : &alone, ops, &m, rank, world, shared_bytes, deadline_ms, err);
    if (rc == OK) (*w)->door = d;
    else free(d);
    return rc;
}

int64_t comm_overhead_bytes(const char *transport, int world)
{
    if (world == 1) return 0;
    return strcmp(transport, "nccl") == 0 ? nccl_bytes(world) : comm_transport_shm.overhead_bytes(world);
}
