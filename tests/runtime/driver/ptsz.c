/* The variants for programs compiled with a default stream per thread: stream 0 is that one. */
#include "state.h"

static CUhandle own(CUhandle stream)
{
    return stream ? stream : STREAM_PER_THREAD;
}

#define LAST(symbol, parameters, ...)      \
    extern int symbol parameters;          \
    API symbol##_ptsz parameters;          \
    API symbol##_ptsz parameters           \
    {                                      \
        return symbol(__VA_ARGS__);        \
    }

LAST(cuMemAllocAsync, (CUdeviceptr *address, size_t bytes, CUhandle stream), address, bytes, own(stream))
LAST(cuMemFreeAsync, (CUdeviceptr address, CUhandle stream), address, own(stream))
LAST(cuMemcpyAsync, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUhandle stream), target, source,
     bytes, own(stream))
LAST(cuMemcpyHtoDAsync_v2, (CUdeviceptr target, const void *source, size_t bytes, CUhandle stream), target,
     source, bytes, own(stream))
LAST(cuMemcpyDtoHAsync_v2, (void *target, CUdeviceptr source, size_t bytes, CUhandle stream), target, source,
     bytes, own(stream))
LAST(cuMemcpyDtoDAsync_v2, (CUdeviceptr target, CUdeviceptr source, size_t bytes, CUhandle stream), target,
     source, bytes, own(stream))
LAST(cuMemsetD8Async, (CUdeviceptr target, unsigned char value, size_t count, CUhandle stream), target, value,
     count, own(stream))
LAST(cuMemsetD16Async, (CUdeviceptr target, unsigned short value, size_t count, CUhandle stream), target,
     value, count, own(stream))
LAST(cuMemsetD32Async, (CUdeviceptr target, unsigned value, size_t count, CUhandle stream), target, value,
     count, own(stream))
LAST(cuStreamSynchronize, (CUhandle stream), own(stream))
LAST(cuStreamQuery, (CUhandle stream), own(stream))
LAST(cuStreamWaitEvent, (CUhandle stream, CUhandle event, unsigned flags), own(stream), event, flags)
LAST(cuStreamIsCapturing, (CUhandle stream, int *status), own(stream), status)
LAST(cuStreamBeginCapture_v2, (CUhandle stream, int mode), own(stream), mode)
LAST(cuStreamEndCapture, (CUhandle stream, CUhandle *graph), own(stream), graph)
LAST(cuStreamGetCtx, (CUhandle stream, CUhandle *context), own(stream), context)
LAST(cuEventRecord, (CUhandle event, CUhandle stream), event, own(stream))
LAST(cuEventRecordWithFlags, (CUhandle event, CUhandle stream, unsigned flags), event, own(stream), flags)
LAST(cuGraphLaunch, (CUhandle exec, CUhandle stream), exec, own(stream))
LAST(cuLaunchHostFunc, (CUhandle stream, void (*function)(void *), void *data), own(stream), function, data)
LAST(cuLaunchKernel,
     (CUhandle f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
      unsigned block_z, unsigned smem_bytes, CUhandle stream, void **parameters, void **extra),
     f, grid_x, grid_y, grid_z, block_x, block_y, block_z, smem_bytes, own(stream), parameters, extra)

extern int cuLaunchKernelEx(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra);

API cuLaunchKernelEx_ptsz(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra)
{
    if (!config)
        return cuLaunchKernelEx(config, f, parameters, extra);
    CUlaunchConfig own_config = *config;
    own_config.stream = own(config->stream);
    return cuLaunchKernelEx(&own_config, f, parameters, extra);
}
