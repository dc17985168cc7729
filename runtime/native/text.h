/* Text of plans and programs, which strangers may have written. */
#ifndef PALLASC_TEXT_H
#define PALLASC_TEXT_H

#include <stddef.h>

/* How many bytes the UTF-8 character that begins here has; 0: it is none. */
size_t character(const unsigned char *at, size_t room);

/* Put question marks for what is not UTF-8, such as a character that was cut, and for control
 * characters but line feeds, which a terminal would obey. */
void make_showable(char *text);

#endif
