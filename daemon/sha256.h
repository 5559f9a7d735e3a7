/* sha256.h - SHA-256 (FIPS 180-4) and HMAC (RFC 2104): token hashes and webhook signatures need nothing more. */
#ifndef RM_DAEMON_SHA256_H
#define RM_DAEMON_SHA256_H

#include <stddef.h>

/* out: 64 lower-case hexadecimal digits and a NUL. */
void sha256_hex(char out[65], const void *data, size_t len);
void hmac_sha256_hex(char out[65], const void *key, size_t key_len, const void *data, size_t len);
/* n random bytes as 2n hexadecimal digits and a NUL, from the kernel. */
void random_hex(char *out, size_t n);

#endif
