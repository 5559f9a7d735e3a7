#include "daemon/sha256.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

struct sha { uint32_t h[8]; uint64_t n; unsigned char block[64]; };

static const uint32_t K[64] = {
    0x428a2f98, 0x71374491, 0xb5c0fbcf, 0xe9b5dba5, 0x3956c25b, 0x59f111f1, 0x923f82a4, 0xab1c5ed5, 0xd807aa98, 0x12835b01, 0x243185be, 0x550c7dc3, 0x72be5d74, 0x80deb1fe, 0x9bdc06a7, 0xc19bf174,
    0xe49b69c1, 0xefbe4786, 0x0fc19dc6, 0x240ca1cc, 0x2de92c6f, 0x4a7484aa, 0x5cb0a9dc, 0x76f988da, 0x983e5152, 0xa831c66d, 0xb00327c8, 0xbf597fc7, 0xc6e00bf3, 0xd5a79147, 0x06ca6351, 0x14292967,
    0x27b70a85, 0x2e1b2138, 0x4d2c6dfc, 0x53380d13, 0x650a7354, 0x766a0abb, 0x81c2c92e, 0x92722c85, 0xa2bfe8a1, 0xa81a664b, 0xc24b8b70, 0xc76c51a3, 0xd192e819, 0xd6990624, 0xf40e3585, 0x106aa070,
    0x19a4c116, 0x1e376c08, 0x2748774c, 0x34b0bcb5, 0x391c0cb3, 0x4ed8aa4a, 0x5b9cca4f, 0x682e6ff3, 0x748f82ee, 0x78a5636f, 0x84c87814, 0x8cc70208, 0x90befffa, 0xa4506ceb, 0xbef9a3f7, 0xc67178f2 };

static uint32_t rotr(uint32_t x, int n) { return x >> n | x << (32 - n); }

static void block(struct sha *s)
{
    uint32_t w[64], v[8];
    for (int i = 0; i < 16; i++)
        w[i] = (uint32_t)s->block[4 * i] << 24 | (uint32_t)s->block[4 * i + 1] << 16 | (uint32_t)s->block[4 * i + 2] << 8 | s->block[4 * i + 3];
    for (int i = 16; i < 64; i++)
        w[i] = w[i - 16] + (rotr(w[i - 15], 7) ^ rotr(w[i - 15], 18) ^ w[i - 15] >> 3) + w[i - 7] + (rotr(w[i - 2], 17) ^ rotr(w[i - 2], 19) ^ w[i - 2] >> 10);
    memcpy(v, s->h, sizeof v);
    for (int i = 0; i < 64; i++) {
        uint32_t t1 = v[7] + (rotr(v[4], 6) ^ rotr(v[4], 11) ^ rotr(v[4], 25)) + ((v[4] & v[5]) ^ (~v[4] & v[6])) + K[i] + w[i];
        uint32_t t2 = (rotr(v[0], 2) ^ rotr(v[0], 13) ^ rotr(v[0], 22)) + ((v[0] & v[1]) ^ (v[0] & v[2]) ^ (v[1] & v[2]));
        memmove(v + 1, v, 7 * sizeof v[0]);
        v[4] += t1;
        v[0] = t1 + t2;
    }
    for (int i = 0; i < 8; i++) s->h[i] += v[i];
}

static void add(struct sha *s, const void *data, size_t len)
{
    const unsigned char *p = data;
    for (size_t i = 0; i < len; i++) {
        s->block[s->n++ % 64] = p[i];
        if (s->n % 64 == 0) block(s);
    }
}

static void start(struct sha *s)
{
    static const uint32_t h[8] = { 0x6a09e667, 0xbb67ae85, 0x3c6ef372, 0xa54ff53a, 0x510e527f, 0x9b05688c, 0x1f83d9ab, 0x5be0cd19 };
    memcpy(s->h, h, sizeof h);
    s->n = 0;
}

static void finish(struct sha *s, unsigned char out[32])
{
    uint64_t bits = s->n * 8;
    unsigned char tail[8];
    add(s, "\x80", 1);
    while (s->n % 64 != 56) add(s, "", 1);
    for (int i = 0; i < 8; i++) tail[i] = (unsigned char)(bits >> (56 - 8 * i));
    add(s, tail, 8);
    for (int i = 0; i < 32; i++) out[i] = (unsigned char)(s->h[i / 4] >> (24 - 8 * (i % 4)));
}

static void hex(char *out, const unsigned char *p, size_t n)
{
    for (size_t i = 0; i < n; i++) (void)sprintf(out + 2 * i, "%02x", p[i]);
    out[2 * n] = '\0';
}

void sha256_hex(char out[65], const void *data, size_t len)
{
    struct sha s;
    unsigned char d[32];
    start(&s);
    add(&s, data, len);
    finish(&s, d);
    hex(out, d, 32);
}

void hmac_sha256_hex(char out[65], const void *key, size_t key_len, const void *data, size_t len)
{
    struct sha s;
    unsigned char k[64] = { 0 }, pad[64], d[32];
    if (key_len > 64) {
        start(&s);
        add(&s, key, key_len);
        finish(&s, k);
    } else memcpy(k, key, key_len);
    for (int i = 0; i < 64; i++) pad[i] = k[i] ^ 0x36;
    start(&s);
    add(&s, pad, 64);
    add(&s, data, len);
    finish(&s, d);
    for (int i = 0; i < 64; i++) pad[i] = k[i] ^ 0x5c;
    start(&s);
    add(&s, pad, 64);
    add(&s, d, 32);
    finish(&s, d);
    hex(out, d, 32);
}

void random_hex(char *out, size_t n)
{
    unsigned char raw[64];
    if (n > sizeof raw || getrandom(raw, n, 0) != (ssize_t)n) abort();     /* no randomness, no secrets */
    hex(out, raw, n);
}
