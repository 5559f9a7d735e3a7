/* open.c - comm_open: the transport by its name, the rendezvous over the link to the keeper. */
#include <string.h>

#include "worker/comm/transport.h"

static const struct comm_transport *const transports[] = { &comm_transport_shm };

static const struct comm_transport *find(const char *name)
{
    for (size_t i = 0; i < sizeof transports / sizeof transports[0]; i++)
        if (strcmp(transports[i]->name, name) == 0) return transports[i];
    return NULL;
}

static int put(void *arg, const char *key, const char *value, struct error *err) { return link_put(arg, key, value, err); }
static int get(void *arg, const char *key, char **value, int timeout_ms, struct error *err) { return link_get(arg, key, value, timeout_ms, err); }
static bool lost(void *arg) { return link_peer_lost(arg); }

int comm_open(struct comm_world **w, const char *transport, const struct kernel_ops *ops, struct link *link, int rank, int world,
              int64_t shared_bytes, int deadline_ms, struct error *err)
{
    *w = NULL;
    const struct comm_transport *t = find(transport);
    if (t == NULL) return error_set(err, E_UNSUPPORTED, "this build has no transport \"%s\"; it has shm", transport);
    struct comm_meeting m = { put, get, lost, link };
    return comm_open_with(w, t, ops, &m, rank, world, shared_bytes, deadline_ms, err);
}

int64_t comm_overhead_bytes(const char *transport, int world)
{
    const struct comm_transport *t = find(transport);
    return t && world > 1 ? t->overhead_bytes(world) : 0;
}
