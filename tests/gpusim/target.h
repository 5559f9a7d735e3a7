// target.h - what kernels.cc is linked with to run: the emulator (target_emulated.cc) or a device (target_device.cc).
#ifndef RM_TESTS_GPUSIM_TARGET_H
#define RM_TESTS_GPUSIM_TARGET_H

#include "kernels/cuda/backend.h"

void *target_alloc(size_t bytes);       // memory that host and kernels both reach; ends the program when there is none
void target_free(void *p);
const struct kernel_ops *target_open(struct stream **s);       // NULL without a device, after saying so
int target_wait(struct stream *s);      // the host may look at results
uint64_t target_bank_conflicts();       // seen so far; 0 where nobody counts

#endif
