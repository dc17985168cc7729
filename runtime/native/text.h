/* Text from plans and programs, which is untrusted. */
#ifndef PALLASC_TEXT_H
#define PALLASC_TEXT_H

#include <stddef.h>

#define PALLASC_PRINTF(message, first) __attribute__((format(printf, message, first)))

/* Returns the size in bytes of the UTF-8 character that starts here; 0 if it is invalid. */
size_t character(const unsigned char *at, size_t room);

/* Appends to a text; what does not fit is cut. */
void append(char *text, size_t capacity, const char *format, ...) PALLASC_PRINTF(3, 4);

/* Replaces by question marks all invalid UTF-8, such as truncated characters, and all control
 * characters except line feeds, which would affect a terminal. */
void make_showable(char *text);

#endif
