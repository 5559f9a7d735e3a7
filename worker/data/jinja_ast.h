/* jinja_ast.h - what the interpreter's own files share: the syntax tree and the running machine. Nobody else includes it. */
#ifndef RM_WORKER_DATA_JINJA_AST_H
#define RM_WORKER_DATA_JINJA_AST_H

#include <setjmp.h>

#include "worker/data/jinja.h"

enum token_type { T_DATA, T_VAR_BEGIN, T_VAR_END, T_BLOCK_BEGIN, T_BLOCK_END, T_NAME, T_STRING, T_INT, T_FLOAT, T_OP, T_EOF };
enum op {       /* also the operators of binary and comparison nodes */
    OP_NONE, OP_ADD, OP_SUB, OP_MUL, OP_DIV, OP_FLOORDIV, OP_MOD, OP_POW, OP_TILDE, OP_EQ, OP_NE, OP_LT, OP_LE, OP_GT, OP_GE,
    OP_IN, OP_NOT_IN, OP_ASSIGN, OP_DOT, OP_COLON, OP_PIPE, OP_COMMA, OP_SEMI, OP_LPAREN, OP_RPAREN, OP_LBRACKET, OP_RBRACKET, OP_LBRACE, OP_RBRACE
};
struct token { enum token_type type; enum op op; int line; struct value v; };   /* v: V_STR of names, data and strings; the number */

enum node_kind {
    N_CONST, N_NAME, N_ATTR, N_ITEM, N_SLICE, N_CALL, N_FILTER, N_TEST, N_NOT, N_NEG, N_POS, N_BINARY, N_COMPARE, N_AND, N_OR, N_COND,
    N_CONCAT, N_LIST, N_TUPLE, N_DICT, N_ARG,
    S_BODY, S_TEXT, S_OUTPUT, S_IF, S_FOR, S_SET, S_SET_BLOCK, S_MACRO, S_CALL, S_FILTER, S_WITH, S_GENERATION, S_BREAK, S_CONTINUE
};
enum arg_kind { ARG_PLAIN, ARG_KEYWORD, ARG_STAR, ARG_STARS };

/* Children by kind:  N_ATTR a.name  N_ITEM a[b]  N_SLICE a:b:c (each may be NULL)  N_CALL/N_FILTER/N_TEST a name list=N_ARG
 * N_BINARY a op b  N_COMPARE a then list of N_ARG{op, a}  N_COND a if b else c  N_CONCAT/N_LIST/N_TUPLE list  N_DICT list k,v,k,v
 * S_IF list=cond,body,cond,body,…  c=else   S_FOR a=target b=iterable c=body list={filter or NULL, else or NULL} op=recursive
 * S_SET a=target b=value   S_SET_BLOCK a=target b=filter chain or NULL c=body   S_MACRO name list=params (N_ARG name, a=default) c=body
 * S_CALL a=call list=params c=body   S_FILTER b=filter chain c=body   S_WITH list=target,value,… c=body   S_GENERATION c=body */
struct node {
    enum node_kind kind;
    int op, line;
    const char *name;           /* interned */
    struct value value;         /* N_CONST, S_TEXT */
    struct node *a, *b, *c, **list;
    int n;
    bool uses_caller, uses_varargs, uses_kwargs;        /* S_MACRO, S_CALL */
};

struct jinja { struct pool pool; struct node *root; bool generation; uint64_t hash; };

/* jinja_lex.c. Tokens live in the pool; ends with T_EOF. On refusal: err "line L: …", non-OK. */
int jinja_lex(struct pool *pool, const char *source, size_t len, struct token **tokens, size_t *n, struct error *err);

/* --- the running machine --- */

enum other_kind { O_NAMESPACE, O_MACRO, O_LOOP, O_METHOD, O_FUNCTION, O_CYCLER, O_JOINER };     /* tag of V_OTHER */

struct bind { const char *name; struct value v; struct bind *next; };
struct scope { struct scope *up; struct bind *binds; };
struct text { char *p; size_t n, cap; };        /* growing, in the machine's pool */

struct macro { const struct node *node; struct scope *scope; };
struct loop { const struct node *node; struct scope *scope; struct list *items; size_t i; int64_t depth0; struct value changed; bool has_changed; };
struct method { struct value self; const char *name; };
struct function { const char *name; };
struct cycler { struct list *items; size_t i; };

struct args { struct list *plain; struct dict *named; };

struct vm {
    const struct jinja *t;
    struct pool pool;
    jmp_buf fault;
    struct error err;
    int line;
    int64_t steps, steps_max, now;
    int depth;
    size_t out_max;
    struct text *out, root;
    struct scope *scope, *globals;
    struct rendered *result;
    struct value context;
    struct buf scratch;         /* here, not on the stack, so that a fault does not leak it */
};

_Noreturn void vm_fail(struct vm *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
void vm_step(struct vm *vm, int64_t n);
void text_add(struct vm *vm, struct text *t, const char *p, size_t n);

/* jinja_ops.c: Python's operators on values. */
bool py_true(struct value v);
bool py_equal(struct vm *vm, struct value a, struct value b);
int py_order(struct vm *vm, struct value a, struct value b);               /* <0 0 >0; fails where Python has no order */
bool py_in(struct vm *vm, struct value item, struct value in);
struct value py_binary(struct vm *vm, enum op op, struct value a, struct value b);
struct value py_negate(struct vm *vm, struct value v, bool plus);
void py_str(struct vm *vm, struct text *out, struct value v);              /* str(v) */
void py_repr(struct vm *vm, struct text *out, struct value v);
struct value py_to_str(struct vm *vm, struct value v);                     /* V_STR */
#define ITERATOR_FAILS SIZE_MAX         /* cap of an iterator over something that is none: it fails once it is walked, as a generator does */
struct list *py_iter(struct vm *vm, struct value v);                       /* list(v) */
bool py_iterable(struct value v);
int64_t py_len(struct vm *vm, struct value v);
int64_t py_index(struct vm *vm, struct value v, const char *what);         /* an int, or fails */
struct value py_attr(struct vm *vm, struct value v, const char *name);     /* v.name, then v["name"] */
struct value py_item(struct vm *vm, struct value v, struct value key);     /* v[key] */
struct value py_slice(struct vm *vm, struct value v, struct value from, struct value to, struct value step);
struct value v_other(enum other_kind kind, void *o);
struct value v_undefined_because(struct vm *vm, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
const char *py_type(struct value v);                                       /* "str", "dict" … */
void vm_need_defined(struct vm *vm, struct value v);

/* jinja_text.c: str methods on code points. */
size_t u8_len(const char *p);
size_t u8_count(const char *p, size_t n);
size_t u8_offset(const char *p, size_t n, int64_t at);                     /* byte of code point at, at most n */
uint32_t u8_get(const char *p);
size_t u8_put(char out[4], uint32_t c);
bool u8_space(uint32_t c);
bool u8_printable(uint32_t c);
bool u8_word(uint32_t c);                                                   /* \w */
struct value str_new(struct vm *vm, const char *p, size_t n);              /* copies */
struct value str_strip(struct vm *vm, struct value s, struct value chars, bool left, bool right);   /* chars V_UNDEFINED: white space */
struct value str_case(struct vm *vm, struct value s, char how);            /* u l t(itle) c(apitalize) s(wap) T (the filter's title) */
struct value str_replace(struct vm *vm, struct value s, struct value from, struct value to, int64_t count);
struct value str_method(struct vm *vm, struct value s, const char *name, const struct args *args);
struct value str_format(struct vm *vm, struct value fmt, struct value args);       /* % */
bool str_has_method(const char *name);
struct value str_escape(struct vm *vm, struct value s);                    /* HTML; the result is safe */

/* jinja_lib.c */
struct value lib_filter(struct vm *vm, const char *name, struct value v, const struct args *args);
bool lib_test(struct vm *vm, const char *name, struct value v, const struct args *args);
bool lib_knows(const char *name, bool test);
struct value lib_function(struct vm *vm, const char *name, const struct args *args);
struct value lib_global(struct vm *vm, const char *name);                  /* range, namespace, …; V_UNDEFINED if none */
struct value lib_method(struct vm *vm, const struct method *m, const struct args *args);
/* Argument i or named: fails on more than `most` or on unknown names (names: "a|b|c" in order). */
struct value arg_of(const struct args *args, size_t i, const char *name);
void args_check(struct vm *vm, const char *who, const struct args *args, size_t least, size_t most);

/* jinja_eval.c */
struct value vm_call(struct vm *vm, struct value f, const struct args *args);

#endif
