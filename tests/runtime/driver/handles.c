/* Handles are numbers that are never given twice, so that a stale one is recognised. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

#define FIRST 0x7e5700000000ull

struct entry {
    enum kind kind, was;
    void *object;
};

static struct entry *entries;
static size_t entry_count, capacity;

CUhandle add_handle(enum kind kind, void *object)
{
    if (entry_count == capacity) {
        capacity = capacity ? 2 * capacity : 1024;
        entries = realloc(entries, capacity * sizeof *entries);
        if (!entries)
            abort();
    }
    entries[entry_count] = (struct entry){kind, kind, object};
    return FIRST + 16 * entry_count++;
}

/* The same, with a number that was given before where there is one: drivers do that. */
CUhandle add_handle_again(enum kind kind, void *object)
{
    for (size_t i = entry_count; i-- > 0;)
        if (entries[i].kind == KIND_NONE && entries[i].was == kind) {
            entries[i] = (struct entry){kind, kind, object};
            return FIRST + 16 * i;
        }
    return add_handle(kind, object);
}

static struct entry *entry_of(CUhandle handle)
{
    size_t index = (handle - FIRST) / 16;
    if (handle < FIRST || handle % 16 || index >= entry_count)
        return NULL;
    return &entries[index];
}

void *find_handle(enum kind kind, CUhandle handle)
{
    struct entry *entry = entry_of(handle);
    return entry && entry->kind == kind ? entry->object : NULL;
}

/* Return the next live object of a kind; `*position` starts at 0. */
void *next_handle(enum kind kind, size_t *position)
{
    while (*position < entry_count) {
        struct entry *entry = &entries[(*position)++];
        if (entry->kind == kind)
            return entry->object;
    }
    return NULL;
}

void drop_handle(CUhandle handle)
{
    struct entry *entry = entry_of(handle);
    if (entry)
        *entry = (struct entry){KIND_NONE, entry->was, NULL};
}

/* Objects stay allocated: another thread may be inside a kernel that uses one. */
void drop_all_handles(void)
{
    for (size_t i = 0; i < entry_count; i++)
        entries[i] = (struct entry){KIND_NONE, KIND_NONE, NULL};
}
