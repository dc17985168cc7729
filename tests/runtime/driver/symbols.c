/* cuGetProcAddress: names without suffix; of several signatures the newest that the caller knows. */
#include "state.h"

#include <stdio.h>
#include <string.h>

enum { FOUND, SYMBOL_NOT_FOUND, VERSION_NOT_SUFFICIENT };
enum { MOST_HIDDEN = 64 };

#define FUNCTION(symbol, name, since, needs) extern int symbol();
#include "functions.h"
#undef FUNCTION

static const struct row {
    const char *symbol, *name;
    int since;
    int (*function)();
} rows[] = {
#define FUNCTION(symbol, name, since, needs) {#symbol, #name, since, symbol},
#include "functions.h"
#undef FUNCTION
    /* A signature that exists between those above and is not offered. */
    {"cuCtxCreate_v3", "cuCtxCreate", 11040, NULL},
};

/* A binding looks everything up once, so this is a matter of the process, not of one test: all
 * functions there are, unless the environment gave a version. */
int symbols_version = 1 << 30;

static char hidden[MOST_HIDDEN][96];
static int hidden_count;

static int is_hidden(const struct row *row)
{
    for (int i = 0; i < hidden_count; i++)
        if (!strcmp(hidden[i], row->symbol) || !strcmp(hidden[i], row->name))
            return 1;
    return 0;
}

/* As if the driver had no such function. Callers that asked before keep what they got. */
int standin_hide(const char *symbol)
{
    if (hidden_count == MOST_HIDDEN)
        return OUT_OF_MEMORY;
    snprintf(hidden[hidden_count++], sizeof hidden[0], "%s", symbol);
    return CUDA_SUCCESS;
}

void unhide_symbols(void)
{
    hidden_count = 0;
}

static int look_up(const char *name, void **function, int version)
{
    const struct row *best = NULL;
    int status = SYMBOL_NOT_FOUND;
    for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
        const struct row *row = &rows[i];
        if (strcmp(row->name, name) || is_hidden(row) || row->since > symbols_version)
            continue;
        if (row->since > version)
            status = VERSION_NOT_SUFFICIENT;
        else if (!best || row->since > best->since)
            best = row;
    }
    *function = NULL;
    if (!best || !best->function)
        return status;
    *function = (void *)best->function;
    return FOUND;
}

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
    __attribute__((visibility("default")));
int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
    __attribute__((visibility("default")));

int cuGetProcAddress_v2(const char *name, void **function, int version, uint64_t flags, int *status)
{
    int code = enter(ID_cuGetProcAddress_v2);
    if (!code && (!name || !function || flags > 2))
        code = INVALID_VALUE;
    if (!code) {
        int found = look_up(name, function, version);
        if (status)
            *status = found;
        code = found == FOUND ? CUDA_SUCCESS : NOT_FOUND;
    }
    unlock_all(); /* not logged: a binding asks for hundreds at its first call */
    return code;
}

int cuGetProcAddress(const char *name, void **function, int version, uint64_t flags)
{
    return cuGetProcAddress_v2(name, function, version, flags, NULL);
}
