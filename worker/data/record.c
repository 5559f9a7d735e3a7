/* record.c - one record in any of the shapes people use, into one sample (dataset.h).
 *
 *   messages                        OpenAI / ms-swift / typed parts        [{role, content, …}]
 *   conversations                   ShareGPT                               [{from, value}], human gpt system function_call observation
 *   conversation                    ms-swift's pairs                       [{human, assistant}], system
 *   instruction, input, output      alpaca                                 history, system
 *   query, response                 ms-swift                               history, system; response alone is plain text
 *   text                            pre-training
 * Roles get one spelling; a function_call turn becomes tool_calls as OpenAI has them, with arguments as an object, which is what
 * chat templates expect. Images, audio and video are refused by name: this trains on text. */
#include "worker/data/dataset.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

static const struct json_limits inner_limits = { 32u << 20, 200, 4000000 };

static const struct { const char *theirs, *ours; } roles[] = {
    { "human", "user" }, { "user", "user" }, { "gpt", "assistant" }, { "assistant", "assistant" }, { "bot", "assistant" },
    { "model", "assistant" }, { "chatgpt", "assistant" }, { "system", "system" }, { "function_call", "tool_call" }, { "tool_call", "tool_call" },
    { "observation", "tool" }, { "tool", "tool" }, { "tool_response", "tool" }, { "function_response", "tool" }, { "function", "tool" },
};
static const char *const media[] = { "images", "image", "videos", "video", "audios", "audio", "objects", "bbox" };
static const char *const media_parts[] = { "image", "image_url", "input_image", "video", "video_url", "audio", "audio_url", "input_audio" };
/* ms-swift's other names for the two columns, tried in this order. */
static const char *const query_names[] = { "query", "prompt", "instruction", "question", "problem", "input" };
static const char *const response_names[] = { "response", "answer", "output", "target", "targets", "answers", "solution", "completion", "content", "text" };
/* What a record may have beside them. */
static const char *const other_names[] = { "messages", "conversations", "conversation", "history", "system", "system_prompt", "tools" };
#define MEMBERS_MAX 256         /* of one message or tool call: they are looked up one after another */
#define COUNT(a) (sizeof (a) / sizeof (a)[0])

static bool given(struct value v) { return v.type != V_UNDEFINED && v.type != V_NONE; }
static bool filled(struct value v)
{
    return given(v) && !(v.type == V_STR && v.s.n == 0) && !(v.type == V_LIST && v.l->n == 0) && !(v.type == V_DICT && v.d->n == 0);
}

static struct value message(struct pool *pool, const char *role, struct value content)
{
    struct value m = v_dict(pool);
    dict_set(pool, m.d, v_cstr("role"), v_cstr(role));
    dict_set(pool, m.d, v_cstr("content"), content);
    return m;
}

static int want_str(struct value v, const char *what, struct error *err)
{
    return v.type == V_STR ? OK : error_set(err, E_INVALID, "%s: expected a string, found %s", what, value_kind(v));
}

static int refuse_media(const char *what, struct error *err)
{
    return error_set(err, E_UNSUPPORTED, "%s: multimodal data (images, audio, video) is not supported; this trains on text only", what);
}

static int check_text(struct value v, struct error *err)        /* ms-swift's inline form of an image */
{
    static const struct { const char *open, *close; } tags[] = { { "<img>", "</img>" }, { "<audio>", "</audio>" }, { "<video>", "</video>" } };
    for (size_t i = 0; i < COUNT(tags); i++) {
        const char *at = memmem(v.s.p, v.s.n, tags[i].open, strlen(tags[i].open));
        if (at == NULL) continue;
        const char *in = at + strlen(tags[i].open);
        size_t left = v.s.n - (size_t)(in - v.s.p);
        const char *end = memmem(in, left, tags[i].close, strlen(tags[i].close));
        if (end && (memmem(in, (size_t)(end - in), "://", 3) || *in == '/')) return refuse_media(tags[i].open, err);
    }
    return OK;
}

/* {"name", "arguments"} or {"type":"function","function":{…}} or JSON text of one, or a list of them -> tool_calls. */
static int add_calls(struct pool *pool, struct list *calls, struct value v, int depth, struct error *err)
{
    if (v.type == V_STR && depth == 0) {
        struct value parsed;
        int rc = value_parse(&parsed, pool, v.s.p, v.s.n, &inner_limits, err);
        if (rc != OK) {
            if (err) (void)error_set(err, E_INVALID, "tool call is not valid JSON: %.200s", err->text);
            return E_INVALID;
        }
        return add_calls(pool, calls, parsed, 1, err);
    }
    if (v.type == V_LIST && depth < 2) {
        for (size_t i = 0; i < v.l->n; i++) {
            int rc = add_calls(pool, calls, v.l->v[i], 2, err);
            if (rc != OK) return rc;
        }
        return OK;
    }
    if (v.type != V_DICT) return error_set(err, E_INVALID, "tool call: expected an object with name and arguments, found %s", value_kind(v));
    if (v.d->n > MEMBERS_MAX) return error_set(err, E_LIMIT, "tool call has %zu members, at most %d are taken", v.d->n, MEMBERS_MAX);
    struct value f = value_get(v, "function");
    bool wrapped = f.type == V_DICT;
    if (!wrapped) f = v;
    if (value_get(f, "name").type != V_STR) return error_set(err, E_INVALID, "tool call has no name");
    struct value call = v_dict(pool), function = v_dict(pool), arguments = value_get(f, "arguments");
    if (arguments.type == V_UNDEFINED) arguments = value_get(f, "parameters");
    if (arguments.type == V_STR) {                              /* OpenAI sends JSON text; templates want the object */
        struct value parsed;
        struct error quiet = { 0 };
        if (value_parse(&parsed, pool, arguments.s.p, arguments.s.n, &inner_limits, &quiet) == OK && parsed.type == V_DICT) arguments = parsed;
    }
    if (wrapped)
        for (size_t i = 0; i < v.d->n; i++)
            if (!value_is_str(v.d->k[i], "function") && !value_is_str(v.d->k[i], "type")) dict_set(pool, call.d, v.d->k[i], v.d->v[i]);
    dict_set(pool, call.d, v_cstr("type"), v_cstr("function"));
    dict_set(pool, function.d, v_cstr("name"), value_get(f, "name"));
    dict_set(pool, function.d, v_cstr("arguments"), given(arguments) ? arguments : v_dict(pool));
    dict_set(pool, call.d, v_cstr("function"), function);
    list_add(pool, calls, call);
    return OK;
}

/* A content list of typed parts: text joins, reasoning and tool calls become members of the message. */
static int add_parts(struct pool *pool, struct value m, struct value parts, struct value *calls, struct error *err)
{
    struct buf text = { 0 }, reasoning = { 0 };
    bool has_reasoning = false;
    int rc = OK;
    for (size_t i = 0; i < parts.l->n && rc == OK; i++) {
        struct value part = parts.l->v[i], type = value_get(part, "type"), v = value_get(part, "value");
        if (part.type == V_STR) { buf_add(&text, part.s.p, part.s.n); continue; }
        if (type.type != V_STR) { rc = error_set(err, E_INVALID, "content[%zu]: expected a part with a type", i); break; }
        for (size_t k = 0; k < COUNT(media_parts) && rc == OK; k++)
            if (value_is_str(type, media_parts[k])) rc = refuse_media(media_parts[k], err);
        if (rc != OK) break;
        if (!given(v)) v = value_get(part, type.s.p);           /* {"type":"text","text":…} */
        if (value_is_str(type, "text")) {
            if ((rc = want_str(v, "content text", err)) == OK) buf_add(&text, v.s.p, v.s.n);
        } else if (value_is_str(type, "reasoning") || value_is_str(type, "thinking")) {
            if ((rc = want_str(v, "content reasoning", err)) == OK) { buf_add(&reasoning, v.s.p, v.s.n); has_reasoning = true; }
        } else if (value_is_str(type, "tool_call")) {
            if (calls->type != V_LIST) *calls = v_list(pool);
            rc = add_calls(pool, calls->l, v, 0, err);
        } else rc = error_set(err, E_UNSUPPORTED, "content[%zu]: part of type \"%.60s\" is not known; known are text, reasoning, tool_call", i, type.s.p);
    }
    if (rc == OK) {
        dict_set(pool, m.d, v_cstr("content"), v_str(pool_strndup(pool, text.p, text.n), text.n));
        if (has_reasoning) dict_set(pool, m.d, v_cstr("reasoning_content"), v_str(pool_strndup(pool, reasoning.p, reasoning.n), reasoning.n));
    }
    buf_release(&text);
    buf_release(&reasoning);
    return rc;
}

static int one_message(struct pool *pool, struct list *out, struct value in, struct error *err)
{
    if (in.type != V_DICT) return error_set(err, E_INVALID, "expected an object, found %s", value_kind(in));
    if (in.d->n > MEMBERS_MAX) return error_set(err, E_LIMIT, "%zu members, a message may have %d", in.d->n, MEMBERS_MAX);
    struct value role = value_get(in, "role"), content = value_get(in, "content"), calls = v_undefined();
    if (!given(role)) role = value_get(in, "from");
    if (content.type == V_UNDEFINED) content = value_get(in, "value");
    if (role.type != V_STR) return error_set(err, E_INVALID, "role: expected a string, found %s", value_kind(role));
    const char *ours = NULL;
    for (size_t i = 0; i < COUNT(roles) && !ours; i++)
        if (role.s.n == strlen(roles[i].theirs) && strncasecmp(role.s.p, roles[i].theirs, role.s.n) == 0) ours = roles[i].ours;
    if (ours == NULL) ours = role.s.p;                          /* the template decides about roles it may know */
    bool call_turn = strcmp(ours, "tool_call") == 0;
    struct value m = message(pool, call_turn ? "assistant" : ours, content.type == V_UNDEFINED ? v_none() : content);
    int rc = OK;
    if (call_turn) {
        calls = v_list(pool);
        rc = add_calls(pool, calls.l, content, 0, err);
        if (rc != OK) return rc;
        struct value *last = out->n ? &out->v[out->n - 1] : NULL;       /* parallel calls come as neighbouring turns: one message */
        if (last && value_is_str(value_get(*last, "role"), "assistant") && value_get(*last, "tool_calls").type == V_LIST
            && !given(value_get(*last, "loss")) && !given(value_get(in, "loss"))) {
            for (size_t i = 0; i < calls.l->n; i++) list_add(pool, value_get(*last, "tool_calls").l, calls.l->v[i]);
            return OK;
        }
        dict_set(pool, m.d, v_cstr("content"), v_cstr(""));
    } else if (content.type == V_LIST) {
        rc = add_parts(pool, m, content, &calls, err);
    } else if (content.type == V_STR) {
        rc = check_text(content, err);
    } else if (strcmp(ours, "tool") == 0 && content.type == V_DICT) {
        struct buf b = { 0 };
        const char *bad;
        if (value_dumps(&b, content, -1, false, &bad)) dict_set(pool, m.d, v_cstr("content"), v_str(pool_strndup(pool, b.p, b.n), b.n));
        buf_release(&b);
    } else if (given(content)) {
        rc = want_str(content, "content", err);
    }
    if (rc != OK) return rc;
    for (size_t i = 0; i < in.d->n; i++) {
        struct value k = in.d->k[i], v = in.d->v[i];
        if (value_is_str(k, "role") || value_is_str(k, "from") || value_is_str(k, "content") || value_is_str(k, "value") || v.type == V_UNDEFINED) continue;
        if (value_is_str(k, "tool_calls")) {
            if (!filled(v)) continue;
            if (v.type != V_LIST) return error_set(err, E_INVALID, "tool_calls: expected an array, found %s", value_kind(v));
            if (calls.type != V_LIST) calls = v_list(pool);
            rc = add_calls(pool, calls.l, v, 1, err);
            if (rc != OK) return rc;
        } else if (value_is_str(k, "function_call")) {          /* OpenAI's older form of one call */
            if (!filled(v)) continue;
            if (calls.type != V_LIST) calls = v_list(pool);
            rc = add_calls(pool, calls.l, v, 1, err);
            if (rc != OK) return rc;
        } else if ((value_is_str(k, "thinking") || value_is_str(k, "reasoning")) && v.type == V_STR) {
            if (!given(value_get(in, "reasoning_content"))) dict_set(pool, m.d, v_cstr("reasoning_content"), v);    /* transformers' alias */
            dict_set(pool, m.d, k, v);
        } else if (value_is_str(k, "loss") || value_is_str(k, "loss_weight") || value_is_str(k, "loss_scale")) {
            if (!given(v)) continue;
            if (v.type == V_INT) v = (struct value){ .type = V_FLOAT, .f = (double)v.i };
            if (v.type == V_BOOL) v = (struct value){ .type = V_FLOAT, .f = v.tag };
            if (v.type != V_FLOAT || !(v.f >= 0.0 && v.f <= 1e6))
                return error_set(err, E_INVALID, "%s: expected true, false or a weight of at least 0, found %s", k.s.p, value_kind(v));
            dict_set(pool, m.d, v_cstr("loss"), v);
        } else dict_set(pool, m.d, k, v);
    }
    if (calls.type == V_LIST && calls.l->n) {
        if (!given(value_get(m, "content"))) dict_set(pool, m.d, v_cstr("content"), v_cstr(""));
        dict_set(pool, m.d, v_cstr("tool_calls"), calls);
    } else if (!given(value_get(m, "content")))
        return error_set(err, E_INVALID, "content: expected a string, found %s", value_kind(value_get(m, "content")));
    list_add(pool, out, m);
    return OK;
}

static int add_messages(struct pool *pool, struct list *out, struct value in, const char *name, struct error *err)
{
    if (in.type == V_STR) {                                     /* CSV keeps lists as JSON text */
        int rc = value_parse(&in, pool, in.s.p, in.s.n, &inner_limits, err);
        if (rc != OK) return error_prefix(err, "%s", name);
    }
    if (in.type != V_LIST) return error_set(err, E_INVALID, "%s: expected an array of messages, found %s", name, value_kind(in));
    for (size_t i = 0; i < in.l->n; i++) {
        int rc = one_message(pool, out, in.l->v[i], err);
        if (rc != OK) return error_prefix(err, "%s[%zu]", name, i);
    }
    return out->n ? OK : error_set(err, E_INVALID, "%s: no messages", name);
}

static int add_pairs(struct pool *pool, struct list *out, struct value in, struct error *err)  /* ms-swift's "conversation" */
{
    if (in.type != V_LIST) return error_set(err, E_INVALID, "conversation: expected an array, found %s", value_kind(in));
    if (in.l->n && (given(value_get(in.l->v[0], "role")) || given(value_get(in.l->v[0], "from")))) return add_messages(pool, out, in, "conversation", err);
    for (size_t i = 0; i < in.l->n; i++) {
        struct value pair = in.l->v[i], human = value_get(pair, "human"), bot = value_get(pair, "assistant");
        if (!given(human)) human = value_get(pair, "user");
        if (!given(bot)) bot = value_get(pair, "gpt");
        int rc = want_str(human, "human", err);
        if (rc == OK) rc = want_str(bot, "assistant", err);
        if (rc == OK) rc = check_text(human, err);
        if (rc != OK) return error_prefix(err, "conversation[%zu]", i);
        list_add(pool, out, message(pool, "user", human));
        list_add(pool, out, message(pool, "assistant", bot));
    }
    return out->n ? OK : error_set(err, E_INVALID, "conversation: no turns");
}

static int add_history(struct pool *pool, struct list *out, struct value history, struct error *err)
{
    if (history.type == V_STR && history.s.n) {
        int rc = value_parse(&history, pool, history.s.p, history.s.n, &inner_limits, err);
        if (rc != OK) return error_prefix(err, "history");
    }
    if (!filled(history)) return OK;
    if (history.type != V_LIST) return error_set(err, E_INVALID, "history: expected an array of [query, response], found %s", value_kind(history));
    for (size_t i = 0; i < history.l->n; i++) {
        struct value pair = history.l->v[i];
        if (pair.type != V_LIST || pair.l->n != 2 || pair.l->v[0].type != V_STR || pair.l->v[1].type != V_STR)
            return error_set(err, E_INVALID, "history[%zu]: expected [query, response], two strings", i);
        list_add(pool, out, message(pool, "user", pair.l->v[0]));
        list_add(pool, out, message(pool, "assistant", pair.l->v[1]));
    }
    return OK;
}

static int find_tools(struct sample *out, struct pool *pool, struct value tools, struct error *err)
{
    if (!filled(tools)) return OK;
    if (tools.type == V_STR) {
        int rc = value_parse(&tools, pool, tools.s.p, tools.s.n, &inner_limits, err);
        if (rc != OK) return error_prefix(err, "tools");
        if (!filled(tools)) return OK;
    }
    if (tools.type == V_DICT) { struct value l = v_list(pool); list_add(pool, l.l, tools); tools = l; }
    if (tools.type != V_LIST) return error_set(err, E_INVALID, "tools: expected an array or JSON text of one, found %s", value_kind(tools));
    out->tools = v_list(pool);
    for (size_t i = 0; i < tools.l->n; i++) {
        struct value t = tools.l->v[i];
        if (t.type == V_STR && value_parse(&t, pool, t.s.p, t.s.n, &inner_limits, err) != OK) return error_prefix(err, "tools[%zu]", i);
        if (t.type != V_DICT) return error_set(err, E_INVALID, "tools[%zu]: expected an object, found %s", i, value_kind(t));
        if (value_get(t, "function").type != V_DICT && given(value_get(t, "name"))) {       /* unwrapped: templates want OpenAI's form */
            struct value wrapped = v_dict(pool);
            dict_set(pool, wrapped.d, v_cstr("type"), v_cstr("function"));
            dict_set(pool, wrapped.d, v_cstr("function"), t);
            t = wrapped;
        }
        list_add(pool, out->tools.l, t);
    }
    return OK;
}

static struct value first_of(struct value record, const char *const *names, size_t n, const char **which)
{
    for (size_t i = 0; i < n; i++) {
        struct value v = value_get(record, names[i]);
        if (given(v)) { *which = names[i]; return v; }
    }
    *which = names[0];
    return v_undefined();
}

static struct value joined(struct pool *pool, struct value a, struct value b)
{
    size_t n = a.s.n + 1 + b.s.n;
    char *text = pool_alloc(pool, n + 1);
    memcpy(text, a.s.p, a.s.n);
    text[a.s.n] = '\n';
    memcpy(text + a.s.n + 1, b.s.p, b.s.n);
    return v_str(text, n);
}

static int text_sample(struct sample *out, struct value text, const char *name, struct error *err)
{
    int rc = want_str(text, name, err);
    if (rc == OK) rc = check_text(text, err);
    out->is_text = true;
    out->text = text;
    return rc;
}

/* Every record without a list of messages: alpaca, query/response, text. */
static int columns_sample(struct sample *out, struct pool *pool, struct value r, struct error *err)
{
    const char *qn, *an;
    struct value input = value_get(r, "input"), answer = first_of(r, response_names, COUNT(response_names), &an), query;
    query = first_of(r, query_names, COUNT(query_names), &qn);
    if (!given(query) && given(answer)) return text_sample(out, answer, an, err);
    if (!given(answer)) {
        struct buf keys = { 0 };
        for (size_t i = 0; i < r.d->n && i < 12; i++) {
            if (i) buf_str(&keys, ", ");
            buf_add(&keys, r.d->k[i].s.p, r.d->k[i].s.n < 40 ? r.d->k[i].s.n : 40);
        }
        int bad = given(query) ? error_set(err, E_INVALID, "\"%s\" has no answer beside it; expected one of response, output, answer", qn)
            : error_set(err, E_INVALID, "no known columns; expected messages, conversations, instruction/output, query/response or text, found {%s}; "
                        "\"columns\" renames others", keys.p ? keys.p : "");
        buf_release(&keys);
        return bad;
    }
    if (strcmp(qn, "instruction") == 0 && filled(input)) {      /* alpaca: the input under the instruction */
        int bad = want_str(query, qn, err);
        if (bad == OK) bad = want_str(input, "input", err);
        if (bad != OK) return bad;
        query = query.s.n ? joined(pool, query, input) : input;
    }
    int rc = want_str(query, qn, err);
    if (rc == OK) rc = want_str(answer, an, err);
    if (rc == OK) rc = check_text(query, err);
    if (rc == OK) rc = add_history(pool, out->messages.l, value_get(r, "history"), err);
    if (rc != OK) return rc;
    list_add(pool, out->messages.l, message(pool, "user", query));
    list_add(pool, out->messages.l, message(pool, "assistant", answer));
    return OK;
}

static bool one_of(const char *name, const char *const *names, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (strcmp(name, names[i]) == 0) return true;
    return false;
}

int record_column(const char *name, struct error *err)
{
    if (one_of(name, query_names, COUNT(query_names)) || one_of(name, response_names, COUNT(response_names)) || one_of(name, other_names, COUNT(other_names))) return OK;
    return error_set(err, E_INVALID, "\"%.100s\" is none of our columns; expected messages, conversations, conversation, query, response, instruction, input, output, history, "
                     "system, tools or text", name);
}

int record_sample(struct sample *out, struct pool *pool, struct value r, const char *system, struct error *err)
{
    struct value v, sys;
    const char *which;
    int rc;
    for (size_t i = 0; i < COUNT(media); i++)
        if (filled(value_get(r, media[i]))) return refuse_media(media[i], err);
    if (given(value_get(r, "rejected_response")) || given(value_get(r, "rejected")) || given(value_get(r, "chosen")))
        return error_set(err, E_UNSUPPORTED, "chosen/rejected: preference data is not supported; this trains on single answers");
    out->is_text = false;
    out->messages = v_list(pool);
    out->tools = v_undefined();
    if (given(v = value_get(r, "messages"))) rc = add_messages(pool, out->messages.l, v, "messages", err);
    else if (given(v = value_get(r, "conversations"))) rc = add_messages(pool, out->messages.l, v, "conversations", err);
    else if (given(v = value_get(r, "conversation"))) rc = add_pairs(pool, out->messages.l, v, err);
    else if (value_get(r, "text").type == V_STR && !given(value_get(r, "output")) && !given(value_get(r, "response"))
             && !given(value_get(r, "query")) && !given(value_get(r, "prompt")) && !given(value_get(r, "question")))
        return text_sample(out, value_get(r, "text"), "text", err);
    else rc = columns_sample(out, pool, r, err);
    if (rc != OK || out->is_text) return rc;
    static const char *const system_names[] = { "system", "system_prompt" };
    sys = first_of(r, system_names, COUNT(system_names), &which);
    if (given(sys) && (rc = want_str(sys, which, err)) != OK) return rc;
    if (!filled(sys) && system) sys = v_cstr(system);
    if (filled(sys) && !value_is_str(value_get(out->messages.l->v[0], "role"), "system")) {
        list_add(pool, out->messages.l, v_none());              /* make room, then shift by one */
        memmove(out->messages.l->v + 1, out->messages.l->v, (out->messages.l->n - 1) * sizeof *out->messages.l->v);
        out->messages.l->v[0] = message(pool, "system", sys);
    }
    return find_tools(out, pool, value_get(r, "tools"), err);
}
