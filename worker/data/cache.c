/* cache.c - a tokenized data set as one file (corpus.h).
 *
 *   header | documents | spans | ids        all arrays 64-byte aligned, in this machine's byte order (the magic number tells)
 * Written aside and renamed, so a file with the name is whole. It is still not trusted: every index and the checksum are looked at, and
 * a file that does not fit is refused, never repaired. */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/corpus.h"

#define MAGIC 0x32434D52u       /* "RMC2" */

struct header {
    uint32_t magic, header_bytes;
    uint64_t key[2];
    int64_t n_docs, n_spans, n_ids, samples, dropped_long, dropped_untrained;
    int64_t docs_at, spans_at, ids_at, bytes;
    uint64_t checksum;          /* of everything after the header */
    uint64_t header_checksum;   /* of the header up to here */
};

static uint64_t sum(uint64_t h, const void *data, size_t n)
{
    const unsigned char *p = data;
    for (; n >= 8; p += 8, n -= 8) {
        uint64_t w;
        memcpy(&w, p, 8);
        h = (h ^ w) * 0x9E3779B97F4A7C15u;
        h ^= h >> 32;
    }
    for (; n > 0; p++, n--) { h = (h ^ *p) * 0x9E3779B97F4A7C15u; h ^= h >> 32; }
    return h;
}

static int64_t up64(int64_t n) { return (n + 63) / 64 * 64; }

int cache_write(const char *path, const struct corpus *c, const uint64_t key[2], struct error *err)
{
    static const char zeros[64] = { 0 };
    struct header h = { .magic = MAGIC, .header_bytes = sizeof h, .key = { key[0], key[1] }, .n_docs = c->n_docs, .n_spans = c->n_spans,
                        .n_ids = c->n_ids, .samples = c->samples, .dropped_long = c->dropped_long, .dropped_untrained = c->dropped_untrained };
    struct { const void *p; int64_t bytes, at; } part[3] = {
        { c->docs, c->n_docs * (int64_t)sizeof *c->docs, 0 }, { c->spans, c->n_spans * (int64_t)sizeof *c->spans, 0 },
        { c->ids, c->n_ids * (int64_t)sizeof *c->ids, 0 } };
    int64_t at = up64(sizeof h), pad = at - (int64_t)sizeof h;
    h.checksum = sum(1, zeros, (size_t)pad);
    for (int i = 0; i < 3; i++) {
        part[i].at = at;
        at = up64(at + part[i].bytes);
        h.checksum = sum(h.checksum, part[i].p, (size_t)part[i].bytes);
        h.checksum = sum(h.checksum, zeros, (size_t)(at - part[i].at - part[i].bytes));
    }
    h.docs_at = part[0].at;
    h.spans_at = part[1].at;
    h.ids_at = part[2].at;
    h.bytes = at;
    h.header_checksum = sum(2, &h, offsetof(struct header, header_checksum));
    char *tmp = xasprintf("%s.%ld.tmp", path, (long)getpid());
    int rc = OK, fd = open(tmp, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC | O_NOFOLLOW, 0644);
    if (fd < 0) { rc = error_set(err, status_of_errno(errno), "%s: %s", tmp, strerror(errno)); free(tmp); return rc; }
    rc = write_all(fd, &h, sizeof h, err);
    if (rc == OK) rc = write_all(fd, zeros, (size_t)pad, err);
    for (int i = 0; i < 3 && rc == OK; i++) {
        rc = write_all(fd, part[i].p, (size_t)part[i].bytes, err);
        if (rc == OK) rc = write_all(fd, zeros, (size_t)(up64(part[i].at + part[i].bytes) - part[i].at - part[i].bytes), err);
    }
    if (rc == OK && (fsync(fd) < 0 || rename(tmp, path) < 0)) rc = error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    if (close(fd) < 0 && rc == OK) rc = error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    if (rc != OK) { (void)unlink(tmp); (void)error_prefix(err, "cached data set"); }
    else rc = fsync_parent(path, err);
    free(tmp);
    return rc;
}

static const char *wrong(const struct header *h, const unsigned char *map, size_t bytes, const uint64_t key[2], int64_t vocab)
{
    if (bytes < sizeof *h || h->magic != MAGIC || h->header_bytes != sizeof *h) return "not a file of this version";
    if (h->header_checksum != sum(2, h, offsetof(struct header, header_checksum))) return "header is damaged";
    if (h->key[0] != key[0] || h->key[1] != key[1]) return "made from other data or settings";
    if (h->bytes != (int64_t)bytes) return "wrong size";
    if (h->n_docs < 0 || h->n_spans < 0 || h->n_ids < 0 || h->n_docs > (int64_t)bytes / (int64_t)sizeof(struct document)
        || h->n_spans > (int64_t)bytes / (int64_t)sizeof(struct span) || h->n_ids > (int64_t)bytes / 4
        || h->docs_at != up64(sizeof *h) || h->spans_at != up64(h->docs_at + h->n_docs * (int64_t)sizeof(struct document))
        || h->ids_at != up64(h->spans_at + h->n_spans * (int64_t)sizeof(struct span)) || h->bytes != up64(h->ids_at + h->n_ids * 4))
        return "header does not add up";
    if (h->checksum != sum(1, map + sizeof *h, bytes - sizeof *h)) return "content is damaged";
    const struct document *docs = (const void *)(map + h->docs_at);
    const struct span *spans = (const void *)(map + h->spans_at);
    const int32_t *ids = (const void *)(map + h->ids_at);
    for (int64_t i = 0; i < h->n_docs; i++) {
        const struct document *d = &docs[i];
        if (d->n_ids < 1 || d->id0 < 0 || d->id0 > h->n_ids - d->n_ids || d->n_spans < 0 || d->span0 < 0 || d->span0 > h->n_spans - d->n_spans) return "document out of bounds";
        for (int32_t k = 0, at = 0; k < d->n_spans; k++) {
            struct span s = spans[d->span0 + k];
            if (s.from < at || s.to <= s.from || s.to > d->n_ids || !(s.weight >= 0.0f)) return "span out of bounds";
            at = s.to;
        }
    }
    for (int64_t i = 0; i < h->n_ids; i++)
        if (ids[i] < 0 || ids[i] >= vocab) return "token outside the vocabulary";
    return NULL;
}

int cache_read(struct corpus *c, const char *path, const uint64_t key[2], int64_t vocab, struct error *err)
{
    struct stat st;
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW);
    *c = (struct corpus){ 0 };
    if (fd < 0) return error_set(err, status_of_errno(errno), "%s: %s", path, strerror(errno));
    if (fstat(fd, &st) < 0 || !S_ISREG(st.st_mode) || st.st_size < (off_t)sizeof(struct header)) {
        (void)close(fd);
        return error_set(err, E_INVALID, "%s: not a cached data set", path);
    }
    void *map = mmap(NULL, (size_t)st.st_size, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
    (void)close(fd);
    if (map == MAP_FAILED) return error_set(err, E_IO, "%s: %s", path, strerror(errno));
    const struct header *h = map;
    const char *why = wrong(h, map, (size_t)st.st_size, key, vocab);
    if (why) {
        (void)munmap(map, (size_t)st.st_size);
        return error_set(err, E_INVALID, "%s: %s", path, why);
    }
    c->map = map;
    c->map_bytes = (size_t)st.st_size;
    c->docs = (void *)((char *)map + h->docs_at);
    c->spans = (void *)((char *)map + h->spans_at);
    c->ids = (void *)((char *)map + h->ids_at);
    c->n_docs = h->n_docs;
    c->n_spans = h->n_spans;
    c->n_ids = h->n_ids;
    c->samples = h->samples;
    c->dropped_long = h->dropped_long;
    c->dropped_untrained = h->dropped_untrained;
    return OK;
}
