/* The message of this thread's last failure. */
#ifndef PALLASC_ERRORS_H
#define PALLASC_ERRORS_H

#include "include/pallasc.h"
#include "text.h"

/* Store a message and the remedy (NULL: none), and return the status. */
#define fail(status, ...) fail_with_result(status, 0, __VA_ARGS__)
int fail_with_result(int status, int result, const char *hint, const char *message, ...)
    PALLASC_PRINTF(4, 5);

/* The host is out of memory. */
int fail_host_memory(void);

#endif
