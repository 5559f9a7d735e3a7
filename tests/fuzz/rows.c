/* rows.c - any bytes as a data set file: the first byte picks the format, the rest is the file. Reads every sample it holds. */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "api/file.h"
#include "worker/data/dataset.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);
int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const ext[] = { "jsonl", "json", "csv", "txt" };
    static char path[64];
    struct dataset *d;
    struct error err;
    if (size < 1) return 0;
    (void)snprintf(path, sizeof path, "/tmp/rm-fuzz-rows-%ld.%s", (long)getpid(), ext[data[0] % 4]);
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0 || write_all(fd, data + 1, size - 1, NULL) != OK) abort();
    (void)close(fd);
    char *one[] = { path };
    struct strlist list = { one, 1 };
    if (dataset_open(&d, &list, NULL, "system", true, size, &err) == OK) {
        for (int64_t i = 0; i < dataset_count(d); i++) {
            struct pool pool = { 0 };
            struct sample s;
            struct buf b = { 0 };
            const char *bad;
            if (dataset_sample(d, i, &pool, &s, &err) == OK) {
                if (s.is_text ? s.text.type != V_STR : s.messages.type != V_LIST || s.messages.l->n == 0) abort();
                if (!s.is_text) (void)value_dumps(&b, s.messages, 2, true, &bad);
            }
            buf_release(&b);
            pool_release(&pool);
        }
        dataset_close(d);
    }
    (void)unlink(path);
    return 0;
}
