/* What failed last in this thread, in words. */
#ifndef PALLASC_ERRORS_H
#define PALLASC_ERRORS_H

#include "include/pallasc.h"

#define PALLASC_PRINTF(message, first) __attribute__((format(printf, message, first)))

/* Keep a message, and what to do next (NULL: nothing). Both return the status. */
int fail(int status, const char *hint, const char *message, ...) PALLASC_PRINTF(3, 4);
int fail_with_result(int status, int result, const char *hint, const char *message, ...)
    PALLASC_PRINTF(4, 5);

/* Memory of the host is out. */
int fail_host_memory(void);

#endif
