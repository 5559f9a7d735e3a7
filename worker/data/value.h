/* value.h - the values a record, a conversation and a chat template are made of: JSON with Python's distinctions.
 *
 * cJSON would turn 2.0 into 2 and lose big integers; templates print both, so rows are parsed into these instead. Everything
 * lives in a pool and is freed with it; values are small and passed by copy, lists and dicts are shared by reference. */
#ifndef RM_WORKER_DATA_VALUE_H
#define RM_WORKER_DATA_VALUE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "api/json.h"

struct pool {                   /* zero-initialise; limit 0 means none */
    struct pool_block *head;
    size_t used, limit;
    void (*full)(void *arg);    /* called when limit would be passed; must not return */
    void *arg;
};
void *pool_alloc(struct pool *p, size_t bytes);                 /* zeroed, 16-byte aligned, never NULL */
char *pool_strndup(struct pool *p, const char *s, size_t n);    /* NUL-terminated */
void pool_release(struct pool *p);

enum value_type { V_UNDEFINED, V_NONE, V_BOOL, V_INT, V_FLOAT, V_BIG, V_STR, V_LIST, V_DICT, V_OTHER };

/* What kind of sequence a V_LIST is to a template. Only the first two are JSON. */
enum list_tag { LIST_PLAIN, LIST_TUPLE, LIST_ITERATOR, LIST_ITEMS, LIST_KEYS, LIST_VALUES, LIST_RANGE };

struct value {
    enum value_type type;
    int tag;                    /* V_BOOL: 0 or 1; V_LIST: enum list_tag; V_STR: 1 where safe (Markup); V_OTHER: which kind, see jinja_ast.h */
    union {
        int64_t i;
        double f;
        struct { const char *p; size_t n; } s;          /* V_STR: UTF-8, NUL allowed inside; V_BIG: digits; V_UNDEFINED: why (p may be NULL) */
        struct list *l;
        struct dict *d;
        void *o;
    };
};
struct list { struct value *v; size_t n, cap; };
struct dict { struct value *k, *v; size_t n, cap; };            /* in order of insertion */

struct value v_str(const char *p, size_t n);                    /* borrows p */
struct value v_cstr(const char *p);
struct value v_int(int64_t i);
struct value v_bool(bool b);
struct value v_none(void);
struct value v_undefined(void);
struct value v_list(struct pool *p);
struct value v_dict(struct pool *p);
void list_add(struct pool *p, struct list *l, struct value v);
void dict_set(struct pool *p, struct dict *d, struct value key, struct value v);    /* replaces in place */
void dict_push(struct pool *p, struct dict *d, struct value key, struct value v);   /* the key is known to be new: no search */
struct value *dict_find(const struct dict *d, const char *key);                     /* NULL if absent */
/* Member of a dict; v_undefined() if v is no dict or has none. */
struct value value_get(struct value v, const char *key);
bool value_is_str(struct value v, const char *s);
const char *value_kind(struct value v);         /* "an object", "a string" … for messages */

/* Strict JSON (json_check's rules; NUL escapes are taken) into values. Strings are copied into the pool. */
int value_parse(struct value *out, struct pool *p, const char *text, size_t len, const struct json_limits *lim, struct error *err);

struct buf { char *p; size_t n, cap; };         /* growing text; zero-initialise; buf_release frees */
void buf_add(struct buf *b, const char *s, size_t n);
void buf_str(struct buf *b, const char *s);
void buf_release(struct buf *b);
/* Python's json.dumps(ensure_ascii=False): ", " and ": ", order kept, 2.0 stays 2.0. indent < 0: one line. False at a value that is
 * not JSON (undefined, macro, …), with its type's name in *bad. */
bool value_dumps(struct buf *b, struct value v, int indent, bool sort_keys, const char **bad);
/* repr() of a Python float into out[32]. */
void float_repr(double v, char out[32]);

#endif
