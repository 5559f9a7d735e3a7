/* rendezvous.h - small strings by key and fences, among the ranks of one attempt: how they exchange an NCCL id or the name of
 * shared memory under any launcher. A get waits until somebody puts the key; a fence opens when every rank came, and may be used
 * again. Bounded, because ranks may be wrong. */
#ifndef RM_KEEPER_RENDEZVOUS_H
#define RM_KEEPER_RENDEZVOUS_H

#include <stdbool.h>

#include "api/error.h"

enum { RENDEZVOUS_KEYS_MAX = 4096, RENDEZVOUS_VALUE_MAX = 64 * 1024 };

struct rendezvous { struct rendezvous_entry *values, *fences; int n, world; };

void rendezvous_init(struct rendezvous *v, int world);
void rendezvous_release(struct rendezvous *v);
/* tell(arg, rank, key, value): to every rank that waits for key. E_LIMIT beyond the bounds; a second put replaces the value. */
int rendezvous_put(struct rendezvous *v, const char *key, const char *value, void (*tell)(void *, int, const char *, const char *), void *arg, struct error *err);
int rendezvous_get(struct rendezvous *v, int rank, const char *key, void (*tell)(void *, int, const char *, const char *), void *arg, struct error *err);
/* tell(arg, rank, name, NULL) to every rank once all came. */
int rendezvous_fence(struct rendezvous *v, int rank, const char *name, void (*tell)(void *, int, const char *, const char *), void *arg, struct error *err);

#endif
