#include "errors.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char text[4096];
static _Thread_local int driver_result;

int fail_with_result(int status, int result, const char *hint, const char *message, ...)
{
    /* The hint is short and always fits. */
    size_t room = sizeof text - (hint ? strlen(hint) + 3 : 0);
    char made[sizeof text];
    va_list values;
    va_start(values, message);
    vsnprintf(made, room, message, values);
    va_end(values);
    if (hint) {
        strcat(made, "\n  ");
        strcat(made, hint);
    }
    make_showable(made); /* names and hints are untrusted, and may be cut within a character */
    memcpy(text, made, sizeof text);
    driver_result = result;
    return status;
}

int fail_host_memory(void)
{
    return fail(PALLASC_ERROR_OUT_OF_MEMORY, NULL, "the host has not enough memory.");
}

const char *pallasc_last_error(void)
{
    return text;
}

int pallasc_last_driver_result(void)
{
    return driver_result;
}
