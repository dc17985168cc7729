#include "plan.h"

#include <stdio.h>
#include <string.h>

const char *numbers_text(char *text, size_t capacity, const char *brackets, const uint64_t *numbers,
                         size_t count)
{
    size_t at = (size_t)snprintf(text, capacity, "%c", brackets[0]);
    for (size_t i = 0; i < count && at + 32 < capacity; i++)
        at += (size_t)snprintf(text + at, capacity - at, i ? ", %lld" : "%lld",
                               (long long)numbers[i]);
    const char *comma = count == 1 && brackets[0] == '(' ? "," : "";
    snprintf(text + at, capacity - at, "%s%c", comma, brackets[1]);
    return text;
}
