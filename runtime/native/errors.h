/* The message of this thread's last failure. */
#ifndef PALLASC_ERRORS_H
#define PALLASC_ERRORS_H

#include "include/pallasc.h"

#define PALLASC_PRINTF(message, first) __attribute__((format(printf, message, first)))

/* Store a message and the remedy (NULL: none). Both functions return the status. */
int fail(int status, const char *hint, const char *message, ...) PALLASC_PRINTF(3, 4);
int fail_with_result(int status, int result, const char *hint, const char *message, ...)
    PALLASC_PRINTF(4, 5);

/* The host is out of memory. */
int fail_host_memory(void);

#endif
