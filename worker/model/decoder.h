/* decoder.h - the inside of struct model: how layers, parameters and buffers hang together. Private to worker/model.
 *
 * Rows are tokens of this rank (Tl, at most max_T / P). Long-lived buffers hold what forward leaves for backward, one per layer
 * as far as the policy says; short-lived ones (one phase of one layer, one tile) overlay each other, see decoder_layout(). */
#ifndef RM_WORKER_MODEL_DECODER_H
#define RM_WORKER_MODEL_DECODER_H

#include "worker/model/model.h"
#include "worker/parallel/attention.h"
#include "worker/parallel/zero.h"

struct linear {                 /* y = x W^T + b + s drop(x) A^T B^T */
    struct param *w, *b, *A, *B, *mag;      /* b, A, B, mag may be NULL */
    int64_t in, out;
    int64_t r;                  /* rank of the adapter */
    float scale;                /* alpha / r, or alpha / sqrt(r) */
    uint64_t id;                /* which of the model's linears; part of the dropout's seed */
    float *inv_norm, *c;        /* DoRA, device [out]: 1 / |W + s B A| by row; mag times that */
};

struct layer {
    struct linear q, k, v, o, gate, up, down;
    struct param *norm1, *norm2, *qnorm, *knorm;
    struct attn_group *attn;
    /* kept from forward; NULL where the policy keeps nothing */
    void *x;                    /* [Tl,C] the layer's input */
    void *x2;                   /* [Tl,C] after attention */
    void *a;                    /* [Tl,H*D] attention's output */
    void *q_raw, *k_raw;        /* before q/k norm; only with it */
    struct attn_kept kept;
    void *g, *u;                /* [Tl,F] gate and up */
};

struct model {
    const struct spec *spec;
    const struct model_config *c;
    const struct kernel_ops *ops;
    const struct mesh *mesh;
    struct stream *s;
    enum act_policy policy;
    enum dtype dt;
    int64_t max_T, max_docs, max_Tl, P;
    bool lora, dora, planning;
    float dropout;
    int64_t max_r;              /* the largest rank of any adapter */
    cJSON *peft;                /* rank_pattern and alpha_pattern that apply, as PEFT writes them */

    struct params params;
    int64_t cap_params;
    struct zero *zero;                      /* gradients in shards; NULL: whole, in flat_g */
    struct zero_weights *shards;            /* weights in shards: of all parameters, or with LoRA of the frozen ones; NULL: whole */
    int64_t *unit_first;                    /* [L+3] first parameter of embedding, layers, norm and head; end */
    struct param *embed, *norm, *head;      /* head == embed when tied */
    struct layer *layers;
    uint64_t n_linears;
    struct attn_group *attn[2]; /* full, and with the sliding window; either may be NULL */

    /* the current row */
    int64_t T, Tl;
    struct layout layout;
    int64_t *index;             /* host [Tl]: row position of each local token */
    int32_t *h_ids, *h_labels, *h_pos;
    float *h_weights;
    int32_t *ids, *labels, *pos;            /* device */
    float *weights, *cos, *sin, *inv_freq;
    uint64_t row_key;
    double weight_sum, count;
    int64_t last_real;          /* local index of the last token of document 0 when world is 1 */
    bool train;                 /* dropout is on */

    /* short-lived, device */
    void *x_out;                /* [Tl,C] the last layer's output */
    void *d;                    /* [Tl,C] gradient of the residual stream */
    void *x2;                   /* [Tl,C] scratch where x2 is not kept */
    float *rstd;                /* [Tl] of the norm at hand */
    struct attn_kept kept;      /* where the policy keeps none */
    void *q, *k, *v, *a, *h;    /* attention phase: [Tl,H*D], [Tl,Hkv*D] x2, [Tl,H*D], [Tl,C] */
    void *q_raw, *k_raw;
    void *dq;                   /* [Tl,H*D] */
    float *rstd_q, *rstd_k;
    void *t_h, *t_dh, *t_g, *t_u, *t_s, *t_ds;      /* MLP tile [tile,C] x2, [tile,F] x4 */
    int64_t mlp_tile;           /* rows */
    void *z, *z_h, *z_dh;       /* head tile [z_tile,V], [z_tile,C] x2 */
    int64_t z_tile;
    float *loss, *h_loss;       /* [Tl] device, host */
    uint8_t *correct, *h_correct;
    void *l_t, *l_dt, *l_x, *l_dx;          /* LoRA tile f32 [lora_tile,max_r] x2, [lora_tile,widest] x2 (with dropout, bf16 or DoRA) */
    int64_t lora_tile;
    void *l_y;                  /* f32 [lora_tile,widest]: bf16 or DoRA */
    float *l_w, *l_wy, *ones;   /* DoRA norms: [dora_rows,widest] x2 (l_w also a tile, with dropout), [widest] */
    int64_t dora_rows, widest;  /* widest: the longest row of any linear's weight or output */
    void *ws;
    int64_t ws_bytes;
    void *norm_ws;
    char *x_host;               /* offload_host: [L][max_Tl,C]; offload_disk: [max_Tl,C] */
    int offload_fd;             /* offload_disk; -1 */
    struct stream *copies;      /* offload_host on a device: moves layer inputs while others compute; NULL: the model's own stream moves them */
    struct event *computed, *moved[2];      /* of a slot: its last copy, out or in */
    int64_t coming;             /* the layer whose input is on its way back; -1: none */
    struct error *err;          /* of the public call under way */
};

#define TRY(x) do { int try_rc = (x); if (try_rc != OK) return try_rc; } while (0)

/* Records a kernel's refusal; passes rc on. */
int model_op(struct model *m, const char *what, int rc);

/* params.c: fills m->params, the layers' links and the flat vector; takes weights and gradients. */
int params_build(struct model *m, struct arena *device, struct arena *shared, struct arena *host, struct error *err);
/* With ZeRO 2 a unit's parameters have gradients (param.g) between these two only. Units: 0 embedding, 1…L layers, L+1 norm and head. */
int params_open_grads(struct model *m, int64_t unit);
int params_close_grads(struct model *m, int64_t unit);
/* With ZeRO 3 a unit's sharded parameters have weights (param.w) between these two only; next: the unit to fetch meanwhile, -1: none. */
int params_open(struct model *m, int64_t unit, int64_t next);
void params_close(struct model *m, int64_t unit);
/* Elements [from, from+n) of p, of type param_stored(p), from host memory into the model, as far as they are this rank's. */
int params_store(struct model *m, const struct param *p, const void *host, int64_t from, int64_t n);
/* The type that p is loaded in and saved in: f32 where it has a master. */
static inline enum dtype param_stored(const struct param *p) { return p->master ? DT_F32 : p->dt; }
/* The model's copies of what the optimizer has updated. */
int params_refresh(struct model *m);
void params_release(struct params *p);
/* Base tensor name ("model.norm.weight") of a parameter that is no LoRA part: its name without PEFT's prefix. */
const char *param_base_name(const struct param *p);

/* linear.c: N rows; row0: the first one's local index (dropout). y [N,out], x [N,in], dy, dx alike. */
int linear_fwd(struct model *m, const struct linear *l, void *y, const void *x, int64_t N, int64_t row0);
/* dx (+= when add; NULL: not wanted) and the gradients of what is trained. */
int linear_bwd(struct model *m, const struct linear *l, void *dx, bool add, const void *dy, const void *x, int64_t N, int64_t row0);
/* What the products need as workspace and LoRA as scratch, taken in model_new. */
void linear_layout(struct model *m, struct arena *device);

/* DoRA: what depends on the weights; init_mag: the magnitudes start as the norms. */
int dora_refresh(struct model *m, struct linear *l, bool init_mag);
enum { LAYER_LINEARS = 7 };
struct linear *layer_linear(struct layer *l, int i);

/* layer.c */
int layer_fwd(struct model *m, struct layer *l, void *x_out);
/* m->d: gradient by the layer's output, becomes the gradient by its input. */
int layer_bwd(struct model *m, struct layer *l);
void layer_layout(struct model *m, struct arena *device, struct arena *host);

/* offload.c: the input of layer i to where it waits, and back; nothing under policies that keep it on the device. offload_make_room: before layer i
 * is computed forward, for what it writes. */
void offload_layout(struct model *m, struct arena *device, struct arena *host);
int offload_open(struct model *m, struct error *err);
void offload_close(struct model *m);
int offload_make_room(struct model *m, int64_t i);
int offload_put(struct model *m, int64_t i);
int offload_get(struct model *m, int64_t i);

/* head.c: final norm, logits, loss, tile by tile; with grad also dx into m->d and the head's gradients. */
int head_run(struct model *m, const void *x, double scale, bool grad, struct model_loss *out);
/* Logits f32 [n,V] (host) of rows [from, from+n) of x. */
int head_logits(struct model *m, const void *x, int64_t from, int64_t n, float *out);
/* Rows of a tile of logits, bounded in bytes. */
int64_t head_tile_rows(const struct model *m);
void head_layout(struct model *m, struct arena *device, struct arena *host);

#endif
