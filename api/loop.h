/* loop.h - the one door to libuv; daemon, keeper, client and the worker's link all include this. */
#ifndef RM_API_LOOP_H
#define RM_API_LOOP_H

#include <uv.h>

#endif
