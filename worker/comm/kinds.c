/* kinds.c - the names of the kinds of calls; in the worker and in the CUDA module, hence a file of its own. */
#include "worker/comm/comm.h"

const char *const comm_kind_names[COMM_KINDS] = {
    [COMM_ALL_TO_ALL] = "all_to_all", [COMM_HOP] = "hop", [COMM_ALL_REDUCE] = "all_reduce", [COMM_REDUCE_SCATTER] = "reduce_scatter",
    [COMM_ALL_GATHER] = "all_gather", [COMM_BROADCAST] = "broadcast", [COMM_BARRIER] = "barrier",
};
