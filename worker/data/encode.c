/* encode.c - finding what is trained, by rendering (encode.h).
 *
 * The whole conversation is rendered once; its tokens are the sample's tokens. For every assistant turn the conversation before it is
 * rendered with the generation prompt: where that is a prefix of the whole text, it ends where the turn's own words begin. The
 * conversation up to the turn, rendered, ends where the turn ends. Templates that rewrite history (Qwen3 drops earlier reasoning) break
 * one or both prefixes; then the turn's words are replaced by a mark and the two texts compared: what differs is the turn. */
#include "worker/data/encode.h"

#include <stdlib.h>
#include <string.h>

#define FEW_TURNS 2             /* so many are looked for one by one; more, all at once */
#define MANY_TURNS 1000         /* more cannot be looked for one by one: every one takes renderings of the whole */
#define MARK "\xEE\x80\x80ringmaster\xEE\x80\x81"       /* private-use characters: no text starts or ends with them by chance */

void encoded_release(struct encoded *e)
{
    ids_release(&e->ids);
    free(e->spans);
    *e = (struct encoded){ 0 };
}

int loss_scale_named(const char *name)
{
    static const char *const names[] = { "default", "last_round", "all", "ignore_empty_think" };
    for (int i = 0; i < 4; i++)
        if (strcmp(name, names[i]) == 0) return i;
    return -1;
}

static void add_span(struct encoded *out, int64_t from, int64_t to, float weight)
{
    if (from >= to || weight == 0.0f) return;
    struct span *last = out->n_spans ? &out->spans[out->n_spans - 1] : NULL;
    if (last && from < last->to) from = last->to;
    if (from >= to) return;
    if (last && last->to == from && last->weight == weight) { last->to = (int32_t)to; return; }
    if (out->n_spans == out->cap_spans) {
        out->cap_spans = out->cap_spans ? out->cap_spans * 2 : 8;
        out->spans = xrealloc(out->spans, (size_t)out->cap_spans * sizeof *out->spans);
    }
    out->spans[out->n_spans++] = (struct span){ (int32_t)from, (int32_t)to, weight };
}

/* --- bytes to tokens --- */

struct places {                 /* walks forward through one text and its ids */
    const struct encoder *e;
    const char *text;
    size_t len;
    const struct ids *ids;
    struct ids part;
};

/* Tokens before byte `at`; a token across the border counts as after it. The tokens of the text before `at` are compared with those of the
 * whole: they agree up to the border. Special tokens cut the text for the tokenizer, so the last one before `at` is where the comparison
 * may start; it is believed only if it agrees in full. */
static int token_at(struct places *p, size_t at, int64_t *token, struct error *err)
{
    int rc;
    for (size_t end = at; end >= 2;) {                          /* the last "<|…|>" before at */
        const char *close = memrchr(p->text, '>', end);
        if (close == NULL || close == p->text) break;
        end = (size_t)(close - p->text);
        if (close[-1] != '|') continue;
        const char *open = close - 1;
        while (open > p->text && close - open < 64 && !(open[0] == '<' && open[1] == '|')) open--;
        if (!(open[0] == '<' && open[1] == '|')) continue;
        char name[72];
        size_t n = (size_t)(close - open) + 1;
        memcpy(name, open, n);
        name[n] = '\0';
        int32_t id = tokenizer_id(p->e->tok, name);
        if (id < 0) continue;
        size_t start = (size_t)(close - p->text) + 1;
        int64_t seen = 0, k = 0;
        for (const char *s = p->text; s < p->text + start; seen++) {
            const char *hit = memmem(s, (size_t)(p->text + start - s), name, n);
            if (hit == NULL) break;
            s = hit + n;
        }
        for (; k < p->ids->n && seen > 0; k++) seen -= p->ids->v[k] == id;
        if (seen > 0) break;
        p->part.n = 0;
        if ((rc = tokenizer_encode(p->e->tok, p->text + start, at - start, false, &p->part, err)) != OK) return rc;
        if (p->part.n <= p->ids->n - k && memcmp(p->part.v, p->ids->v + k, (size_t)p->part.n * sizeof *p->part.v) == 0) {
            *token = k + p->part.n;
            return OK;
        }
        break;
    }
    p->part.n = 0;
    if ((rc = tokenizer_encode(p->e->tok, p->text, at, false, &p->part, err)) != OK) return rc;
    int64_t k = 0;
    while (k < p->part.n && k < p->ids->n && p->part.v[k] == p->ids->v[k]) k++;
    *token = k;
    return OK;
}

/* --- turns --- */

struct work {
    const struct encoder *e;
    struct pool pool;
    struct value messages, tools;
    struct rendered whole, part, other;
};

static struct value head_of(struct work *w, size_t n)
{
    struct value v = v_list(&w->pool);
    *v.l = (struct list){ w->messages.l->v, n, n };
    return v;
}

/* A generation prompt that nobody asked for belongs to no turn. */
static void cut_appended(const struct work *w, struct buf *text)
{
    size_t n;
    const char *appended = template_appends(w->e->tmpl, &n);
    if (n && text->n >= n && memcmp(text->p + text->n - n, appended, n) == 0) text->n -= n;
}

static int render(struct work *w, struct value messages, bool prompt, struct rendered *out, struct error *err)
{
    int rc = template_render(w->e->tmpl, messages, w->tools, prompt, v_undefined(), out, err);
    if (rc == OK && !prompt) cut_appended(w, &out->text);
    return rc;
}

/* Bytes are compared, characters are meant: an end inside a character moves to its start. */
static size_t whole_character(const struct buf *b, size_t at)
{
    while (at > 0 && at < b->n && (b->p[at] & 0xC0) == 0x80) at--;
    return at;
}

static size_t common_prefix(const struct buf *a, const struct buf *b)
{
    size_t n = a->n < b->n ? a->n : b->n, i = 0;
    while (i < n && a->p[i] == b->p[i]) i++;
    return whole_character(a, i);
}

static size_t common_suffix(const struct buf *a, const struct buf *b, size_t most)
{
    size_t i = 0;
    while (i < most && a->p[a->n - 1 - i] == b->p[b->n - 1 - i]) i++;
    while (i > 0 && (a->p[a->n - i] & 0xC0) == 0x80) i--;
    return i;
}

static struct value marked_message(struct pool *p, struct value old, bool keep_calls, bool keep_reasoning)
{
    static const char close[] = "</think>";
    struct value m = v_dict(p);
    for (size_t k = 0; k < old.d->n; k++) {
        struct value key = old.d->k[k], v = old.d->v[k];
        if (!keep_reasoning && (value_is_str(key, "reasoning_content") || value_is_str(key, "thinking") || value_is_str(key, "reasoning"))) continue;
        if (value_is_str(key, "tool_calls") && !keep_calls) continue;
        if (value_is_str(key, "content")) {
            const char *at = NULL;
            if (keep_reasoning && v.type == V_STR)              /* reasoning may stand in the content, up to its closing mark */
                for (const char *s = v.s.p, *hit; (hit = memmem(s, v.s.n - (size_t)(s - v.s.p), close, sizeof close - 1)) != NULL; s = at) at = hit + sizeof close - 1;
            size_t head = at ? (size_t)(at - v.s.p) : 0;
            char *text = pool_alloc(p, head + sizeof MARK);
            if (head) memcpy(text, v.s.p, head);
            memcpy(text + head, MARK, sizeof MARK - 1);
            v = v_str(text, head + sizeof MARK - 1);
        }
        if (value_is_str(key, "tool_calls") && v.type == V_LIST) {
            struct value calls = v_list(p);
            for (size_t c = 0; c < v.l->n; c++) {
                struct value call = v_dict(p), f = v_dict(p);
                if (v.l->v[c].type == V_DICT)
                    for (size_t j = 0; j < v.l->v[c].d->n; j++) dict_set(p, call.d, v.l->v[c].d->k[j], v.l->v[c].d->v[j]);
                dict_set(p, f.d, v_cstr("name"), v_cstr(MARK));
                dict_set(p, f.d, v_cstr("arguments"), v_cstr(MARK));
                dict_set(p, call.d, v_cstr("function"), f);
                list_add(p, calls.l, call);
            }
            v = calls;
        }
        dict_set(p, m.d, key, v);
    }
    if (!dict_find(m.d, "content")) dict_set(p, m.d, v_cstr("content"), v_cstr(MARK));
    return m;
}

/* The first n messages with what the model wrote in turn i (in every turn: i is n) replaced by MARK. Its tool calls go too; keep_calls:
 * they stay, with their names and arguments marked, for templates that insist on the order of roles. With all turns marked, reasoning stays. */
static struct value marked(struct work *w, size_t n, size_t i, bool keep_calls)
{
    struct value all = v_list(&w->pool);
    for (size_t k = 0; k < n; k++) {
        struct value m = w->messages.l->v[k];
        bool here = k == i || (i == n && value_is_str(value_get(m, "role"), "assistant"));
        list_add(&w->pool, all.l, here ? marked_message(&w->pool, m, keep_calls, i == n) : m);
    }
    return all;
}

/* The header the model is given is not its own words: where, between `before` and `start`, the longest part of the generation prompt stands,
 * it is followed as far as it goes. */
static size_t behind_prompt(const struct buf *whole, size_t before, size_t start, const char *prompt, size_t n)
{
    for (size_t len = n; len > 0; len--) {
        const char *last = NULL, *s = whole->p + before, *stop = whole->p + start;
        for (const char *hit; s < stop && (hit = memmem(s, (size_t)(stop - s), prompt, len)) != NULL; s = hit + 1) last = hit;
        if (last == NULL) continue;
        size_t at = (size_t)(last - whole->p), same = 0;
        while (same < n && at + same < whole->n && whole->p[at + same] == prompt[same]) same++;
        return whole_character(whole, at + same);
    }
    return start;
}

static size_t along(const struct buf *whole, size_t at, const char *tail, size_t n)     /* behind what of tail stands at `at` */
{
    while (n > 0 && at < whole->n && *tail == whole->p[at]) { tail++; n--; at++; }
    return whole_character(whole, at);
}

static const char *last_mark(const struct buf *b)               /* behind it; NULL if there is none */
{
    const char *behind = NULL, *s = b->p, *stop = s + b->n;
    for (const char *hit; s < stop && (hit = memmem(s, (size_t)(stop - s), MARK, strlen(MARK))) != NULL; s = behind) behind = hit + strlen(MARK);
    return behind;
}

/* Bytes [from,to) of the whole text that are turn i. before: nothing of an earlier turn is taken. */
static int find_turn(struct work *w, size_t i, size_t before, size_t *from, size_t *to, struct error *err)
{
    const struct buf *whole = &w->whole.text;
    *from = *to = 0;
    struct error quiet = { 0 };
    bool have_from = false, have_to = false;
    size_t n = w->messages.l->n;
    if (render(w, head_of(w, i), true, &w->part, &quiet) == OK && w->part.text.n <= whole->n
        && memcmp(whole->p, w->part.text.p, w->part.text.n) == 0) { *from = w->part.text.n; have_from = true; }
    struct buf prompt = w->part.text;                           /* kept for its tail, the generation prompt */
    w->part.text = (struct buf){ 0 };
    if (i + 1 == n) { *to = whole->n; have_to = true; }
    else if (render(w, head_of(w, i + 1), false, &w->part, &quiet) == OK && w->part.text.n <= whole->n
             && memcmp(whole->p, w->part.text.p, w->part.text.n) == 0) { *to = w->part.text.n; have_to = true; }
    int rc = OK;
    if (!have_from || !have_to || *from < before || *from > *to) {
        bool keep = false;
        rc = render(w, marked(w, n, i, false), false, &w->other, &quiet);
        if (rc != OK) rc = render(w, marked(w, n, i, keep = true), false, &w->other, err);
        if (rc == OK) {
            size_t start = common_prefix(whole, &w->other.text), most = whole->n - start;
            if (w->other.text.n - start < most) most = w->other.text.n - start;
            size_t end = whole->n - common_suffix(whole, &w->other.text, most);
            if (!have_from || *from < before) {
                *from = start;
                struct error q2 = { 0 };
                struct rendered bare = { 0 };
                if (render(w, head_of(w, i), false, &bare, &q2) == OK && bare.text.n < prompt.n && memcmp(bare.text.p, prompt.p, bare.text.n) == 0) {
                    *from = behind_prompt(whole, before, start, prompt.p + bare.text.n, prompt.n - bare.text.n);
                }
                rendered_release(&bare);
            }
            if (!have_to) {
                /* the end-of-turn mark is what stands after the words when the turn is the last one */
                *to = end;
                struct error q2 = { 0 };
                if (render(w, marked(w, i + 1, i, keep), false, &w->other, &q2) == OK) {
                    const char *tail = last_mark(&w->other.text);
                    if (tail) *to = along(whole, end, tail, (size_t)(w->other.text.p + w->other.text.n - tail));
                }
            }
            if (*from < before) *from = before;
            if (*to < *from) *to = *from;
        } else (void)error_prefix(err, "cannot tell where message %zu stands in the rendered conversation", i);
    }
    buf_release(&prompt);
    return rc;
}

struct turn { size_t message, from, to; };

/* All turns from three or four renderings, whatever their number: the conversation with every turn marked gives the text between the turns,
 * and the whole text is walked along it. False where that does not fit exactly; then each turn is looked for by itself. */
static bool find_all(struct work *w, struct turn *turns, size_t n_turns)
{
    const struct buf *whole = &w->whole.text;
    struct error quiet = { 0 };
    struct rendered skeleton = { 0 };
    size_t n = w->messages.l->n, last = turns[n_turns - 1].message, pos = 0, before = 0, prompt_n = 0, tail_n = 0;
    char *prompt = NULL, *tail = NULL;
    bool fits = false;
    if (render(w, head_of(w, last), true, &w->part, &quiet) != OK || render(w, head_of(w, last), false, &w->other, &quiet) != OK) goto out;
    if (w->other.text.n >= w->part.text.n || memcmp(w->other.text.p, w->part.text.p, w->other.text.n) != 0) goto out;
    prompt_n = w->part.text.n - w->other.text.n;
    prompt = xstrndup(w->part.text.p + w->other.text.n, prompt_n);
    if (render(w, marked(w, last + 1, last, false), false, &w->other, &quiet) != OK) goto out;
    const char *behind = last_mark(&w->other.text);
    if (behind == NULL) goto out;
    tail_n = (size_t)(w->other.text.p + w->other.text.n - behind);
    tail = xstrndup(behind, tail_n);
    if (render(w, marked(w, n, n, false), false, &skeleton, &quiet) != OK) goto out;
    const char *s = skeleton.text.p, *end = s + skeleton.text.n;
    for (size_t i = 0; i <= n_turns; i++) {                     /* s: the stretch before turn i; the last one is before the end */
        const char *mark = memmem(s, (size_t)(end - s), MARK, strlen(MARK));
        size_t stretch = (size_t)((mark ? mark : end) - s);
        if ((mark == NULL) != (i == n_turns) || (i > 0 && i < n_turns && stretch < tail_n + 1)) goto out;
        size_t at = pos;
        if (i == n_turns) {
            if (whole->n < stretch || whole->n - stretch < pos) goto out;
            at = whole->n - stretch;
        } else if (i > 0) {
            const char *hit = memmem(whole->p + pos, whole->n - pos, s, stretch);
            if (hit == NULL) goto out;
            at = (size_t)(hit - whole->p);
        }
        if (whole->n - at < stretch || memcmp(whole->p + at, s, stretch) != 0) goto out;
        if (i > 0) {
            struct turn *t = &turns[i - 1];
            t->to = t->message + 1 == n ? whole->n : along(whole, at, tail, tail_n);
            if (t->to < t->from) goto out;
            before = t->to;
        }
        pos = at + stretch;
        if (i < n_turns) turns[i].from = behind_prompt(whole, before, pos, prompt, prompt_n);
        s = mark ? mark + strlen(MARK) : end;
    }
    fits = true;
out:
    free(prompt);
    free(tail);
    rendered_release(&skeleton);
    return fits;
}

static float weight_of(const struct encoder *e, struct value m, bool last_round)
{
    struct value loss = value_get(m, "loss");
    if (loss.type == V_FLOAT) return (float)loss.f;
    return e->loss_scale == LOSS_LAST_ROUND && !last_round ? 0.0f : 1.0f;
}

/* An empty "<think>\n\n</think>\n\n" at the start of a turn; its bytes. */
static size_t empty_think(const char *s, size_t n)
{
    static const char open[] = "<think>", close[] = "</think>";
    size_t i = sizeof open - 1;
    if (n < i || memcmp(s, open, i) != 0) return 0;
    while (i < n && strchr(" \t\r\n", s[i]) && s[i]) i++;
    if (n - i < sizeof close - 1 || memcmp(s + i, close, sizeof close - 1) != 0) return 0;
    i += sizeof close - 1;
    while (i < n && strchr(" \t\r\n", s[i]) && s[i]) i++;
    return i;
}

static int train_bytes(struct places *p, struct encoded *out, const struct encoder *e, size_t from, size_t to, float weight, struct error *err)
{
    int64_t a, b;
    if (e->loss_scale == LOSS_IGNORE_EMPTY_THINK) from += empty_think(p->text + from, to - from);
    if (from >= to || weight == 0.0f) return OK;
    int rc = token_at(p, from, &a, err);
    if (rc != OK) return rc;
    if (to == p->len) b = p->ids->n;
    else if ((rc = token_at(p, to, &b, err)) != OK) return rc;
    add_span(out, a, b, weight);
    return OK;
}

static int encode_conversation(const struct encoder *e, const struct sample *s, struct encoded *out, struct error *err)
{
    struct work w = { .e = e, .messages = s->messages, .tools = s->tools };
    struct places p = { .e = e };
    size_t n = s->messages.l->n, last_user = 0, before = 0;
    int rc = template_render(e->tmpl, s->messages, s->tools, false, v_undefined(), &w.whole, err);
    if (rc == OK) rc = tokenizer_encode(e->tok, w.whole.text.p, w.whole.text.n, false, &out->ids, err);
    if (rc == OK && out->ids.n > INT32_MAX) rc = error_set(err, E_LIMIT, "conversation of %lld tokens", (long long)out->ids.n);
    if (rc != OK) goto out;
    p.text = w.whole.text.p;
    p.len = w.whole.text.n;
    p.ids = &out->ids;
    cut_appended(&w, &w.whole.text);
    if (e->loss_scale == LOSS_ALL) { add_span(out, 0, out->ids.n, 1.0f); goto out; }
    for (size_t i = 0; i < n; i++)
        if (value_is_str(value_get(s->messages.l->v[i], "role"), "user")) last_user = i;
    size_t turns = 0, turn = 0;
    for (size_t i = 0; i < n; i++) turns += value_is_str(value_get(s->messages.l->v[i], "role"), "assistant");
    struct turn *found = NULL;
    if (turns > FEW_TURNS && !template_marks_generation(e->tmpl)) {
        found = pool_alloc(&w.pool, turns * sizeof *found);
        for (size_t i = 0, k = 0; i < n; i++)
            if (value_is_str(value_get(s->messages.l->v[i], "role"), "assistant")) found[k++].message = i;
        if (!find_all(&w, found, turns)) found = NULL;
        if (!found && turns > MANY_TURNS) {
            rc = error_set(err, E_LIMIT, "conversation of %zu assistant turns, which this chat template renders so that they cannot be told apart at once; at most %d then", turns, MANY_TURNS);
            goto out;
        }
    }
    bool marks = template_marks_generation(e->tmpl) && w.whole.n_generated == turns;       /* the template says it itself */
    for (size_t i = 0; i < n && rc == OK; i++) {
        struct value m = s->messages.l->v[i];
        if (!value_is_str(value_get(m, "role"), "assistant")) continue;
        size_t from, to;
        float weight = weight_of(e, m, i > last_user);
        if (marks) { from = w.whole.generated[turn].from; to = w.whole.generated[turn].to; }
        else if (found) { from = found[turn].from; to = found[turn].to; }
        else if (weight == 0.0f) { turn++; continue; }
        else if ((rc = find_turn(&w, i, before, &from, &to, err)) != OK) break;
        turn++;
        before = to;
        rc = train_bytes(&p, out, e, from, to, weight, err);
    }
out:
    ids_release(&p.part);
    rendered_release(&w.whole);
    rendered_release(&w.part);
    rendered_release(&w.other);
    pool_release(&w.pool);
    return rc;
}

int encode_sample(const struct encoder *e, const struct sample *s, struct encoded *out, struct error *err)
{
    out->ids.n = 0;
    out->n_spans = 0;
    if (!s->is_text) {
        if (e->tmpl == NULL) return error_set(err, E_INVALID, "template none: conversations need a chat template; plain text does not");
        return encode_conversation(e, s, out, err);
    }
    int rc = tokenizer_encode(e->tok, s->text.s.p, s->text.s.n, true, &out->ids, err);
    if (rc != OK) return rc;
    int32_t eos = tokenizer_eos(e->tok);
    if (eos >= 0 && (out->ids.n == 0 || out->ids.v[out->ids.n - 1] != eos)) {   /* a document ends; the model should know */
        if (out->ids.n == out->ids.cap) {
            out->ids.cap = out->ids.cap ? out->ids.cap * 2 : 16;
            out->ids.v = xrealloc(out->ids.v, (size_t)out->ids.cap * sizeof *out->ids.v);
        }
        out->ids.v[out->ids.n++] = eos;
    }
    if (out->ids.n > INT32_MAX) return error_set(err, E_LIMIT, "text of %lld tokens", (long long)out->ids.n);
    add_span(out, 0, out->ids.n, 1.0f);
    return OK;
}
