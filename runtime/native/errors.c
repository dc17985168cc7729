#include "errors.h"

#include <stdarg.h>
#include <stdint.h>
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

/* ---- texts ---- */

void append(char *text, size_t capacity, const char *format, ...)
{
    size_t at = strlen(text);
    va_list values;
    va_start(values, format);
    vsnprintf(text + at, capacity - at, format, values);
    va_end(values);
}

size_t character(const unsigned char *at, size_t room)
{
    static const uint32_t least[] = {0, 0, 0x80, 0x800, 0x10000};
    size_t length = at[0] < 0x80         ? 1
                    : at[0] >> 5 == 6    ? 2
                    : at[0] >> 4 == 14   ? 3
                    : at[0] >> 3 == 30   ? 4
                                         : 0;
    if (length < 2)
        return length;
    if (length > room)
        return 0;
    uint32_t code = at[0] & (0x7fu >> length);
    for (size_t i = 1; i < length; i++) {
        if (at[i] >> 6 != 2)
            return 0;
        code = code << 6 | (at[i] & 0x3fu);
    }
    return code < least[length] || code > 0x10ffff || code >> 11 == 27 ? 0 : length;
}

void make_showable(char *text)
{
    unsigned char *at = (unsigned char *)text;
    size_t room = strlen(text);
    while (room) {
        size_t length = character(at, room);
        int is_control = length == 1   ? (*at < 0x20 && *at != '\n') || *at == 0x7f
                         : length == 2 ? at[0] == 0xc2 && at[1] < 0xa0
                                       : !length;
        if (is_control)
            memset(at, '?', length ? length : 1);
        at += length ? length : 1;
        room -= length ? length : 1;
    }
}
