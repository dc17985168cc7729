/* A stand-in for libcudart.so.13 on top of the stand-in driver, so that a stock PyTorch has CUDA
 * tensors, streams, events and graphs on a machine without a GPU.
 *
 * Memory, streams, events and graphs are those of the driver; PyTorch's own kernels do nothing.
 * What is not defined here answers 0: `standin_torch.py` adds an empty function for each. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

typedef unsigned long long address;
typedef void *handle;
typedef int error;

/* The fields of `struct cudaDeviceProp` of CUDA 13 that PyTorch reads, at their places. */
enum {
    TOTAL_MEMORY = 288, SHARED_PER_BLOCK = 296, WARP_SIZE = 308, THREADS_PER_BLOCK = 320,
    MAJOR = 360, MINOR = 364, SM_COUNT = 384, BUS = 568, UNIFIED = 588, THREADS_PER_SM = 604,
    REGISTERS = 632, SHARED_OPTIN = 672, PROPERTIES = 1008,
};

/* `struct cudaPointerAttributes`. */
struct place {
    int type, device;
    const void *on_device, *on_host;
    long reserved[8];
};
typedef int (*anything)();

static anything driver(const char *name) {
    static int (*find)(const char *, void **, int, unsigned long long, int *);
    void *found = 0;
    int status;
    if (!find) {
        void *library = dlopen("libcuda.so.1", RTLD_NOW);
        if (!library || !(find = dlsym(library, "cuGetProcAddress_v2"))) abort();
    }
    if (find(name, &found, 12030, 0, &status) || !found) abort();
    return found;
}

#define CALL(name, ...) (driver(#name)(__VA_ARGS__))

static __thread int current;
static __thread int set;
static __thread error last;

static error keep(int code) {
    if (code) last = code;
    return code;
}

static int start(void) {
    static int started;
    if (!started) started = 1 + CALL(cuInit, 0);
    return started - 1;
}

/* As the runtime does: the primary context of the device becomes the thread's on first use. */
static int use(int device) {
    void *context;
    int code = start();
    if (!code) code = CALL(cuDevicePrimaryCtxRetain, &context, device);
    if (!code) code = CALL(cuCtxSetCurrent, context);
    if (!code) current = device, set = 1;
    return code;
}

static int ready(void) { return set ? 0 : use(current); }

#define DO(name, ...)                                              \
    do {                                                           \
        int code_ = ready();                                       \
        return keep(code_ ? code_ : CALL(name, __VA_ARGS__));      \
    } while (0)

error cudaGetDeviceCount(int *count) {
    int code = start();
    if (code) return keep(code);
    return keep(CALL(cuDeviceGetCount, count));
}
error cudaGetDevice(int *device) { *device = current; return 0; }
error cudaSetDevice(int device) { return keep(use(device)); }
error cudaDriverGetVersion(int *version) { return CALL(cuDriverGetVersion, version); }
error cudaRuntimeGetVersion(int *version) { *version = 13000; return 0; }
error cudaGetLastError(void) { error code = last; last = 0; return code; }
error cudaPeekAtLastError(void) { return last; }
const char *cudaGetErrorString(error code) {
    const char *text = 0;
    CALL(cuGetErrorString, code, &text);
    return text ? text : "unknown";
}
const char *cudaGetErrorName(error code) {
    const char *text = 0;
    CALL(cuGetErrorName, code, &text);
    return text ? text : "unknown";
}
error cudaDeviceGetAttribute(int *value, int attribute, int device) {
    return keep(CALL(cuDeviceGetAttribute, value, attribute, device));
}
error cudaGetDeviceProperties(char *found, int device) {
    int value = 0;
    memset(found, 0, PROPERTIES);
    CALL(cuDeviceGetName, found, 256, device);
    CALL(cuDeviceTotalMem, (size_t *)(found + TOTAL_MEMORY), device);
    CALL(cuDeviceGetAttribute, found + MAJOR, 75, device);
    CALL(cuDeviceGetAttribute, found + MINOR, 76, device);
    CALL(cuDeviceGetAttribute, found + SM_COUNT, 16, device);
    CALL(cuDeviceGetAttribute, &value, 97, device);
    *(size_t *)(found + SHARED_OPTIN) = value;
    *(size_t *)(found + SHARED_PER_BLOCK) = 49152;
    *(int *)(found + WARP_SIZE) = 32;
    *(int *)(found + THREADS_PER_BLOCK) = 1024;
    *(int *)(found + THREADS_PER_SM) = 2048;
    *(int *)(found + REGISTERS) = 65536;
    *(int *)(found + UNIFIED) = 1;
    *(int *)(found + BUS) = device;
    return 0;
}
error cudaDeviceSynchronize(void) { DO(cuCtxSynchronize); }
error cudaDeviceGetStreamPriorityRange(int *least, int *greatest) { *least = 0; *greatest = -5; return 0; }
error cudaDeviceCanAccessPeer(int *can, int one, int other) { *can = one != other; return 0; }

error cudaMalloc(void **pointer, size_t bytes) { DO(cuMemAlloc, (address *)pointer, bytes); }
error cudaFree(void *pointer) {
    if (!pointer) return keep(ready());
    DO(cuMemFree, (address)pointer);
}
error cudaMemGetInfo(size_t *unused, size_t *total) { DO(cuMemGetInfo, unused, total); }
error cudaMallocHost(void **pointer, size_t bytes) { DO(cuMemAllocHost, pointer, bytes); }
error cudaHostAlloc(void **pointer, size_t bytes, unsigned flags) { DO(cuMemHostAlloc, pointer, bytes, flags); }
error cudaFreeHost(void *pointer) { DO(cuMemFreeHost, pointer); }
error cudaPointerGetAttributes(struct place *found, const void *pointer) {
    int device = 0, code = CALL(cuPointerGetAttribute, &device, 9, (address)pointer);
    memset(found, 0, sizeof *found);
    found->type = code ? 0 : 2;
    found->device = code ? -2 : device;
    found->on_device = code ? 0 : pointer;
    return 0;
}

/* Everything is the host's memory, and the driver runs work when it is enqueued. */
static error copy(void *target, const void *source, size_t bytes, int kind, handle stream) {
    if (kind == 3)
        DO(cuMemcpyDtoDAsync, (address)target, (address)source, bytes, stream);
    if (kind == 1)
        DO(cuMemcpyHtoDAsync, (address)target, source, bytes, stream);
    if (kind == 2)
        DO(cuMemcpyDtoHAsync, target, (address)source, bytes, stream);
    DO(cuMemcpyAsync, (address)target, (address)source, bytes, stream);
}
error cudaMemcpyAsync(void *target, const void *source, size_t bytes, int kind, handle stream) {
    return copy(target, source, bytes, kind, stream);
}
error cudaMemcpy(void *target, const void *source, size_t bytes, int kind) {
    return copy(target, source, bytes, kind, 0);
}
error cudaMemsetAsync(void *target, int value, size_t bytes, handle stream) {
    DO(cuMemsetD8Async, (address)target, (unsigned char)value, bytes, stream);
}

error cudaStreamCreateWithPriority(handle *stream, unsigned flags, int priority) {
    DO(cuStreamCreateWithPriority, stream, flags, priority);
}
error cudaStreamCreateWithFlags(handle *stream, unsigned flags) { DO(cuStreamCreate, stream, flags); }
error cudaStreamDestroy(handle stream) { DO(cuStreamDestroy, stream); }
error cudaStreamSynchronize(handle stream) { DO(cuStreamSynchronize, stream); }
error cudaStreamQuery(handle stream) { DO(cuStreamQuery, stream); }
error cudaStreamWaitEvent(handle stream, handle event, unsigned flags) { DO(cuStreamWaitEvent, stream, event, flags); }
error cudaStreamIsCapturing(handle stream, int *status) { DO(cuStreamIsCapturing, stream, status); }
error cudaStreamBeginCapture(handle stream, int mode) { DO(cuStreamBeginCapture, stream, mode); }
error cudaStreamEndCapture(handle stream, handle *graph) { DO(cuStreamEndCapture, stream, graph); }
error cudaStreamGetCaptureInfo(handle stream, int *status,
                                     unsigned long long *id, handle *graph,
                                     const void **nodes, const void **edges,
                                     size_t *count) {
    DO(cuStreamGetCaptureInfo, stream, status, id, graph, nodes, edges, count);
}
error cudaThreadExchangeStreamCaptureMode(int *mode) { DO(cuThreadExchangeStreamCaptureMode, mode); }

error cudaGraphInstantiate(handle *made, handle graph, unsigned long long flags) {
    DO(cuGraphInstantiateWithFlags, made, graph, flags);
}
error cudaGraphInstantiateWithFlags(handle *made, handle graph, unsigned long long flags) {
    DO(cuGraphInstantiateWithFlags, made, graph, flags);
}
error cudaGraphLaunch(handle graph, handle stream) { DO(cuGraphLaunch, graph, stream); }
error cudaGraphDestroy(handle graph) { DO(cuGraphDestroy, graph); }
error cudaGraphExecDestroy(handle graph) { DO(cuGraphExecDestroy, graph); }
error cudaGraphGetNodes(handle graph, handle *nodes, size_t *count) { DO(cuGraphGetNodes, graph, nodes, count); }

error cudaEventCreateWithFlags(handle *event, unsigned flags) { DO(cuEventCreate, event, flags); }
error cudaEventCreate(handle *event) { DO(cuEventCreate, event, 0); }
error cudaEventRecord(handle event, handle stream) { DO(cuEventRecord, event, stream); }
error cudaEventRecordWithFlags(handle event, handle stream, unsigned flags) { DO(cuEventRecord, event, stream); }
error cudaEventQuery(handle event) { DO(cuEventQuery, event); }
error cudaEventSynchronize(handle event) { DO(cuEventSynchronize, event); }
error cudaEventDestroy(handle event) { DO(cuEventDestroy, event); }
error cudaEventElapsedTime(float *ms, handle one, handle other) { DO(cuEventElapsedTime, ms, one, other); }
