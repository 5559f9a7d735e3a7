/* arena.h - the plan is the allocation: one function lays a rank's memory out, run twice.
 *
 * A rank's memory is laid out by code that calls arena_take() for every buffer, in order. Run on an arena without memory it
 * only records (that is `ringmaster plan`: exact by construction); run on one with memory it hands out pointers. Same code,
 * same numbers. After start-up nothing is taken outside a mark/release pair that the plan already walked.
 * Buffers with the same lifetime share nothing; short-lived ones (one layer, one tile) live between arena_mark() and
 * arena_release() and overlay each other like a stack. Peak = the highest fill ever reached; that is what is allocated. */
#ifndef RM_WORKER_ARENA_H
#define RM_WORKER_ARENA_H

#include <stdint.h>

#include "kernels/kernels.h"

enum mem_category {
    MEM_WEIGHTS, MEM_GRADIENTS, MEM_OPTIMIZER, MEM_ACTIVATIONS, MEM_ATTENTION, MEM_MLP, MEM_LOGITS, MEM_COMMUNICATION, MEM_DATA,
    MEM_WORKSPACE, MEM_CATEGORIES
};
extern const char *const mem_category_names[MEM_CATEGORIES];    /* "weights", … */

enum mem_place { PLACE_DEVICE, PLACE_SHARED /* the transport's: peers read it */, PLACE_HOST /* pinned */, MEM_PLACES };

struct arena_buffer {
    char name[64];              /* "layers.3.attn.lse" */
    enum mem_category category;
    enum dtype dtype;
    int ndim;
    int64_t dim[4];
    int64_t offset, bytes;      /* bytes: rounded up to 256 */
    bool scratch;               /* lives between a mark and its release */
};

struct arena {
    enum mem_place place;
    char *base;                 /* NULL: recording only; taken pointers are NULL */
    int64_t capacity, used, peak;
    int64_t peak_by_category[MEM_CATEGORIES];   /* at the moment of the peak */
    int64_t now_by_category[MEM_CATEGORIES];
    struct arena_buffer *buffers;               /* recorded when recording; owned */
    int64_t n_buffers, cap_buffers;
};

void arena_init(struct arena *a, enum mem_place place, void *base, int64_t capacity);
void arena_release_all(struct arena *a);        /* frees the records, not base */
/* The next buffer; dims end at the first 0 (so up to 4). Asserts it fits: the plan said so. */
void *arena_take(struct arena *a, enum mem_category c, enum dtype dt, int64_t d0, int64_t d1, int64_t d2, int64_t d3,
                 const char *fmt, ...) __attribute__((format(printf, 8, 9)));
struct arena_mark { int64_t used, by_category[MEM_CATEGORIES]; };
struct arena_mark arena_mark(const struct arena *a);
void arena_release(struct arena *a, struct arena_mark m);
/* What is taken from now on overlays nothing that came before, scratch included. */
void arena_settle(struct arena *a);

#endif
