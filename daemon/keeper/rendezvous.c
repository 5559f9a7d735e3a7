#include "daemon/keeper/rendezvous.h"

#include <stdlib.h>
#include <string.h>

struct rendezvous_entry {
    char *key, *value;
    bool *waiting;              /* [world]: asked for the value; or came to the fence */
    int n_waiting;
    struct rendezvous_entry *next;
};

void rendezvous_init(struct rendezvous *v, int world) { *v = (struct rendezvous){ .world = world }; }

static void entries_free(struct rendezvous_entry *e)
{
    while (e) {
        struct rendezvous_entry *next = e->next;
        free(e->key);
        free(e->value);
        free(e->waiting);
        free(e);
        e = next;
    }
}

void rendezvous_release(struct rendezvous *v)
{
    entries_free(v->values);
    entries_free(v->fences);
    *v = (struct rendezvous){ 0 };
}

static int entry(struct rendezvous *v, struct rendezvous_entry **list, const char *key, struct rendezvous_entry **out, struct error *err)
{
    for (*out = *list; *out; *out = (*out)->next)
        if (strcmp((*out)->key, key) == 0) return OK;
    if (v->n >= RENDEZVOUS_KEYS_MAX) return error_set(err, E_LIMIT, "more than %d rendezvous keys", RENDEZVOUS_KEYS_MAX);
    struct rendezvous_entry *e = xcalloc(1, sizeof *e);
    e->key = xstrdup(key);
    e->waiting = xcalloc((unsigned long)v->world, sizeof *e->waiting);
    e->next = *list;
    *list = *out = e;
    v->n++;
    return OK;
}

static void tell_all(struct rendezvous *v, struct rendezvous_entry *e, void (*tell)(void *, int, const char *, const char *), void *arg)
{
    for (int r = 0; r < v->world; r++) {
        if (!e->waiting[r]) continue;
        e->waiting[r] = false;
        tell(arg, r, e->key, e->value);
    }
    e->n_waiting = 0;
}

int rendezvous_put(struct rendezvous *v, const char *key, const char *value, void (*tell)(void *, int, const char *, const char *), void *arg, struct error *err)
{
    struct rendezvous_entry *e;
    if (strlen(value) > RENDEZVOUS_VALUE_MAX) return error_set(err, E_LIMIT, "value of %.100s has %zu bytes, at most %d are taken", key, strlen(value), RENDEZVOUS_VALUE_MAX);
    int rc = entry(v, &v->values, key, &e, err);
    if (rc != OK) return rc;
    free(e->value);
    e->value = xstrdup(value);
    tell_all(v, e, tell, arg);
    return OK;
}

int rendezvous_get(struct rendezvous *v, int rank, const char *key, void (*tell)(void *, int, const char *, const char *), void *arg, struct error *err)
{
    struct rendezvous_entry *e;
    int rc = entry(v, &v->values, key, &e, err);
    if (rc != OK) return rc;
    if (e->value) tell(arg, rank, e->key, e->value);
    else e->waiting[rank] = true;
    return OK;
}

int rendezvous_fence(struct rendezvous *v, int rank, const char *name, void (*tell)(void *, int, const char *, const char *), void *arg, struct error *err)
{
    struct rendezvous_entry *e;
    int rc = entry(v, &v->fences, name, &e, err);
    if (rc != OK) return rc;
    if (!e->waiting[rank]) {
        e->waiting[rank] = true;
        e->n_waiting++;
    }
    if (e->n_waiting == v->world) tell_all(v, e, tell, arg);
    return OK;
}
