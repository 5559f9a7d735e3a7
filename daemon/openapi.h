/* openapi.h - the API document, made from the route table and the spec's field table, so that it cannot disagree with them. */
#ifndef RM_DAEMON_OPENAPI_H
#define RM_DAEMON_OPENAPI_H

#include "api/json.h"

cJSON *openapi_document(void);     /* OpenAPI 3.1 */

#endif
