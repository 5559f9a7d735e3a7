/* Another tool's command or file: refused with a message, or a spec with a word on every flag. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "api/import.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    cJSON *r = NULL;
    struct error err = { 0 };
    int rc = import_llamafactory(&r, (const char *)data, size, &err);
    assert((rc == OK) == (r != NULL) && (rc == OK || err.text[0]));
    if (r) {
        char *line = json_line(r);
        assert(json_get(r, "spec") && cJSON_IsArray(json_get(r, "flags")) && cJSON_IsBool(json_get(r, "supported")));
        free(line);
    }
    cJSON_Delete(r);
    return 0;
}
