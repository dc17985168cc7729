#include "errors.h"

#include "text.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static _Thread_local char text[4096];
static _Thread_local int driver_result;

/* Truncate a text that did not fit after its last whole character. */
static void end_whole(char *cut, size_t capacity)
{
    size_t length = strlen(cut);
    if (length + 1 < capacity)
        return;
    while (length && ((unsigned char)cut[length - 1] & 0xc0) == 0x80)
        length--;
    cut[length ? length - 1 : 0] = 0;
}

static int keep(int status, int result, const char *hint, const char *message, va_list values)
{
    /* The hint is short and always fits. */
    size_t room = sizeof text - (hint ? strlen(hint) + 3 : 0);
    char made[sizeof text];
    vsnprintf(made, room, message, values);
    end_whole(made, room);
    if (hint) {
        strcat(made, "\n  ");
        strcat(made, hint);
    }
    make_showable(made); /* hints contain untrusted text, too */
    memcpy(text, made, sizeof text);
    driver_result = result;
    return status;
}

int fail(int status, const char *hint, const char *message, ...)
{
    va_list values;
    va_start(values, message);
    keep(status, 0, hint, message, values);
    va_end(values);
    return status;
}

int fail_with_result(int status, int result, const char *hint, const char *message, ...)
{
    va_list values;
    va_start(values, message);
    keep(status, result, hint, message, values);
    va_end(values);
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
