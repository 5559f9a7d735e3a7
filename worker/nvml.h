/* nvml.h - what the driver's management library says of a GPU: how busy, how hot, held back by what, wired to whom. */
#ifndef RM_WORKER_NVML_H
#define RM_WORKER_NVML_H

#include "api/json.h"

/* Opens libnvidia-ml.so.1, once per process. E_UNSUPPORTED where it is missing or does not start: nothing else here may then be called. */
int nvml_open(struct error *err);

/* NaN and -1: this card does not tell. */
struct gpu_reading {
    double utilization;         /* share of the last sampling period in which a kernel ran, 0 to 1 */
    double power_w, power_limit_w, temperature_c, sm_clock_mhz, sm_clock_max_mhz;
    int64_t memory_used_bytes;  /* all processes */
    uint64_t throttle;          /* bits of nvmlClocksThrottleReasons */
};
/* uuid: as device_info has it. False: this device cannot be read now. Some milliseconds. */
bool nvml_read(const char *uuid, struct gpu_reading *out);
/* Adds what is known of r to o: gpu_utilization, gpu_power_w, … (metric_names in api/message.c), each name behind `prefix`. */
void nvml_add(cJSON *o, const char *prefix, const struct gpu_reading *r);
/* Names of the reasons that slow a card down, "power limit, too hot (hardware)"; "" when none of them holds (idle is none). */
const char *nvml_throttle_text(uint64_t reasons, char *buf, size_t size);

/* Order in which n devices are to be given to ranks 0, 1, …, so that neighbours in the ring are wired as closely as can be: from device 0 always
 * on to the nearest one left (most NVLinks, then the closest PCIe ancestor, then the lowest number). order[rank] = device. 0, 1, 2, … where
 * nothing is known, which may be so in one process and not in another: rank 0 asks, and tells the others. */
void nvml_order(const char uuid[][64], int n, int *order);
/* Bytes/s in one direction between those two of n devices that are wired worst, by what their wires are rated at less what transfers usually
 * lose; *how: "NVLink" or "PCIe". 0: not known. */
double nvml_link_Bps(const char uuid[][64], int n, const char **how);

#endif
