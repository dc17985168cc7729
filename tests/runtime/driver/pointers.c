/* What the driver tells about an address; host memory that devices may use; memory pools. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

enum { CONTEXT_OF = 1, MEMORY_TYPE, DEVICE_POINTER, HOST_POINTER, SYNC_MEMOPS = 6, BUFFER_ID, IS_MANAGED,
       DEVICE_ORDINAL, RANGE_START_ADDR = 11, RANGE_SIZE, MAPPED, LAST_ATTRIBUTE = 22 };
enum { TYPE_HOST = 1, TYPE_DEVICE = 2 };

static uint64_t thresholds[MAX_DEVICES]; /* CU_MEMPOOL_ATTR_RELEASE_THRESHOLD */
static CUhandle pools[MAX_DEVICES];

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

/* Unlike the single one it succeeds for any address, and answers 0 where nothing is known. */
API cuPointerGetAttributes(unsigned count, const int *attributes, void **data, CUdeviceptr address)
{
    int code = enter(ID_cuPointerGetAttributes);
    struct allocation *memory = find_allocation(address);
    if (!code && (!attributes || !data))
        code = INVALID_VALUE;
    for (unsigned i = 0; !code && i < count; i++) {
        uint64_t value = 0;
        if (attributes[i] < 1 || attributes[i] > LAST_ATTRIBUTE)
            code = INVALID_VALUE;
        else if (memory)
            read_attribute(attributes[i], memory, address, &value);
        else if (attributes[i] == DEVICE_ORDINAL)
            value = (uint64_t)-2; /* CU_DEVICE_INVALID */
        if (!code)
            memcpy(data[i], &value, attribute_bytes(attributes[i]));
    }
    return leave_with(ID_cuPointerGetAttributes, code, 0, &address, 1);
}

API cuPointerSetAttribute(const void *value, int attribute, CUdeviceptr address)
{
    int code = enter(ID_cuPointerSetAttribute);
    if (!code && (!value || attribute != SYNC_MEMOPS || !find_allocation(address)))
        code = INVALID_VALUE;
    return leave(ID_cuPointerSetAttribute, code);
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

static int release_host(uint64_t address, int origin, int unknown)
{
    struct allocation *memory = find_allocation(address);
    if (!memory || memory->address != address || (int)memory->origin != origin)
        return unknown;
    release(memory);
    return CUDA_SUCCESS;
}

API cuMemFreeHost(void *memory)
{
    int code = enter(ID_cuMemFreeHost);
    return leave(ID_cuMemFreeHost, code ? code : release_host((uint64_t)memory, PINNED, INVALID_VALUE));
}

API cuMemHostRegister_v2(void *memory, size_t bytes, unsigned flags)
{
    int code = enter(ID_cuMemHostRegister_v2);
    if (!code && (!memory || !bytes || flags > 15))
        code = INVALID_VALUE;
    if (!code)
        code = register_host((uint64_t)memory, bytes, current_context());
    return leave(ID_cuMemHostRegister_v2, code);
}

API cuMemHostUnregister(void *memory)
{
    int code = enter(ID_cuMemHostUnregister);
    if (!code)
        code = release_host((uint64_t)memory, REGISTERED, HOST_MEMORY_NOT_REGISTERED);
    return leave(ID_cuMemHostUnregister, code);
}

API cuMemHostGetDevicePointer_v2(CUdeviceptr *address, void *memory, unsigned flags)
{
    int code = enter(ID_cuMemHostGetDevicePointer_v2);
    struct allocation *known = find_allocation((uint64_t)memory);
    if (!code && (!address || flags || !known || known->device >= 0))
        code = INVALID_VALUE;
    if (!code)
        *address = (uint64_t)memory;
    return leave(ID_cuMemHostGetDevicePointer_v2, code);
}

void reset_pools(void)
{
    memset(thresholds, 0, sizeof thresholds);
    memset(pools, 0, sizeof pools);
}

static int get_pool(CUhandle *pool, CUdevice device)
{
    if (!pool)
        return INVALID_VALUE;
    if (device < 0 || device >= device_count)
        return INVALID_DEVICE;
    if (!pools[device])
        pools[device] = add_handle(KIND_POOL, &devices[device]);
    *pool = pools[device];
    return CUDA_SUCCESS;
}

API cuDeviceGetDefaultMemPool(CUhandle *pool, CUdevice device)
{
    int code = enter(ID_cuDeviceGetDefaultMemPool);
    return leave(ID_cuDeviceGetDefaultMemPool, code ? code : get_pool(pool, device));
}

API cuDeviceGetMemPool(CUhandle *pool, CUdevice device)
{
    int code = enter(ID_cuDeviceGetMemPool);
    return leave(ID_cuDeviceGetMemPool, code ? code : get_pool(pool, device));
}

/* Attributes 1 to 3 are switches, 4 to 8 numbers of 64 bits; of these only 4 is kept. */
API cuMemPoolSetAttribute(CUhandle pool, int attribute, void *value)
{
    int code = enter(ID_cuMemPoolSetAttribute);
    struct device *device = find_handle(KIND_POOL, pool);
    if (!code && (!device || !value || attribute < 1 || attribute > 8))
        code = INVALID_VALUE;
    if (!code && attribute == 4)
        memcpy(&thresholds[device - devices], value, 8);
    return leave(ID_cuMemPoolSetAttribute, code);
}

API cuMemPoolGetAttribute(CUhandle pool, int attribute, void *value)
{
    int code = enter(ID_cuMemPoolGetAttribute);
    struct device *device = find_handle(KIND_POOL, pool);
    if (!code && (!device || !value || attribute < 1 || attribute > 8))
        code = INVALID_VALUE;
    if (!code && attribute <= 3)
        *(int *)value = 1;
    if (!code && attribute > 3)
        *(uint64_t *)value = attribute == 4 ? thresholds[device - devices] : device->used_bytes;
    return leave(ID_cuMemPoolGetAttribute, code);
}

API cuMemPoolTrimTo(CUhandle pool, size_t bytes)
{
    (void)bytes;
    int code = enter(ID_cuMemPoolTrimTo);
    if (!code && !find_handle(KIND_POOL, pool))
        code = INVALID_VALUE;
    return leave(ID_cuMemPoolTrimTo, code);
}
