/* The log: one entry for each call, one record for each kernel that ran. */
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

static struct call *calls;
static size_t call_count, call_capacity;
static struct launch **launches;
static size_t launch_count, launch_capacity;
static uint64_t sequence;
static FILE *file;

uint64_t thread_number(void)
{
    static _Thread_local uint64_t number;
    if (!number)
        number = (uint64_t)syscall(SYS_gettid);
    return number;
}

static void *grown(void *list, size_t count, size_t *capacity, size_t bytes)
{
    if (count < *capacity)
        return list;
    *capacity = *capacity ? 2 * *capacity : 1024;
    void *larger = realloc(list, *capacity * bytes);
    if (!larger)
        abort();
    return larger;
}

void log_call(enum function function, int code, CUhandle stream, const uint64_t *values, int count)
{
    struct context *context = current_context();
    struct call call = {.sequence = sequence++, .thread = thread_number(), .stream = stream,
                        .function = (int)function, .code = code,
                        .device = context ? context->device : -1, .value_count = count};
    for (int i = 0; i < count && i < 6; i++)
        call.values[i] = values[i];
    calls = grown(calls, call_count, &call_capacity, sizeof *calls);
    calls[call_count++] = call;
    if (!file)
        return;
    fprintf(file, "%s %d stream=%llx", function_name(call.function), code,
            (unsigned long long)stream);
    for (int i = 0; i < count && i < 6; i++)
        fprintf(file, " %llx", (unsigned long long)values[i]);
    putc('\n', file);
    fflush(file);
}

/* A number that stands for bytes in the log: FNV-1a. */
uint64_t content_of(const void *bytes, size_t count)
{
    uint64_t number = 0xcbf29ce484222325ull;
    for (size_t i = 0; options.log && i < count; i++)
        number = (number ^ ((const unsigned char *)bytes)[i]) * 0x100000001b3ull;
    return number;
}

/* For processes that cannot be asked: every call and every launch, a line each, as it happens. */
void log_to(const char *name)
{
    if (file)
        fclose(file);
    file = name && *name ? fopen(name, "w") : NULL;
}

static void write_bytes(const void *bytes, size_t count)
{
    for (size_t i = 0; i < count; i++)
        fprintf(file, "%02x", ((const unsigned char *)bytes)[i]);
    putc(' ', file);
}

static void write_launch(const struct launch *launch)
{
    fprintf(file, "launch %s device=%d grid=%u,%u,%u block=%u,%u,%u smem=%u attributes=",
            launch->kernel, launch->device, launch->grid[0], launch->grid[1], launch->grid[2],
            launch->block[0], launch->block[1], launch->block[2], launch->smem_bytes);
    write_bytes(launch->attributes, launch->attribute_count * sizeof *launch->attributes);
    fputs("parameters=", file);
    write_bytes(launch->bytes, launch->byte_count);
    fprintf(file, "failed=%d\n", launch->code);
    fflush(file);
}

/* A copy whose pointers lead into itself; the record is one block of memory. */
struct launch *copy_launch(const struct launch *launch)
{
    const char *end = (const char *)launch->bytes + launch->byte_count, *start = (const char *)launch;
    struct launch *copy = malloc((size_t)(end - start));
    if (!copy)
        abort();
    memcpy(copy, launch, (size_t)(end - start));
    char *base = (char *)copy;
    copy->kernel = base + (launch->kernel - start);
    copy->offsets = (uint32_t *)(base + ((const char *)launch->offsets - start));
    copy->sizes = (uint32_t *)(base + ((const char *)launch->sizes - start));
    copy->attributes = (CUlaunchAttribute *)(base + ((const char *)launch->attributes - start));
    copy->bytes = (unsigned char *)base + ((const char *)launch->bytes - start);
    copy->sequence = sequence++;
    copy->thread = thread_number();
    return copy;
}

/* Takes the launch over. */
void log_launch(struct launch *launch, int code)
{
    launch->code = code;
    if (file)
        write_launch(launch);
    if (!options.log) {
        free(launch);
        return;
    }
    launches = grown(launches, launch_count, &launch_capacity, sizeof *launches);
    launches[launch_count++] = launch;
}

void clear_log(void)
{
    for (size_t i = 0; i < launch_count; i++)
        free(launches[i]);
    call_count = launch_count = 0;
}

void standin_clear_log(void)
{
    lock_all();
    clear_log();
    unlock_all();
}

uint64_t standin_call_count(void)
{
    return call_count;
}

int standin_call(uint64_t index, struct call *call)
{
    lock_all();
    int known = index < call_count;
    if (known)
        *call = calls[index];
    unlock_all();
    return known ? CUDA_SUCCESS : INVALID_VALUE;
}

uint64_t standin_launch_count(void)
{
    return launch_count;
}

/* The pointers in `launch` are good until the log is cleared. */
int standin_launch(uint64_t index, struct launch *launch)
{
    lock_all();
    int known = index < launch_count;
    if (known)
        *launch = *launches[index];
    unlock_all();
    return known ? CUDA_SUCCESS : INVALID_VALUE;
}
