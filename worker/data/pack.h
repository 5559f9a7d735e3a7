/* pack.h - which documents share a row. */
#ifndef RM_WORKER_DATA_PACK_H
#define RM_WORKER_DATA_PACK_H

#include <stdint.h>

struct packing {
    int64_t n_rows;
    int64_t *first;             /* [n_rows+1]: row r holds docs[first[r] .. first[r+1]) */
    int64_t *docs;              /* document numbers, ascending inside a row; rows in order of their first document */
};

/* Best fit decreasing: longest document first, each into the row with the least room that still takes it. Needs 1 <= length[i] <=
 * capacity. Deterministic: equal lengths go by number. O(n log n). At most 11/9 OPT + 1 rows (Johnson et al. 1974). */
void pack_best_fit(struct packing *out, const int64_t *length, int64_t n, int64_t capacity);
/* One document a row. */
void pack_single(struct packing *out, int64_t n);
void packing_release(struct packing *p);

#endif
