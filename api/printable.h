/* printable.h - other people's text on a terminal: names, reasons, logs and file names may hold sequences that it would obey. */
#ifndef RM_API_PRINTABLE_H
#define RM_API_PRINTABLE_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>

/* Spells control characters out: \x1b for C0, DEL and bytes that are no UTF-8, \u009b for C1; body keeps newline and tab. The caller frees. */
char *printable(const char *s, size_t n, bool body);
/* The same of a formatted line. */
char *printable_v(const char *fmt, va_list ap) __attribute__((format(printf, 1, 0)));
/* One line, printable, with its newline; fmt holds none. */
void print_line(FILE *to, const char *fmt, ...) __attribute__((format(printf, 2, 3)));

#endif
