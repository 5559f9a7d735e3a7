/* tokenizer.c - the tokenizer's parts on small inputs whose answers can be read off; hostile files; threads. The expectations were
 * checked against Hugging Face tokenizers 0.22.2 once. */
#include <check.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "api/file.h"
#include "api/json.h"
#include "worker/data/bpe.h"
#include "worker/data/normalizer.h"
#include "worker/data/nul.h"
#include "worker/data/pretokenizer.h"
#include "worker/data/tokenize.h"
#include "worker/data/tokenizer.h"
#include "tests/suite.h"

/* Characters, some words and the two spellings of merges; <unk> is there to be named. */
#define VOCAB "{\"<unk>\":0,\"a\":1,\"b\":2,\"c\":3,\"ab\":4,\"abc\":5,\"\xE2\x96\x81\":6,\"\xE2\x96\x81" "a\":7,\"<0xC3>\":8,\"<0xA9>\":9,\" \":10,\"bc\":11,\"-\":12}"
#define MERGES "[\"a b\",[\"ab\",\"c\"],\"\xE2\x96\x81 a\",\"b c\"]"
#define MODEL(more) "{\"type\":\"BPE\"," more "\"vocab\":" VOCAB ",\"merges\":" MERGES "}"

struct parts { const char *added, *normalizer, *pre, *post, *decoder, *model; };

static char *file_of(struct parts p)
{
    return xasprintf("{\"version\":\"1.0\",\"added_tokens\":%s,\"normalizer\":%s,\"pre_tokenizer\":%s,\"post_processor\":%s,\"decoder\":%s,\"model\":%s}",
                     p.added ? p.added : "[]", p.normalizer ? p.normalizer : "null", p.pre ? p.pre : "null", p.post ? p.post : "null",
                     p.decoder ? p.decoder : "null", p.model ? p.model : MODEL(""));
}

static struct tokenizer *open_parts(struct parts p)
{
    struct error err = { 0 };
    struct tokenizer *t;
    char *text = file_of(p);
    int rc = tokenizer_open_text(&t, text, strlen(text), &err);
    ck_assert_msg(rc == OK, "%s", err.text);
    free(text);
    return t;
}

/* The tokens' spellings with '|' between. */
static char *spell(const struct tokenizer *t, const char *text, bool special)
{
    struct error err = { 0 };
    struct ids ids = { 0 };
    struct bytes out = { 0 };
    int rc = tokenizer_encode(t, text, strlen(text), special, &ids, &err);
    ck_assert_msg(rc == OK, "%s", err.text);
    for (int64_t i = 0; i < ids.n; i++) {
        const char *token = tokenizer_token(t, ids.v[i]);
        if (i) bytes_add_char(&out, '|');
        bytes_add(&out, token, strlen(token));
    }
    bytes_add_char(&out, '\0');
    ids_release(&ids);
    return out.v;
}

static void expect(const struct tokenizer *t, const char *text, const char *want)
{
    char *got = spell(t, text, false);
    ck_assert_str_eq(got, want);
    free(got);
}

START_TEST(merges_and_unknown)
{
    static const struct { const char *more, *text, *want; } cases[] = {
        { "", "abcab", "abc|ab" }, { "", "abXYc", "abc" },                                      /* no unk: unknown characters vanish */
        { "\"unk_token\":\"<unk>\",", "abXYc", "ab|<unk>|<unk>|c" },
        { "\"unk_token\":\"<unk>\",\"fuse_unk\":true,", "abXYc", "ab|<unk>|c" },
        { "\"byte_fallback\":true,", "a\xC3\xA9" "b", "a|<0xC3>|<0xA9>|b" },
        { "\"unk_token\":\"<unk>\",\"byte_fallback\":true,", "a\xC3\xA8" "b", "a|<unk>|b" },    /* <0xA8> is missing: all or nothing */
        { "\"ignore_merges\":true,", "bc", "bc" }, { "", "bcbc", "bc|bc" },
        { "\"dropout\":0.0,", "", "" }, { "\"dropout\":null,", "cc", "c|c" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *model = xasprintf("{\"type\":\"BPE\",%s\"vocab\":%s,\"merges\":%s}", cases[i].more, VOCAB, MERGES);
        struct tokenizer *t = open_parts((struct parts){ .model = model });
        expect(t, cases[i].text, cases[i].want);
        tokenizer_free(t);
        free(model);
    }
}
END_TEST

/* The text-book algorithm: the lowest rank, leftmost first, over and over. */
static size_t merge_plainly(const int32_t rank[8][8], const int32_t made[8][8], int32_t *id, size_t n)
{
    for (;;) {
        size_t best = n;
        for (size_t i = 0; i + 1 < n; i++) {
            if (id[i] > 7 || id[i + 1] > 7 || rank[id[i]][id[i + 1]] < 0) continue;
            if (best == n || rank[id[i]][id[i + 1]] < rank[id[best]][id[best + 1]]) best = i;
        }
        if (best == n) return n;
        id[best] = made[id[best]][id[best + 1]];
        memmove(id + best + 1, id + best + 2, (n - best - 2) * sizeof *id);
        n--;
    }
}

START_TEST(long_words_merge_like_short_ones)    /* scan, heap and parts against the text-book */
{
    static const char *const tokens[] = { "a", "b", "c", "d", "ab", "cd", "abcd", "dd" };
    static const struct { int left, right; } merges[] = { { 0, 1 }, { 3, 3 }, { 2, 3 }, { 4, 5 } };
    int32_t rank[8][8], made[8][8], want[600];
    struct bpe *m = bpe_new();
    struct bpe_space *s = bpe_space_new();
    struct error err = { 0 };
    struct bpe_options o = { 0 };
    uint32_t random = 12345;
    memset(rank, -1, sizeof rank);
    for (int i = 0; i < 8; i++) ck_assert_int_eq(bpe_add_token(m, tokens[i], strlen(tokens[i]), i, &err), OK);
    for (int i = 0; i < 4; i++) {
        const char *l = tokens[merges[i].left], *r = tokens[merges[i].right];
        char *both = xasprintf("%s%s", l, r);
        ck_assert_int_eq(bpe_add_merge(m, l, strlen(l), r, strlen(r), 0, &err), OK);
        rank[merges[i].left][merges[i].right] = i;
        made[merges[i].left][merges[i].right] = bpe_id(m, both, strlen(both));
        free(both);
    }
    ck_assert_int_eq(bpe_ready(m, &o, false, &err), OK);
    for (int round = 0; round < 400; round++) {
        char word[600];
        struct ids got = { 0 };
        size_t n = (size_t)round + 1;
        for (size_t i = 0; i < n; i++) {
            random = random * 1664525u + 1013904223u;
            want[i] = (int32_t)(random >> 24) % (round % 2 ? 2 : 4);
            word[i] = "abcd"[want[i]];
        }
        size_t want_n = merge_plainly(rank, made, want, n);
        ck_assert_int_eq(bpe_encode(m, s, word, n, &got, &err), OK);
        ck_assert_int_eq(got.n, want_n);
        ck_assert_mem_eq(got.v, want, want_n * sizeof *want);
        ids_release(&got);
    }
    bpe_space_free(s);
    bpe_free(m);
}
END_TEST

static int join_word(void *arg, const char *word, size_t len, struct error *err)
{
    struct bytes *out = arg;
    (void)err;
    if (out->n) bytes_add_char(out, '|');
    bytes_add(out, word, len);
    return OK;
}

static char *split(const char *pre, const char *text, bool first)
{
    struct error err = { 0 };
    struct pretokenizer *p;
    struct bytes out = { 0 };
    cJSON *v;
    ck_assert_int_eq(json_parse(&v, pre, strlen(pre), &json_limits_file, &err), OK);
    int rc = pretokenizer_open(&p, v, "pre_tokenizer", &err);
    ck_assert_msg(rc == OK, "%s", err.text);
    struct regex_space *rs = regex_space_new();
    struct pretokenizer_space *ps = pretokenizer_space_new(rs);
    rc = pretokenizer_run(p, ps, text, strlen(text), first, false, join_word, &out, &err);
    ck_assert_msg(rc == OK, "%s", err.text);
    pretokenizer_space_free(ps);
    regex_space_free(rs);
    pretokenizer_free(p);
    cJSON_Delete(v);
    bytes_add_char(&out, '\0');
    return out.v;
}

START_TEST(pre_tokenizers)
{
#define MINUS(behavior, invert) "{\"type\":\"Split\",\"pattern\":{\"String\":\"-\"},\"behavior\":\"" behavior "\",\"invert\":" invert "}"
#define META(scheme, split) "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"prepend_scheme\":\"" scheme "\",\"split\":" split "}"
    static const struct { const char *pre, *text, *want; bool first; } cases[] = {
        { MINUS("Removed", "false"), "a-b--c-", "a|b|c", false }, { MINUS("Isolated", "false"), "a-b--c-", "a|-|b|-|-|c|-", false },
        { MINUS("Contiguous", "false"), "a-b--c-", "a|-|b|--|c|-", false },
        { MINUS("MergedWithPrevious", "false"), "a-b--c-", "a-|b-|-|c-", false }, { MINUS("MergedWithNext", "false"), "a-b--c-", "a|-b|-|-c|-", false },
        { MINUS("Removed", "true"), "a-b--c-", "-|-|-|-", false }, { MINUS("MergedWithNext", "true"), "-a-b", "-|a-|b", false },
        { META("always", "true"), "a b  c", "_a|_b|_|_c", false }, { META("first", "true"), "a b", "_a|_b", true }, { META("first", "true"), "a b", "a|_b", false },
        { META("never", "false"), "a b", "a_b", true }, { META("always", "true"), "_a", "_a", true }, { META("always", "true"), " a", "_a", true },
        { "{\"type\":\"Metaspace\",\"replacement\":\"_\",\"add_prefix_space\":false,\"prepend_scheme\":\"never\"}", "a b", "a|_b", true },
        { "{\"type\":\"Digits\",\"individual_digits\":true}", "a12\xE2\x85\xA7", "a|1|2|\xE2\x85\xA7", false },
        { "{\"type\":\"Digits\",\"individual_digits\":false}", "a12b", "a|12|b", false },
        { "{\"type\":\"Punctuation\",\"behavior\":\"Removed\"}", "a,b!?c$", "a|b|c", false }, { "{\"type\":\"Punctuation\"}", "a\xE3\x80\x82" "b", "a|\xE3\x80\x82|b", false },
        { "{\"type\":\"Whitespace\"}", "ab, c_1", "ab|,|c_1", false }, { "{\"type\":\"WhitespaceSplit\"}", " ab,\xC2\xA0" "c", "ab,|c", false },
        { "{\"type\":\"BertPreTokenizer\"}", "ab, c", "ab|,|c", false }, { "{\"type\":\"CharDelimiterSplit\",\"delimiter\":\"x\"}", "axxb", "a|b", false },
        { "{\"type\":\"ByteLevel\",\"add_prefix_space\":true}", "it's 12", "\xC4\xA0it|'s|\xC4\xA0" "12", false },
        { "{\"type\":\"ByteLevel\",\"add_prefix_space\":false,\"use_regex\":false}", "a b", "a\xC4\xA0" "b", false },
        { "{\"type\":\"Sequence\",\"pretokenizers\":[{\"type\":\"WhitespaceSplit\"},{\"type\":\"Digits\",\"individual_digits\":false},{\"type\":\"ByteLevel\",\"add_prefix_space\":true}]}",
          "a1 b", "\xC4\xA0" "a|\xC4\xA0" "1|\xC4\xA0" "b", false },
        { "{\"type\":\"Sequence\",\"pretokenizers\":[]}", "a b", "a b", false },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *got = split(cases[i].pre, cases[i].text, cases[i].first);
        ck_assert_msg(strcmp(got, cases[i].want) == 0, "%s of \"%s\": want %s, got %s", cases[i].pre, cases[i].text, cases[i].want, got);
        free(got);
    }
}
END_TEST

START_TEST(patterns_mean_what_oniguruma_means)
{
    static const struct { const char *pattern, *text, *want; } cases[] = {     /* pattern as in JSON; matches, '|' between */
        { "^a", "a\\na\\n", "a|a" }, { "a$", "a\\nba", "a|a" }, { "(?m:.)+", "a\\nb", "a\\nb" }, { ".+", "a\\nb", "a|b" },
        { "a{,2}b", "aaab", "aab" }, { "a{2}+", "aaaaa", "aaaa" }, { "\\\\h+", "xfA9g", "fA9" }, { "[a-c&&[^b]]+", "abcca", "a|cca" },
        { "[^a[bc]]+", "abxyc", "xy" }, { "(?i:ss)", "\xC3\x9F sS", "\xC3\x9F|sS" }, { "(?i)'s|b", "'S'\xC5\xBF" "B", "'S|'\xC5\xBF|B" },
        { "a(?i)b|c", "aB ac abc", "aB|ac|ab" }, { "\\\\bb", "ab b", "b" }, { "[[:alpha:]]+", "\xD7\xA9" "a1", "\xD7\xA9" "a" }, { "\\\\p{^L}+", "a12b", "12" },
        { "\\\\s", "a\xE1\xA0\x8E" "b\xE2\x80\xA8", "\xE2\x80\xA8" }, { "[\\\\W]+", "a\xC2\xB2!", "\xC2\xB2!" }, { "\\\\w+", "a\xC2\xB2!", "a\xC2\xB2" },
        { "\\\\x{1F600}+", "\xF0\x9F\x98\x80", "\xF0\x9F\x98\x80" }, { "}|{|]", "a}b{]", "}|{|]" }, { "\\\\Ga", "aaba", "a|a" },
        { "\\\\p{L}+", "\xF0\xB1\x8D\x90" "1", "\xF0\xB1\x8D\x90" },        /* U+31350: Unicode 15 */
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char *pre = xasprintf("{\"type\":\"Split\",\"pattern\":{\"Regex\":\"%s\"},\"behavior\":\"Removed\",\"invert\":true}", cases[i].pattern);
        char *quoted[2] = { xasprintf("\"%s\"", cases[i].text), xasprintf("\"%s\"", cases[i].want) };
        cJSON *text, *want;
        ck_assert_int_eq(json_parse(&text, quoted[0], strlen(quoted[0]), &json_limits_file, NULL), OK);
        ck_assert_int_eq(json_parse(&want, quoted[1], strlen(quoted[1]), &json_limits_file, NULL), OK);
        char *got = split(pre, text->valuestring, false);
        ck_assert_msg(strcmp(got, want->valuestring) == 0, "%s: want %s, got %s", cases[i].pattern, cases[i].want, got);
        free(got);
        free(pre);
        free(quoted[0]);
        free(quoted[1]);
        cJSON_Delete(text);
        cJSON_Delete(want);
    }
}
END_TEST

START_TEST(normalizers)
{
    static const struct { const char *normalizer, *text, *want; } cases[] = {
        { "{\"type\":\"NFC\"}", "e\xCC\x81", "\xC3\xA9" }, { "{\"type\":\"NFD\"}", "\xC3\xA9", "e\xCC\x81" }, { "{\"type\":\"NFKC\"}", "\xEF\xAC\x81\xEF\xBC\xA1", "fiA" },
        { "{\"type\":\"NFKD\"}", "\xE2\x91\xA0", "1" }, { "{\"type\":\"NFKC\"}", "\xE3\x8B\xBF", "\xE3\x8B\xBF" },        /* U+32FF: Unicode 12.1, unknown to it */
        { "{\"type\":\"Lowercase\"}", "A\xC4\xB0\xCE\xA3", "ai\xCC\x87\xCF\x83" }, { "{\"type\":\"Strip\",\"strip_left\":true,\"strip_right\":false}", "\xE3\x80\x80 a ", "a " },
        { "{\"type\":\"ByteLevel\"}", "a \xC3\xA9", "a\xC4\xA0\xC3\x83\xC2\xA9" }, { "{\"type\":\"StripAccents\"}", "e\xCC\x81", "e" }, { "{\"type\":\"Prepend\",\"prepend\":\"_\"}", "a", "_a" }, { "{\"type\":\"Prepend\",\"prepend\":\"_\"}", "", "" },
        { "{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}", "a b c", "a_b_c" },
        { "{\"type\":\"Replace\",\"pattern\":{\"Regex\":\" {2,}\"},\"content\":\" \"}", "a   b c", "a b c" },
        { "{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"Prepend\",\"prepend\":\"_\"},{\"type\":\"Replace\",\"pattern\":{\"String\":\" \"},\"content\":\"_\"}]}", "a b", "_a_b" },
    };
    struct normalizer_space space = { .regex = regex_space_new() };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = { 0 };
        struct normalizer *n;
        cJSON *v;
        const char *out;
        size_t len;
        bool moved;
        ck_assert_int_eq(json_parse(&v, cases[i].normalizer, strlen(cases[i].normalizer), &json_limits_file, &err), OK);
        ck_assert_int_eq(normalizer_open(&n, v, "normalizer", &err), OK);
        ck_assert_int_eq(normalizer_run(n, &space, cases[i].text, strlen(cases[i].text), &out, &len, &moved, &err), OK);
        ck_assert_msg(len == strlen(cases[i].want) && memcmp(out, cases[i].want, len) == 0, "%s: want %s, got %.*s", cases[i].normalizer, cases[i].want, (int)len, out);
        normalizer_free(n);
        cJSON_Delete(v);
    }
    bytes_release(&space.a);
    bytes_release(&space.b);
    regex_space_free(space.regex);
}
END_TEST

#define TOKEN(id, content, flags) "{\"id\":" #id ",\"content\":\"" content "\"," flags "\"special\":true}"

START_TEST(added_tokens)
{
    static const struct { const char *added, *normalizer, *text, *want; } cases[] = {
        { "[" TOKEN(13, "<s>", "") "," TOKEN(14, "<s>>", "") "]", NULL, "a<s>>b<s>", "a|<s>>|b|<s>" },             /* the longest */
        { "[" TOKEN(13, "<m>", "\"lstrip\":true,\"rstrip\":true,") "]", NULL, "a  <m> \xE3\x80\x80" "b", "a|<m>|b" },
        { "[" TOKEN(13, "<m>", "\"lstrip\":true,\"rstrip\":true,") "]", NULL, "a <m> <m> b", "a|<m>|<m>|b" },
        { "[" TOKEN(13, "ab", "\"single_word\":true,") "]", NULL, "ab abc cab-ab", NULL },                         /* id 13 is not the vocabulary's 4 */
        { "[" TOKEN(4, "ab", "\"single_word\":true,") "]", NULL, "ab c-ab", "ab| |c|-|ab" },
        { "[" TOKEN(13, "AB", "\"normalized\":true,") "]", "{\"type\":\"Lowercase\"}", "cABc", "c|AB|c" },         /* searched as "ab" in lower-cased text */
        { "[" TOKEN(13, "AB", "\"normalized\":false,") "]", "{\"type\":\"Lowercase\"}", "cABcab", "c|AB|c|ab" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct parts p = { .added = cases[i].added, .normalizer = cases[i].normalizer };
        if (cases[i].want == NULL) {
            struct error err = { 0 };
            struct tokenizer *t;
            char *text = file_of(p);
            ck_assert_int_eq(tokenizer_open_text(&t, text, strlen(text), &err), E_INVALID);
            ck_assert_ptr_nonnull(strstr(err.text, "added_tokens[0].id"));
            free(text);
            continue;
        }
        struct tokenizer *t = open_parts(p);
        expect(t, cases[i].text, cases[i].want);
        tokenizer_free(t);
    }
}
END_TEST

START_TEST(added_ids_are_numbered_as_hugging_face_numbers_them)
{
    struct tokenizer *t = open_parts((struct parts){ .added = "[" TOKEN(99, "<x>", "") "," TOKEN(4, "ab", "") "," TOKEN(50, "<y>", "") "]" });
    ck_assert_int_eq(tokenizer_id(t, "<x>"), 13);
    ck_assert_int_eq(tokenizer_id(t, "ab"), 4);
    ck_assert_int_eq(tokenizer_id(t, "<y>"), 14);
    ck_assert_int_eq(tokenizer_size(t), 15);
    tokenizer_free(t);
}
END_TEST

START_TEST(post_processor_and_decoders)
{
    static const char added[] = "[" TOKEN(13, "<s>", "") "," TOKEN(14, "</s>", "") "]";
    static const char post[] = "{\"type\":\"Sequence\",\"processors\":[{\"type\":\"ByteLevel\"},{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"<s>\",\"type_id\":0}},"
                               "{\"Sequence\":{\"id\":\"A\",\"type_id\":0}},{\"SpecialToken\":{\"id\":\"</s>\",\"type_id\":0}}],\"special_tokens\":"
                               "{\"<s>\":{\"id\":\"<s>\",\"ids\":[13],\"tokens\":[\"<s>\"]},\"</s>\":{\"id\":\"</s>\",\"ids\":[14],\"tokens\":[\"</s>\"]}}}]}";
    static const char roberta[] = "{\"type\":\"RobertaProcessing\",\"cls\":[\"<s>\",13],\"sep\":[\"</s>\",14]}";
    static const struct { const char *decoder, *want; int32_t ids[4]; } decoders[] = {
        { "null", "\xE2\x96\x81" "a <0xC3> <0xA9> b", { 7, 8, 9, 2 } },
        { "{\"type\":\"Sequence\",\"decoders\":[{\"type\":\"Replace\",\"pattern\":{\"String\":\"\xE2\x96\x81\"},\"content\":\" \"},{\"type\":\"ByteFallback\"},{\"type\":\"Fuse\"},"
          "{\"type\":\"Strip\",\"content\":\" \",\"start\":1,\"stop\":0}]}", "a\xC3\xA9" "b", { 7, 8, 9, 2 } },
        { "{\"type\":\"ByteFallback\"}", "\xEF\xBF\xBD\xEF\xBF\xBD" "ab", { 8, 8, 1, 2 } },
        { "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"always\"}", "aa a ", { 7, 1, 7, 6 } },
        { "{\"type\":\"Metaspace\",\"replacement\":\"\xE2\x96\x81\",\"prepend_scheme\":\"never\"}", " aa a ", { 7, 1, 7, 6 } },
        { "{\"type\":\"ByteLevel\"}", "a\xE2\x96\x81" "a-b", { 1, 7, 12, 2 } },
        { "{\"type\":\"BPEDecoder\",\"suffix\":\"b\"}", "a a a", { 4, 4, 1, 2 } },
    };
    for (int i = 0; i < 2; i++) {
        struct tokenizer *t = open_parts((struct parts){ .added = added, .post = i ? roberta : post });
        char *got = spell(t, "ab", true);
        ck_assert_str_eq(got, "<s>|ab|</s>");
        free(got);
        expect(t, "ab", "ab");
        tokenizer_free(t);
    }
    for (size_t i = 0; i < sizeof decoders / sizeof *decoders; i++) {
        struct tokenizer *t = open_parts((struct parts){ .added = added, .decoder = decoders[i].decoder });
        int32_t ids[6] = { 13, decoders[i].ids[0], decoders[i].ids[1], decoders[i].ids[2], decoders[i].ids[3], 999999 };
        struct error err = { 0 };
        char *text;
        size_t len;
        ck_assert_int_eq(tokenizer_decode(t, ids, 6, true, &text, &len, &err), OK);
        ck_assert_msg(strcmp(text, decoders[i].want) == 0, "%s: want \"%s\", got \"%s\"", decoders[i].decoder, decoders[i].want, text);
        ck_assert_uint_eq(len, strlen(text));
        free(text);
        tokenizer_free(t);
    }
}
END_TEST

START_TEST(files_that_are_refused)
{
    static const struct { int code; const char *says, *file; } cases[] = {
        { E_INVALID, "expected an object", "[]" }, { E_INVALID, "model is missing", "{}" }, { E_INVALID, "model: expected an object", "{\"model\":[]}" },
        { E_UNSUPPORTED, "model.type \"Unigram\"", "{\"model\":{\"type\":\"Unigram\",\"vocab\":{},\"merges\":[]}}" },
        { E_INVALID, "model.vocab is missing", "{\"model\":{\"merges\":[]}}" }, { E_INVALID, "model.merges is missing", "{\"model\":{\"vocab\":{}}}" },
        { E_UNSUPPORTED, "model.speed", "{\"model\":{\"speed\":1,\"vocab\":{},\"merges\":[]}}" }, { E_UNSUPPORTED, "\"extra\"", "{\"extra\":1}" },
        { E_INVALID, "expected a whole number", "{\"model\":{\"vocab\":{\"a\":1.5},\"merges\":[]}}" }, { E_INVALID, "expected a whole number", "{\"model\":{\"vocab\":{\"a\":-1},\"merges\":[]}}" },
        { E_INVALID, "has id 2000000000", "{\"model\":{\"vocab\":{\"a\":2000000000},\"merges\":[]}}" }, { E_INVALID, "expected a whole number", "{\"model\":{\"vocab\":{\"a\":99999999999999999999},\"merges\":[]}}" },
        { E_INVALID, "id 1 belongs to both", "{\"model\":{\"vocab\":{\"a\":1,\"b\":1},\"merges\":[]}}" }, { E_INVALID, "appears twice", "{\"model\":{\"vocab\":{\"a\":1,\"a\":2},\"merges\":[]}}" },
        { E_INVALID, "\"x\", which is not in the vocabulary", "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[\"a x\"]}}" },
        { E_INVALID, "makes \"aa\"", "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[\"a a\"]}}" }, { E_INVALID, "one blank between", "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[\"a\"]}}" },
        { E_INVALID, "one blank between", "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[\"a a a\"]}}" }, { E_INVALID, "expected two strings", "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[[\"a\"]]}}" },
        { E_INVALID, "expected two strings", "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[[\"a\",1]]}}" }, { E_INVALID, "expected \"a b\"", "{\"model\":{\"vocab\":{\"a\":1},\"merges\":[7]}}" },
        { E_INVALID, "unk_token", "{\"model\":{\"unk_token\":\"u\",\"vocab\":{\"a\":1},\"merges\":[]}}" }, { E_UNSUPPORTED, "dropout", "{\"model\":{\"dropout\":0.1,\"vocab\":{\"a\":1},\"merges\":[]}}" },
#define WITH(member) "{" member ",\"model\":{\"vocab\":{\"a\":0},\"merges\":[]}}"
        { E_UNSUPPORTED, "normalizer.type \"Nmt\"", WITH("\"normalizer\":{\"type\":\"Nmt\"}") }, { E_INVALID, "normalizer.type", WITH("\"normalizer\":7") },
        { E_UNSUPPORTED, "pre_tokenizer.type \"UnicodeScripts\"", WITH("\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}") },
        { E_UNSUPPORTED, "post_processor.type \"X\"", WITH("\"post_processor\":{\"type\":\"X\"}") }, { E_UNSUPPORTED, "decoder.type \"CTC\"", WITH("\"decoder\":{\"type\":\"CTC\"}") },
        { E_INVALID, "ids of this vocabulary", WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":{\"id\":\"s\"}}],\"special_tokens\":{\"s\":{\"ids\":[9]}}}") },
        { E_UNSUPPORTED, "has to stand in it once", WITH("\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[],\"special_tokens\":{}}") },
        { E_UNSUPPORTED, "behavior \"Odd\"", WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"String\":\"a\"},\"behavior\":\"Odd\"}") },
        { E_INVALID, "pre_tokenizer.pattern", WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{},\"behavior\":\"Removed\"}") },
        { E_UNSUPPORTED, "group is not closed", WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(a\"},\"behavior\":\"Removed\"}") },
        { E_UNSUPPORTED, "property name is not known", WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"\\\\p{Nonsense}\"},\"behavior\":\"Removed\"}") },
        { E_UNSUPPORTED, "named groups", WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?<x>a)\"},\"behavior\":\"Removed\"}") },
        { E_UNSUPPORTED, "repeat count", WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"a{99999}\"},\"behavior\":\"Removed\"}") },
        { E_UNSUPPORTED, "too large", WITH("\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"((a{1000}){1000}){1000}\"},\"behavior\":\"Removed\"}") },
        { E_INVALID, "of one character", WITH("\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"ab\"}") }, { E_INVALID, "start and stop", WITH("\"decoder\":{\"type\":\"Strip\",\"content\":\"a\",\"start\":-1,\"stop\":0}") },
        { E_INVALID, "added_tokens: expected a list", WITH("\"added_tokens\":{}") }, { E_INVALID, "added_tokens[0].content", WITH("\"added_tokens\":[{}]") },
        { E_INVALID, "added_tokens[0].id", WITH("\"added_tokens\":[{\"content\":\"x\",\"id\":-4}]") }, { E_INVALID, "belongs to \"a\"", WITH("\"added_tokens\":[{\"content\":\"x\",\"id\":0}]") },
        { E_INVALID, "would get id 1, which belongs to \"a\"", "{\"added_tokens\":[{\"content\":\"x\",\"id\":2}],\"model\":{\"vocab\":{\"a\":1},\"merges\":[]}}" },
        { E_INVALID, "id: 2 appears twice", WITH("\"added_tokens\":[{\"content\":\"x\",\"id\":2},{\"content\":\"y\",\"id\":2}]") },
        { E_INVALID, "\"x\" appears twice", WITH("\"added_tokens\":[{\"content\":\"x\",\"id\":2},{\"content\":\"x\",\"id\":3}]") },
        { E_INVALID, "not valid UTF-8", "{\"model\":\"\xFF\"}" }, { E_INVALID, "byte order mark", "\xEF\xBB\xBF{}" }, { E_INVALID, "line 1", "{\"model\":" },
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct error err = { 0 };
        struct tokenizer *t;
        int rc = tokenizer_open_text(&t, cases[i].file, strlen(cases[i].file), &err);
        ck_assert_msg(rc == cases[i].code && strstr(err.text, cases[i].says), "%s: %s, \"%s\"; expected %s, \"%s\"", cases[i].file, status_name((enum status)rc), err.text,
                      status_name((enum status)cases[i].code), cases[i].says);
        ck_assert_ptr_null(t);
    }
}
END_TEST

static char *nested(const char *open, const char *shut, int depth, const char *before, const char *after)
{
    struct bytes b = { 0 };
    bytes_add(&b, before, strlen(before));
    for (int i = 0; i < depth; i++) bytes_add(&b, open, strlen(open));
    for (int i = 0; i < depth; i++) bytes_add(&b, shut, strlen(shut));
    bytes_add(&b, after, strlen(after) + 1);
    return b.v;
}

START_TEST(absurd_files_end_soon)
{
    struct error err = { 0 };
    struct tokenizer *t;
    char *files[] = {
        nested("[", "]", 1000, "{\"model\":", "}"),
        nested("{\"type\":\"Sequence\",\"normalizers\":[", "]}", 100, "{\"normalizer\":", ",\"model\":{\"vocab\":{},\"merges\":[]}}"),
        nested("{\"type\":\"Sequence\",\"pretokenizers\":[", "]}", 100, "{\"pre_tokenizer\":", ",\"model\":{\"vocab\":{},\"merges\":[]}}"),
        nested("(", ")", 30000, "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":{\"Regex\":\"", "\"}},\"model\":{\"vocab\":{},\"merges\":[]}}"),
        nested("[", "]", 30000, "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":{\"Regex\":\"", "\"}},\"model\":{\"vocab\":{},\"merges\":[]}}"),
        nested("a*", "", 1, "{\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Removed\",\"pattern\":{\"Regex\":\"a", "*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+*+\"}},\"model\":{\"vocab\":{},\"merges\":[]}}"),
    };
    for (size_t i = 0; i < sizeof files / sizeof *files; i++) {
        int rc = tokenizer_open_text(&t, files[i], strlen(files[i]), &err);
        ck_assert_msg(rc == E_INVALID || rc == E_LIMIT || rc == E_UNSUPPORTED, "file %zu: %d", i, rc);
        free(files[i]);
    }
}
END_TEST

START_TEST(texts_that_would_explode_or_crawl)
{
    struct error err = { 0 };
    struct ids ids = { 0 };
    struct tokenizer *t;
    char *doubling = nested("{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"aa\"},", "", 40, "{\"type\":\"Sequence\",\"normalizers\":[", "{\"type\":\"NFC\"}]}");
    t = open_parts((struct parts){ .normalizer = doubling });
    ck_assert_int_eq(tokenizer_encode(t, "a", 1, false, &ids, &err), E_LIMIT);
    ck_assert_ptr_nonnull(strstr(err.text, "bytes of a text"));
    tokenizer_free(t);
    free(doubling);

    char *spelling = nested("{\"type\":\"ByteLevel\"},", "", 20, "{\"type\":\"Sequence\",\"pretokenizers\":[", "{\"type\":\"ByteLevel\"}]}");
    char *file = file_of((struct parts){ .pre = spelling });
    ck_assert_int_eq(tokenizer_open_text(&t, file, strlen(file), &err), E_LIMIT);
    free(spelling);
    free(file);

    struct bytes marks = { 0 };                             /* 200,000 accents on one letter, in the wrong order: seconds or for ever */
    t = open_parts((struct parts){ .normalizer = "{\"type\":\"NFC\"}" });
    bytes_add_char(&marks, 'a');
    for (int i = 0; i < 100000; i++) bytes_add(&marks, "\xCC\x81\xCC\xA7", 4);
    ck_assert_int_eq(tokenizer_encode(t, marks.v, marks.n, false, &ids, &err), OK);
    bytes_release(&marks);
    ids_release(&ids);
    tokenizer_free(t);
}
END_TEST

START_TEST(a_pattern_that_backtracks_for_ever_is_stopped)
{
    struct error err = { 0 };
    struct ids ids = { 0 };
    struct tokenizer *t = open_parts((struct parts){ .pre = "{\"type\":\"Split\",\"pattern\":{\"Regex\":\"(?:a|a|aa)+[cd]\"},\"behavior\":\"Isolated\",\"invert\":false}" });
    char text[200];
    memset(text, 'a', sizeof text);
    ids_add(&ids, 5);
    ck_assert_int_eq(tokenizer_encode(t, text, sizeof text, false, &ids, &err), E_LIMIT);
    ck_assert_ptr_nonnull(strstr(err.text, "too many steps"));
    ck_assert_int_eq(ids.n, 1);                             /* nothing is left behind */
    ids_release(&ids);
    tokenizer_free(t);
}
END_TEST

START_TEST(texts_at_the_edges)
{
    struct error err = { 0 };
    struct ids ids = { 0 };
    struct tokenizer *t = open_parts((struct parts){ .added = "[" TOKEN(13, "<s>", "") "]" });
    ck_assert_int_eq(tokenizer_encode(t, "", 0, false, &ids, &err), OK);
    ck_assert_int_eq(ids.n, 0);
    ck_assert_int_eq(tokenizer_encode(t, "a\xC3(", 3, false, &ids, &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "byte 1"));
    ck_assert_int_eq(tokenizer_encode(t, "a\0a", 3, false, &ids, &err), OK);
    ck_assert_int_eq(ids.n, 2);
    ck_assert_int_eq(tokenizer_id(t, "<s>"), 13);
    ck_assert_int_eq(tokenizer_id(t, "nothing"), -1);
    ck_assert_int_eq(tokenizer_size(t), 14);
    ck_assert_ptr_null(tokenizer_token(t, -1));
    ck_assert_ptr_null(tokenizer_token(t, 14));
    ids_release(&ids);
    tokenizer_free(t);
}
END_TEST

START_TEST(nul_in_a_file)      /* real patterns and vocabularies hold it */
{
    static const char file[] = "{\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"[\\u0000-\\u001f]\"},\"behavior\":\"Isolated\",\"invert\":false},"
                               "\"model\":{\"vocab\":{\"a\":0,\"\\u0000\":1,\"\\u0000a\":2,\"\\u0000b\":3},\"merges\":[[\"\\u0000\",\"a\"]]}}";
    struct error err = { 0 };
    struct tokenizer *t;
    struct ids ids = { 0 };
    int rc = tokenizer_open_text(&t, file, sizeof file - 1, &err);
    ck_assert_msg(rc == OK, "%s", err.text);
    ck_assert_int_eq(tokenizer_encode(t, "a\0a", 3, false, &ids, &err), OK);
    ck_assert_int_eq(ids.n, 3);                             /* isolated: no merge */
    ck_assert_int_eq(ids.v[1], 1);
    ids_release(&ids);
    tokenizer_free(t);
}
END_TEST

static struct tokenizer *shared;
static void *encode_much(void *arg)
{
    struct error err = { 0 };
    long wrong = 0;
    (void)arg;
    for (int i = 0; i < 300; i++) {
        char text[64];
        struct ids ids = { 0 };
        int n = snprintf(text, sizeof text, "abc ab %.*s<s>c", i % 20, "abcabcabcabcabcabcabc");
        if (tokenizer_encode(shared, text, (size_t)n, false, &ids, &err) != OK || ids.v[0] != 5 || ids.v[ids.n - 1] != 3) wrong++;
        ids_release(&ids);
    }
    return (void *)wrong;
}

START_TEST(threads_share_one_tokenizer)
{
    pthread_t threads[4];
    void *wrong;
    shared = open_parts((struct parts){ .added = "[" TOKEN(13, "<s>", "") "]", .pre = "{\"type\":\"Digits\",\"individual_digits\":true}" });
    for (int i = 0; i < 4; i++) ck_assert_int_eq(pthread_create(&threads[i], NULL, encode_much, NULL), 0);
    for (int i = 0; i < 4; i++) {
        (void)pthread_join(threads[i], &wrong);
        ck_assert_ptr_null(wrong);
    }
    tokenizer_free(shared);
}
END_TEST

static void put(const char *folder, const char *name, const char *text)
{
    char *path = xasprintf("%s/%s", folder, name);
    ck_assert_int_eq(file_write(path, text, strlen(text), NULL), OK);
    free(path);
}

START_TEST(special_tokens_come_from_the_files_beside_it)
{
    char folder[] = "/tmp/rm-tokenizer-XXXXXX";
    struct error err = { 0 };
    struct tokenizer *t;
    char *summary, *file = file_of((struct parts){ .added = "[" TOKEN(13, "<s>", "") "," TOKEN(14, "</s>", "") "]" });
    ck_assert_ptr_nonnull(mkdtemp(folder));
    ck_assert_int_eq(tokenizer_open(&t, folder, &err), E_NOTFOUND);
    put(folder, "tokenizer.json", file);
    ck_assert_int_eq(tokenizer_open(&t, folder, &err), OK);
    ck_assert_int_eq(tokenizer_eos(t), -1);
    tokenizer_free(t);
    put(folder, "generation_config.json", "{\"eos_token_id\":[14,13]}");
    ck_assert_int_eq(tokenizer_open(&t, folder, &err), OK);
    ck_assert_int_eq(tokenizer_eos(t), 14);
    ck_assert_int_eq(tokenizer_pad(t), 14);
    tokenizer_free(t);
    put(folder, "special_tokens_map.json", "{\"eos_token\":\"ab\",\"bos_token\":{\"content\":\"<s>\"}}");
    put(folder, "tokenizer_config.json", "{\"eos_token\":{\"content\":\"</s>\"},\"bos_token\":null,\"pad_token\":\"not there\"}");
    ck_assert_int_eq(tokenizer_open(&t, folder, &err), OK);
    ck_assert_int_eq(tokenizer_bos(t), 13);
    ck_assert_int_eq(tokenizer_eos(t), 14);
    ck_assert_int_eq(tokenizer_pad(t), 14);
    tokenizer_free(t);
    ck_assert_int_eq(tokenizer_check(folder, INT64_MAX, &summary, &err), OK);
    ck_assert_ptr_nonnull(strstr(summary, "</s>"));
    free(summary);
    put(folder, "tokenizer_config.json", "{\"eos_token\":\"gone\"}");
    ck_assert_int_eq(tokenizer_open(&t, folder, &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "tokenizer_config.json: eos_token \"gone\""));
    put(folder, "tokenizer_config.json", "{\"eos_token\":");
    ck_assert_int_eq(tokenizer_open(&t, folder, &err), E_INVALID);
    ck_assert_ptr_nonnull(strstr(err.text, "tokenizer_config.json: line 1"));
    free(file);
    ck_assert_int_eq(remove_tree(folder, &err), OK);
}
END_TEST

int main(void)
{
    Suite *s = suite_create("tokenizer");
    TCase *c = tcase_create("tokenizer");
    tcase_set_timeout(c, 60);
    tcase_add_test(c, merges_and_unknown);
    tcase_add_test(c, long_words_merge_like_short_ones);
    tcase_add_test(c, pre_tokenizers);
    tcase_add_test(c, patterns_mean_what_oniguruma_means);
    tcase_add_test(c, normalizers);
    tcase_add_test(c, added_tokens);
    tcase_add_test(c, added_ids_are_numbered_as_hugging_face_numbers_them);
    tcase_add_test(c, post_processor_and_decoders);
    tcase_add_test(c, files_that_are_refused);
    tcase_add_test(c, absurd_files_end_soon);
    tcase_add_test(c, texts_that_would_explode_or_crawl);
    tcase_add_test(c, a_pattern_that_backtracks_for_ever_is_stopped);
    tcase_add_test(c, texts_at_the_edges);
    tcase_add_test(c, nul_in_a_file);
    tcase_add_test(c, threads_share_one_tokenizer);
    tcase_add_test(c, special_tokens_come_from_the_files_beside_it);
    suite_add_tcase(s, c);
    return suite_run(s, CK_FORK_GETENV);
}
