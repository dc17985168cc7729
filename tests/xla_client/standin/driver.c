/* What XLA's CUDA client calls beyond the stand-in driver of tests/runtime/driver: pointers' many
 * attributes, host functions, plain launches, and virtual memory. Devices are not timed, nothing is
 * computed, and all memory is the host's. Signatures as in the CUDA Driver API reference 13. */
#define _GNU_SOURCE
#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { GRANULARITY = 2 << 20, MOST_HANDLES = 4096 };

API cuLaunchKernelEx(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra);
API cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUhandle library, const char *name);
API cuLibraryUnload(CUhandle library);
API cuPointerGetAttribute(void *value, int attribute, CUdeviceptr address);

API cuGetExportTable(const void **table, const void *id)
{
    (void)id;
    *table = NULL;
    return NOT_FOUND;
}

API cuModuleGetLoadingMode(int *mode)
{
    *mode = 2; /* lazy */
    return CUDA_SUCCESS;
}

API cuDeviceGetPCIBusId(char *text, int bytes, CUdevice device)
{
    snprintf(text, (size_t)bytes, "0000:%02x:00.0", device + 1);
    return CUDA_SUCCESS;
}

API cuDeviceCanAccessPeer(int *can, CUdevice device, CUdevice peer)
{
    *can = device != peer;
    return CUDA_SUCCESS;
}

API cuCtxEnablePeerAccess(CUhandle peer, unsigned flags)
{
    (void)peer, (void)flags;
    return CUDA_SUCCESS;
}

API cuCtxGetStreamPriorityRange(int *least, int *greatest)
{
    if (least)
        *least = 0;
    if (greatest)
        *greatest = -5;
    return CUDA_SUCCESS;
}

API cuLaunchHostFunc(CUhandle stream, void (*function)(void *), void *data)
{
    (void)stream; /* all work is over when a call returns */
    function(data);
    return CUDA_SUCCESS;
}

API cuLaunchKernel(CUhandle f, unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by,
                   unsigned bz, unsigned smem_bytes, CUhandle stream, void **parameters,
                   void **extra)
{
    CUlaunchConfig config = {
        .grid = {gx, gy, gz}, .block = {bx, by, bz}, .smem_bytes = smem_bytes, .stream = stream,
    };
    return cuLaunchKernelEx(&config, f, parameters, extra);
}

API cuModuleGetGlobal_v2(CUdeviceptr *address, size_t *bytes, CUhandle module, const char *name)
{
    return cuLibraryGetGlobal(address, bytes, module, name);
}

API cuModuleUnload(CUhandle module)
{
    return cuLibraryUnload(module);
}

/* Unknown memory has the attributes of no device, and is no error here. */
API cuPointerGetAttributes(unsigned count, int *attributes, void **values, CUdeviceptr address)
{
    enum { CONTEXT_OF = 1, MEMORY_TYPE = 2, SYNC = 6, IS_MANAGED = 8, ORDINAL = 9, MAPPED = 13 };
    for (unsigned i = 0; i < count; i++) {
        int attribute = attributes[i];
        if (!cuPointerGetAttribute(values[i], attribute, address))
            continue;
        if (attribute == MEMORY_TYPE || attribute == SYNC || attribute == IS_MANAGED ||
            attribute == ORDINAL || attribute == MAPPED)
            *(int *)values[i] = attribute == ORDINAL ? -2 : 0;
        else
            *(CUdeviceptr *)values[i] = 0;
    }
    return CUDA_SUCCESS;
}

/* Virtual memory. A physical allocation is a file in memory, so that two mappings share bytes. */
static struct {
    int file, device;
    size_t bytes;
} physical[MOST_HANDLES];
static CUhandle physical_count;

static int physical_memory(CUhandle *handle, size_t bytes, int device)
{
    lock_all();
    CUhandle number = physical_count < MOST_HANDLES ? physical_count++ : 0;
    unlock_all();
    int file = memfd_create("gpu", 0);
    if (file < 0 || ftruncate(file, (off_t)bytes))
        return OUT_OF_MEMORY;
    physical[number].file = file;
    physical[number].device = device;
    physical[number].bytes = bytes;
    *handle = number + 1;
    return CUDA_SUCCESS;
}

API cuMemGetAllocationGranularity(size_t *bytes, const void *properties, int option)
{
    (void)properties, (void)option;
    *bytes = GRANULARITY;
    return CUDA_SUCCESS;
}

API cuMulticastGetGranularity(size_t *bytes, const void *properties, int option)
{
    return cuMemGetAllocationGranularity(bytes, properties, option);
}

API cuMemCreate(CUhandle *handle, size_t bytes, const int *properties, uint64_t flags)
{
    (void)flags;
    return physical_memory(handle, bytes, properties[3]);
}

API cuMemAddressReserve(CUdeviceptr *address, size_t bytes, size_t alignment, CUdeviceptr wanted,
                        uint64_t flags)
{
    (void)alignment, (void)wanted, (void)flags;
    char *at = mmap(NULL, bytes + GRANULARITY, PROT_NONE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (at == MAP_FAILED)
        return OUT_OF_MEMORY;
    *address = ((CUdeviceptr)at + GRANULARITY - 1) / GRANULARITY * GRANULARITY;
    return CUDA_SUCCESS;
}

API cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUhandle handle, uint64_t flags)
{
    (void)flags;
    void *at = mmap((void *)address, bytes, PROT_READ | PROT_WRITE,
                    MAP_SHARED | MAP_FIXED | MAP_NORESERVE, physical[handle - 1].file,
                    (off_t)offset);
    if (at == MAP_FAILED)
        return OUT_OF_MEMORY;
    return standin_adopt(address, bytes, physical[handle - 1].device);
}

API cuMemUnmap(CUdeviceptr address, size_t bytes)
{
    mmap((void *)address, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_FIXED | MAP_NORESERVE,
         -1, 0);
    return standin_forget(address);
}

API cuMemRelease(CUhandle handle)
{
    (void)handle;
    return CUDA_SUCCESS;
}

API cuMemAddressFree(CUdeviceptr address, size_t bytes)
{
    (void)address, (void)bytes;
    return CUDA_SUCCESS;
}

API cuMemSetAccess(CUdeviceptr address, size_t bytes, const void *access, size_t count)
{
    (void)address, (void)bytes, (void)access, (void)count;
    return CUDA_SUCCESS;
}
