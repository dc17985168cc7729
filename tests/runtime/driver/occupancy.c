/* cuOccupancy…: how much of a device a launch takes. */
#include "state.h"

#include <string.h>

static struct kernel *kernel_of(CUhandle handle)
{
    struct function_object *function = find_handle(KIND_FUNCTION, handle);
    return function ? function->kernel : find_handle(KIND_KERNEL, handle);
}

API cuOccupancyMaxActiveBlocksPerMultiprocessor(int *blocks, CUhandle handle, int threads, size_t smem)
{
    int code = enter(ID_cuOccupancyMaxActiveBlocksPerMultiprocessor);
    struct kernel *kernel = kernel_of(handle);
    if (!code)
        code = !kernel ? INVALID_HANDLE : !blocks || threads <= 0 ? INVALID_VALUE : CUDA_SUCCESS;
    if (!code)
        *blocks = resident_blocks(kernel, current_context()->device, (unsigned)threads, smem);
    return leave(ID_cuOccupancyMaxActiveBlocksPerMultiprocessor, code);
}

static int active_clusters(const CUlaunchConfig *config, struct kernel *kernel, unsigned size)
{
    int device = current_context()->device;
    unsigned threads = config->block[0] * config->block[1] * config->block[2];
    int blocks = resident_blocks(kernel, device, threads, config->smem_bytes);
    return blocks * devices[device].sms / (int)size;
}

API cuOccupancyMaxActiveClusters(int *clusters, CUhandle handle, const CUlaunchConfig *config)
{
    unsigned cluster[3];
    int code = enter(ID_cuOccupancyMaxActiveClusters);
    struct kernel *kernel = kernel_of(handle);
    if (!code)
        code = !kernel ? INVALID_HANDLE : !clusters || !config ? INVALID_VALUE : CUDA_SUCCESS;
    if (!code)
        code = check_limits(config, kernel, current_context()->device, cluster);
    if (!code) {
        unsigned size = cluster[0] ? cluster[0] * cluster[1] * cluster[2] : 1;
        *clusters = active_clusters(config, kernel, size);
    }
    uint64_t values[] = {handle, 0, 0};
    if (config) {
        values[1] = content_of(config, offsetof(CUlaunchConfig, attributes));
        values[2] = content_of(config->attributes,
                               config->attribute_count * sizeof *config->attributes);
    }
    return leave_with(ID_cuOccupancyMaxActiveClusters, code, 0, values, 3);
}

API cuOccupancyMaxPotentialClusterSize(int *size, CUhandle handle, const CUlaunchConfig *config)
{
    unsigned cluster[3];
    int code = enter(ID_cuOccupancyMaxPotentialClusterSize);
    struct kernel *kernel = kernel_of(handle);
    if (!code)
        code = !kernel ? INVALID_HANDLE : !size || !config ? INVALID_VALUE : CUDA_SUCCESS;
    if (!code) {
        CUlaunchConfig alone = *config;
        alone.attribute_count = 0;
        code = check_limits(&alone, kernel, current_context()->device, cluster);
    }
    if (!code) {
        int device = current_context()->device;
        int most = kernel->non_portable[device] ? devices[device].max_cluster : 8;
        if (most > devices[device].max_cluster)
            most = devices[device].max_cluster;
        while (most > 1 && !active_clusters(config, kernel, (unsigned)most))
            most /= 2;
        *size = most;
    }
    return leave(ID_cuOccupancyMaxPotentialClusterSize, code);
}
