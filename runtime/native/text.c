#include "text.h"

#include "plan.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *sizes_text(char *text, size_t capacity, const uint32_t *sizes, size_t count)
{
    snprintf(text, capacity, "[");
    for (size_t i = 0; i < count && i < MOST_SHOWN; i++)
        append(text, capacity, i ? ", %u" : "%u", sizes[i]);
    append(text, capacity, "]");
    return text;
}

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
