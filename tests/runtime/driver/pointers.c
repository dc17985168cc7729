/* What the driver tells about an address; host memory that devices may use. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { CONTEXT_OF = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, SYNC_MEMOPS = 6, BUFFER_ID, IS_MANAGED,
       DEVICE_ORDINAL, RANGE_START_ADDR = 11, RANGE_SIZE, MAPPED, LAST_ATTRIBUTE = 22 };
enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

static size_t attribute_bytes(int attribute)
{
    switch (attribute) {
    case CONTEXT_OF: case DEVICE_POINTER: case HOST_POINTER: case BUFFER_ID: case RANGE_START_ADDR:
    case RANGE_SIZE: return 8;
    default: return 4;
    }
}

static int read_attribute(int attribute, const struct allocation *memory, uint64_t address, uint64_t *value)
{
    int host = memory->device < 0;
    switch (attribute) {
    case CONTEXT_OF: /* memory of a pool is of no context */
        *value = memory->context && memory->origin != OWN_ASYNC ? memory->context->handle : 0;
        break;
    case MEMORY_TYPE: *value = host ? TYPE_HOST : TYPE_DEVICE; break;
    case DEVICE_POINTER: *value = address; break;
    case HOST_POINTER:
        if (!host)
            return INVALID_VALUE;
        *value = address;
        break;
    case BUFFER_ID: *value = memory->number; break;
    case DEVICE_ORDINAL: *value = host ? (uint64_t)(memory->context ? memory->context->device : 0)
                                       : (uint64_t)memory->device; break;
    case RANGE_START_ADDR: *value = memory->address; break;
    case RANGE_SIZE: *value = memory->bytes; break;
    case MAPPED: *value = 1; break;
    default:
        if (attribute < 1 || attribute > LAST_ATTRIBUTE)
            return INVALID_VALUE;
        *value = 0;
    }
    return CUDA_SUCCESS;
}

API cuPointerGetAttribute(void *data, int attribute, CUdeviceptr address)
{
    uint64_t value = 0;
    int code = enter(ID_cuPointerGetAttribute);
    struct allocation *memory = find_allocation(address);
    if (!code)
        code = data && memory ? read_attribute(attribute, memory, address, &value) : INVALID_VALUE;
    if (!code)
        memcpy(data, &value, attribute_bytes(attribute));
    return leave_with(ID_cuPointerGetAttribute, code, 0, &address, 1);
}

API cuMemGetAddressRange_v2(CUdeviceptr *start, size_t *bytes, CUdeviceptr address)
{
    int code = enter(ID_cuMemGetAddressRange_v2);
    struct allocation *memory = find_allocation(address);
    if (!code && !memory)
        code = NOT_FOUND;
    if (!code && start)
        *start = memory->address;
    if (!code && bytes)
        *bytes = memory->bytes;
    return leave(ID_cuMemGetAddressRange_v2, code);
}

static int allocate_host(void **memory, size_t bytes)
{
    uint64_t address;
    int code = memory && bytes ? allocate(current_context(), bytes, PINNED, &address) : INVALID_VALUE;
    if (!code)
        *memory = (void *)address;
    return code;
}

API cuMemAllocHost_v2(void **memory, size_t bytes)
{
    int code = enter(ID_cuMemAllocHost_v2);
    return leave(ID_cuMemAllocHost_v2, code ? code : allocate_host(memory, bytes));
}

API cuMemHostAlloc(void **memory, size_t bytes, unsigned flags)
{
    int code = enter(ID_cuMemHostAlloc);
    if (!code && flags > 7)
        code = INVALID_VALUE;
    return leave(ID_cuMemHostAlloc, code ? code : allocate_host(memory, bytes));
}

static int release_host(uint64_t address)
{
    struct allocation *memory = find_allocation(address);
    if (!memory || memory->address != address || memory->origin != PINNED)
        return INVALID_VALUE;
    release(memory);
    return CUDA_SUCCESS;
}

API cuMemFreeHost(void *memory)
{
    int code = enter(ID_cuMemFreeHost);
    return leave(ID_cuMemFreeHost, code ? code : release_host((uint64_t)memory));
}
