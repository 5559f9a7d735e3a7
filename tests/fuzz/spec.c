/* A job spec from anywhere: taken or refused with a problem; what is taken has a normal form that is a spec again. */
#include <assert.h>
#include <stdint.h>
#include <stdlib.h>

#include "api/spec.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct spec s, again;
    struct problems p = { 0 };
    int rc = spec_parse(&s, (const char *)data, size, &p);
    assert((rc == OK) == (p.n == 0));
    cJSON *list = problems_json(&p);
    char *line = json_line(list);
    cJSON_Delete(list);
    free(line);
    if (rc == OK) {
        cJSON *j = spec_json(&s);
        assert(spec_from_json(&again, j, &p) == OK);
        cJSON_Delete(j);
        spec_release(&again);
        spec_release(&s);
    }
    problems_release(&p);
    return 0;
}
