/* tokenizer.c - how fast a tokenizer encodes files, one thread.
 * usage: bench_tokenizer MODEL FILE…; one line a file: bytes, ids, best CPU seconds of 5 */
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

#include "api/file.h"
#include "worker/data/tokenizer.h"

static double cpu_s(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

int main(int argc, char **argv)
{
    struct tokenizer *t = NULL;
    struct error err;
    if (argc < 3 || tokenizer_open(&t, argv[1], &err) != OK) {
        (void)fprintf(stderr, "%s\n", argc < 3 ? "usage: bench_tokenizer MODEL FILE…" : err.text);
        return 2;
    }
    for (int i = 2; i < argc; i++) {
        char *text;
        size_t len;
        double best = 1e9;
        struct ids ids = { 0 };
        if (file_read(argv[i], 1u << 30, &text, &len, &err) != OK) { (void)fprintf(stderr, "%s\n", err.text); return 2; }
        for (int k = 0; k < 5; k++) {
            ids.n = 0;
            double start = cpu_s();
            if (tokenizer_encode(t, text, len, false, &ids, &err) != OK) { (void)fprintf(stderr, "%s: %s\n", argv[i], err.text); return 2; }
            if (cpu_s() - start < best) best = cpu_s() - start;
        }
        (void)printf("%zu %lld %.6f\n", len, (long long)ids.n, best);
        ids_release(&ids);
        free(text);
    }
    tokenizer_free(t);
    return 0;
}
