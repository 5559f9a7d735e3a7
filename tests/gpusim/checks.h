// checks.h - what every part of the emulator uses to complain, and to tell ThreadSanitizer what orders what.
#ifndef RM_TESTS_GPUSIM_CHECKS_H
#define RM_TESTS_GPUSIM_CHECKS_H

#include <stddef.h>

// Built without -fsanitize=thread, the emulator calls TSan's runtime itself: each CUDA thread is a TSan fiber, and only what
// orders threads in CUDA (barriers, kernel edges) orders them for TSan.
#ifdef GPUSIM_LINK_TSAN
extern "C" {
void *__tsan_get_current_fiber(void);
void *__tsan_create_fiber(unsigned);
void __tsan_switch_to_fiber(void *, unsigned);
void __tsan_set_fiber_name(void *, const char *);
void __tsan_acquire(void *);
void __tsan_release(void *);
void __tsan_read_range(void *, unsigned long);
void __tsan_write_range(void *, unsigned long);
void __tsan_func_entry(void *);
void __tsan_func_exit(void);
}
#else
#define __tsan_acquire(p) ((void)0)
#define __tsan_release(p) ((void)0)
#endif

namespace gpusim {

// Prints the message and where every thread of the running block stands, and aborts.
[[noreturn]] void die(const char *fmt, ...) __attribute__((format(printf, 1, 2)));

// For ThreadSanitizer: accesses the emulator makes in a kernel's name; no-ops elsewhere.
void tsan_read(const void *p, size_t n, void *pc);
void tsan_write(void *p, size_t n, void *pc);

}  // namespace gpusim

#endif
