/* Device memory: host memory in a table of allocations, sorted by address. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { GRAIN = 512, MOST_POISON = 64 << 20 };

static struct allocation **table; /* sorted by address, without overlaps */
static size_t count, capacity;
static uint64_t next_number = 1;

/* Index of the first allocation that starts behind `address`. */
static size_t behind(uint64_t address)
{
    size_t low = 0, high = count;
    while (low < high) {
        size_t middle = (low + high) / 2;
        if (table[middle]->address <= address)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

struct allocation *find_allocation(uint64_t address)
{
    size_t index = behind(address);
    if (!index)
        return NULL;
    struct allocation *candidate = table[index - 1];
    return address - candidate->address < candidate->bytes ? candidate : NULL;
}

static void insert(struct allocation *allocation)
{
    if (count == capacity) {
        capacity = capacity ? 2 * capacity : 256;
        table = realloc(table, capacity * sizeof *table);
        if (!table)
            abort();
    }
    size_t index = behind(allocation->address);
    memmove(table + index + 1, table + index, (count - index) * sizeof *table);
    table[index] = allocation;
    count++;
}

static struct allocation *describe(uint64_t address, uint64_t bytes, int device, int origin,
                                   struct context *context)
{
    struct allocation *allocation = calloc(1, sizeof *allocation);
    if (!allocation)
        abort();
    allocation->address = address;
    allocation->bytes = bytes;
    allocation->device = device;
    allocation->origin = origin;
    allocation->context = context;
    allocation->number = next_number++;
    return allocation;
}

static uint64_t charged(uint64_t bytes)
{
    return (bytes + GRAIN - 1) / GRAIN * GRAIN;
}

static void poison(uint64_t address, uint64_t bytes, int pattern)
{
    memset((void *)address, pattern, bytes < MOST_POISON ? bytes : MOST_POISON);
}

/* Give memory of the context's device, or host memory for all devices where origin is PINNED. */
int allocate(struct context *context, size_t bytes, int origin, uint64_t *address)
{
    struct device *device = &devices[context->device];
    if (origin != PINNED && charged(bytes) > device->memory_bytes - device->used_bytes)
        return OUT_OF_MEMORY;
    void *memory = NULL;
    if (bytes > UINT64_MAX / 2 || posix_memalign(&memory, GRAIN, charged(bytes)))
        return OUT_OF_MEMORY;
    *address = (uint64_t)memory;
    poison(*address, bytes, 0xa5);
    if (origin != PINNED)
        device->used_bytes += charged(bytes);
    insert(describe(*address, bytes, origin == PINNED ? -1 : context->device, origin, context));
    return CUDA_SUCCESS;
}

static int owned(const struct allocation *allocation)
{
    return allocation->origin != ADOPTED;
}

void release(struct allocation *allocation)
{
    size_t index = behind(allocation->address) - 1;
    memmove(table + index, table + index + 1, (count - index - 1) * sizeof *table);
    count--;
    if (owned(allocation)) {
        poison(allocation->address, allocation->bytes, 0xdd);
        if (allocation->device >= 0)
            devices[allocation->device].used_bytes -= charged(allocation->bytes);
        free((void *)allocation->address);
    }
    free(allocation);
}

void release_context_memory(struct context *context)
{
    for (size_t i = count; i-- > 0;)
        if (table[i]->context == context)
            release(table[i]);
}

void reset_memory(void)
{
    while (count)
        release(table[count - 1]);
}

/* May a kernel of the context use these bytes? They must lie in one live allocation. */
int usable(struct context *context, uint64_t address, uint64_t bytes)
{
    const struct allocation *allocation = find_allocation(address);
    if (!allocation || bytes > allocation->bytes - (address - allocation->address))
        return 0;
    return allocation->device < 0 || allocation->device == context->device;
}

/* A kernel reaches the memory of its own context: that of another one of the same device lies in
 * another address space. Memory of a pool belongs to its device, not to a context. */
int usable_by_kernel(struct context *context, uint64_t address, uint64_t bytes)
{
    const struct allocation *allocation = find_allocation(address);
    return usable(context, address, bytes) &&
           (allocation->origin != OWN || allocation->device != context->device ||
            allocation->context == context);
}

/* Host memory comes and goes unseen, so what was adopted earlier gives way to what is adopted now. */
static int make_room(uint64_t address, uint64_t bytes)
{
    for (size_t i = behind(address + bytes - 1); i-- > 0;) {
        struct allocation *other = table[i];
        if (other->address + other->bytes <= address)
            break;
        if (owned(other))
            return 0;
        release(other);
    }
    return 1;
}

API cuMemAlloc_v2(CUdeviceptr *address, size_t bytes)
{
    int code = enter(ID_cuMemAlloc_v2);
    if (!code)
        code = !address || !bytes ? INVALID_VALUE : allocate(current_context(), bytes, OWN, address);
    uint64_t values[] = {bytes, code ? 0 : *address};
    return leave_with(ID_cuMemAlloc_v2, code, 0, values, 2);
}

/* Freeing takes the address that allocating gave, no other. */
static int release_at(uint64_t address)
{
    struct allocation *allocation = find_allocation(address);
    if (!allocation || allocation->address != address || allocation->device < 0 ||
        !(allocation->origin == OWN || allocation->origin == OWN_ASYNC))
        return INVALID_VALUE;
    release(allocation);
    return CUDA_SUCCESS;
}

API cuMemFree_v2(CUdeviceptr address)
{
    int code = enter(ID_cuMemFree_v2);
    if (!code && address)
        code = release_at(address);
    if (!code)
        code = surface(current_context());
    return leave_with(ID_cuMemFree_v2, code, 0, &address, 1);
}

static int allocate_async(CUdeviceptr *address, size_t bytes, CUhandle handle)
{
    struct stream *stream = NULL;
    struct context *context;
    int code = check_stream(handle, &stream, &context);
    if (!code && (!address || !bytes))
        code = INVALID_VALUE;
    if (!code && stream && stream->capture == CAPTURE_INVALIDATED)
        code = STREAM_CAPTURE_INVALIDATED;
    /* A graph has its memory for as long as there is a graph; here that is until the reset. */
    int origin = stream && stream->capture ? OWN_GRAPH : OWN_ASYNC;
    return code ? code : allocate(context, bytes, origin, address);
}

API cuMemAllocAsync(CUdeviceptr *address, size_t bytes, CUhandle stream)
{
    int code = enter(ID_cuMemAllocAsync);
    if (!code)
        code = allocate_async(address, bytes, stream);
    uint64_t values[] = {bytes, code ? 0 : *address};
    return leave_with(ID_cuMemAllocAsync, code, stream, values, 2);
}

/* During a capture only memory of the same graph can be freed, which ends with the graph. */
static int release_async(uint64_t address, CUhandle handle)
{
    struct stream *stream;
    struct context *context;
    int code = check_stream(handle, &stream, &context);
    if (code || !stream || !stream->capture)
        return code ? code : release_at(address);
    struct allocation *allocation = find_allocation(address);
    int own = allocation && allocation->address == address && allocation->origin == OWN_GRAPH;
    return own ? CUDA_SUCCESS : INVALID_VALUE;
}

API cuMemFreeAsync(CUdeviceptr address, CUhandle handle)
{
    int code = enter(ID_cuMemFreeAsync);
    if (!code)
        code = release_async(address, handle);
    return leave_with(ID_cuMemFreeAsync, code, handle, &address, 1);
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total_bytes)
{
    int code = enter(ID_cuMemGetInfo_v2);
    if (!code && (!free_bytes || !total_bytes))
        code = INVALID_VALUE;
    if (!code) {
        const struct device *device = &devices[current_context()->device];
        *total_bytes = device->memory_bytes;
        *free_bytes = device->memory_bytes - device->used_bytes;
    }
    return leave(ID_cuMemGetInfo_v2, code);
}

/* Let host memory that is not ours be memory of a device (-1: of all devices). */
int standin_adopt(uint64_t address, uint64_t bytes, int device)
{
    int code = CUDA_SUCCESS;
    lock_all();
    if (!address || !bytes || device >= device_count || !make_room(address, bytes))
        code = INVALID_VALUE;
    else
        insert(describe(address, bytes, device, ADOPTED, NULL));
    unlock_all();
    return code;
}

int standin_forget(uint64_t address)
{
    lock_all();
    struct allocation *known = find_allocation(address);
    int code = known && known->origin == ADOPTED && known->address == address ? 0 : INVALID_VALUE;
    if (!code)
        release(known);
    unlock_all();
    return code;
}

int standin_allocation(uint64_t address, uint64_t *start, uint64_t *bytes, int *device)
{
    lock_all();
    struct allocation *known = find_allocation(address);
    if (known) {
        *start = known->address;
        *bytes = known->bytes;
        *device = known->device;
    }
    unlock_all();
    return known ? CUDA_SUCCESS : INVALID_VALUE;
}

/* Count the allocations that the program under test holds on a device. */
uint64_t standin_live(int device, uint64_t *bytes)
{
    uint64_t found = 0;
    *bytes = 0;
    lock_all();
    for (size_t i = 0; i < count; i++)
        if (table[i]->device == device && (table[i]->origin == OWN || table[i]->origin == OWN_ASYNC)) {
            found++;
            *bytes += table[i]->bytes;
        }
    unlock_all();
    return found;
}
