/* offload.c - layer inputs that wait for backward in host memory or on disk; on the device only two stand at a time.
 *
 * Layer i's input lies in slot i % 2: forward reads one slot and fills the other, then sends the one it read away; backward fetches
 * it into the same slot. The file is nameless from the start, so nothing is left behind whatever happens.
 *
 * On a device, copies to and from pinned host memory have a stream of their own: layer i's input leaves while layer i+1 is computed (which
 * writes the other slot; the one after it needs this one), and comes back while layer i+1's backward runs. */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "worker/model/decoder.h"

void offload_layout(struct model *m, struct arena *device, struct arena *host)
{
    int64_t C = m->c->C;
    void *slot[2];
    for (int i = 0; i < 2; i++) slot[i] = arena_take(device, MEM_ACTIVATIONS, m->dt, m->max_Tl, C, 0, 0, "offload.slot%d", i);
    for (int64_t i = 0; i < m->c->L; i++) m->layers[i].x = slot[i % 2];
    bool disk = m->policy == ACT_OFFLOAD_DISK;
    m->x_host = arena_take(host, MEM_ACTIVATIONS, m->dt, disk ? 1 : m->c->L, m->max_Tl, C, 0, "offload.host");
}

static int open_copies(struct model *m, struct error *err)
{
    const struct kernel_ops *ops = m->ops;
    int rc = ops->stream_new(&m->copies, true, err);
    if (rc == OK) rc = ops->event_new(&m->computed, err);
    for (int i = 0; i < 2 && rc == OK; i++) rc = ops->event_new(&m->moved[i], err);
    return rc;
}

int offload_open(struct model *m, struct error *err)
{
    m->coming = -1;
    if (m->policy == ACT_OFFLOAD_HOST && m->ops != kernel_ops_cpu()) return open_copies(m, err);
    if (m->policy != ACT_OFFLOAD_DISK) return OK;
    const char *dir = m->spec->offload_dir ? m->spec->offload_dir : m->spec->output_dir;
    char *path = xasprintf("%s/offload-XXXXXX", dir);
    m->offload_fd = mkostemp(path, O_CLOEXEC);
    int rc = m->offload_fd < 0 ? error_set(err, status_of_errno(errno), "offload_dir: a file in %s: %s", dir, strerror(errno)) : OK;
    if (rc == OK) (void)unlink(path);
    free(path);
    return rc;
}

void offload_close(struct model *m)
{
    if (m->offload_fd >= 0) (void)close(m->offload_fd);
    m->offload_fd = -1;
    for (int i = 0; i < 2; i++) m->ops->event_free(m->moved[i]);
    m->ops->event_free(m->computed);
    if (m->copies) m->ops->stream_free(m->copies);
}

static int disk(struct model *m, bool out, char *p, size_t n, off_t at)
{
    while (n > 0) {
        ssize_t k = out ? pwrite(m->offload_fd, p, n, at) : pread(m->offload_fd, p, n, at);
        if (k < 0 && errno == EINTR) continue;
        if (k <= 0) return error_set(m->err, k < 0 ? status_of_errno(errno) : E_IO, "offload_dir: %s: %s", out ? "write" : "read", k < 0 ? strerror(errno) : "the file is too short");
        p += k;
        n -= (size_t)k;
        at += k;
    }
    return OK;
}

static int move(struct model *m, int64_t i, bool out)
{
    if (m->policy < ACT_OFFLOAD_HOST) return OK;
    size_t most = (size_t)(m->max_Tl * m->c->C) * dtype_size(m->dt), bytes = (size_t)(m->Tl * m->c->C) * dtype_size(m->dt);
    bool file = m->policy == ACT_OFFLOAD_DISK;
    char *host = m->x_host + (file ? 0 : (size_t)i * most);
    void *x = m->layers[i].x;
    if (file && !out) TRY(disk(m, false, host, bytes, (off_t)((size_t)i * most)));
    TRY(model_op(m, "copy", m->ops->copy(m->s, out ? host : x, out ? x : host, bytes)));
    if (!file) return OK;
    TRY(m->ops->stream_wait(m->s, m->err));             /* the host buffer is used again for the next layer */
    return out ? disk(m, true, host, bytes, (off_t)((size_t)i * most)) : OK;
}

/* Behind all that is queued to be computed, beside what comes. */
static int move_aside(struct model *m, int64_t i, bool out)
{
    const struct kernel_ops *ops = m->ops;
    size_t most = (size_t)(m->max_Tl * m->c->C) * dtype_size(m->dt), bytes = (size_t)(m->Tl * m->c->C) * dtype_size(m->dt);
    char *host = m->x_host + (size_t)i * most;
    void *x = m->layers[i].x;
    TRY(model_op(m, "offload", ops->event_record(m->computed, m->s)));
    int rc = ops->event_wait(m->copies, m->computed);
    if (rc == OK) rc = ops->copy(m->copies, out ? host : x, out ? x : host, bytes);
    if (rc == OK) rc = ops->event_record(m->moved[i % 2], m->copies);
    return rc == OK ? OK : error_set(m->err, (enum status)rc, "offload: %s", ops->error(m->copies));
}

static int wait_for(struct model *m, int64_t slot) { return model_op(m, "offload", m->ops->event_wait(m->s, m->moved[slot])); }

/* Layer i writes the input of layer i+1, into the slot from which that of layer i-1 is leaving. */
int offload_make_room(struct model *m, int64_t i) { return m->copies && i > 0 && i + 1 < m->c->L ? wait_for(m, (i + 1) % 2) : OK; }

int offload_put(struct model *m, int64_t i) { return m->copies ? move_aside(m, i, true) : move(m, i, true); }

int offload_get(struct model *m, int64_t i)
{
    if (!m->copies) return move(m, i, false);
    if (m->coming != i) TRY(move_aside(m, i, false));
    TRY(wait_for(m, i % 2));
    m->coming = i - 1;
    return i > 0 ? move_aside(m, i - 1, false) : OK;        /* its slot is that of layer i+1, whose backward is queued */
}
