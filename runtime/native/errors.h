/* The message of this thread's last failure. It may quote untrusted text of plans and programs. */
#ifndef PALLASC_ERRORS_H
#define PALLASC_ERRORS_H

#include "include/pallasc.h"

#define PALLASC_PRINTF(message, first) __attribute__((format(printf, message, first)))

/* Store a message and the remedy (NULL: none), and return the status. */
#define fail(status, ...) fail_with_result(status, 0, __VA_ARGS__)
int fail_with_result(int status, int result, const char *hint, const char *message, ...)
    PALLASC_PRINTF(4, 5);

/* The host is out of memory. */
int fail_host_memory(void);

/* Returns the size in bytes of the UTF-8 character that starts here; 0 if it is invalid. */
size_t character(const unsigned char *at, size_t room);

/* Appends to a text, and cuts the result to the capacity. */
void append(char *text, size_t capacity, const char *format, ...) PALLASC_PRINTF(3, 4);

/* Replaces invalid UTF-8, such as truncated characters, and control characters, which would affect
 * a terminal, by question marks. Line feeds stay. */
void make_showable(char *text);

#endif
