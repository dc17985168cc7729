/* Copies and fills. The driver knows every address, so a wrong one is refused at once. */
#include "state.h"

#include <stdlib.h>

enum { TO_DEVICE = 1, FROM_DEVICE = 2, EITHER = 4, HASHED = 1 << 20 };

static int good_range(struct context *context, uint64_t address, uint64_t bytes, int device_memory)
{
    if (device_memory)
        return usable(context, address, bytes);
    return address != 0;
}

/* `ends` says which addresses must be of the device; EITHER: whatever the table knows them as. */
static int check_copy(struct context *context, uint64_t target, uint64_t source, size_t bytes, int ends)
{
    int target_device = ends & EITHER ? find_allocation(target) != NULL : ends & TO_DEVICE;
    int source_device = ends & EITHER ? find_allocation(source) != NULL : ends & FROM_DEVICE;
    return good_range(context, target, bytes, target_device) &&
                   good_range(context, source, bytes, source_device)
               ? CUDA_SUCCESS
               : INVALID_VALUE;
}

static int copy(CUhandle handle, uint64_t target, uint64_t source, size_t bytes, int ends)
{
    struct stream *stream;
    struct context *context;
    int code = check_stream(handle, &stream, &context);
    if (!code && bytes)
        code = check_copy(context, target, source, bytes, ends);
    if (code || !bytes)
        return code;
    struct operation *operation = calloc(1, sizeof *operation);
    operation->what = RUN_COPY;
    operation->target = target;
    operation->source = source;
    operation->bytes = bytes;
    return submit(stream, context, operation);
}

/* A copy that the caller waits for tells what went wrong before. */
static int copy_and_wait(uint64_t target, uint64_t source, size_t bytes, int ends)
{
    int code = copy(0, target, source, bytes, ends);
    if (!code)
        end_past(past_of(NULL, current_context()));
    return code ? code : surface(current_context());
}

#define SYNCHRONOUS(symbol, target_type, source_type, ends)                          \
    API symbol(target_type target, source_type source, size_t bytes)                 \
    {                                                                                \
        int code = enter(ID_##symbol);                                               \
        uint64_t values[] = {(uint64_t)target, (uint64_t)source, bytes};             \
        if (!code)                                                                   \
            code = copy_and_wait(values[0], values[1], bytes, ends);                 \
        return leave_with(ID_##symbol, code, 0, values, 3);                          \
    }

#define ASYNCHRONOUS(symbol, target_type, source_type, ends)                         \
    API symbol(target_type target, source_type source, size_t bytes, CUhandle stream) \
    {                                                                                \
        int code = enter(ID_##symbol);                                               \
        uint64_t values[] = {(uint64_t)target, (uint64_t)source, bytes, 0};          \
        if (!code)                                                                   \
            code = copy(stream, values[0], values[1], bytes, ends);                  \
        if (!code && (ends) == TO_DEVICE)                                            \
            values[3] = content_of((const void *)source, bytes < HASHED ? bytes : HASHED);\
        return leave_with(ID_##symbol, code, stream, values, (ends) == TO_DEVICE ? 4 : 3);\
    }

SYNCHRONOUS(cuMemcpyHtoD_v2, CUdeviceptr, const void *, TO_DEVICE)
SYNCHRONOUS(cuMemcpyDtoH_v2, void *, CUdeviceptr, FROM_DEVICE)
ASYNCHRONOUS(cuMemcpyAsync, CUdeviceptr, CUdeviceptr, EITHER)
ASYNCHRONOUS(cuMemcpyHtoDAsync_v2, CUdeviceptr, const void *, TO_DEVICE)
ASYNCHRONOUS(cuMemcpyDtoHAsync_v2, void *, CUdeviceptr, FROM_DEVICE)
ASYNCHRONOUS(cuMemcpyDtoDAsync_v2, CUdeviceptr, CUdeviceptr, TO_DEVICE | FROM_DEVICE)

/* Rows, one behind the other in the stream. Only memory of the device is offered at both ends. */
static int row_end(struct context *context, const struct copy_end *end, size_t width, size_t height,
                   uint64_t *first, size_t *pitch)
{
    if (end->memory_type != MEMORY_DEVICE)
        return end->memory_type && end->memory_type <= MEMORY_UNIFIED ? NOT_SUPPORTED : INVALID_VALUE;
    *pitch = end->pitch ? end->pitch : width + end->x_bytes;
    if (*pitch > MAX_PITCH || end->x_bytes > *pitch || width > *pitch - end->x_bytes)
        return INVALID_VALUE;
    *first = end->device + end->y * *pitch + end->x_bytes;
    return usable(context, *first, (height - 1) * *pitch + width) ? CUDA_SUCCESS : INVALID_VALUE;
}

static int copy_rows(CUhandle handle, const struct CUDA_MEMCPY2D *rows, uint64_t *values)
{
    struct stream *stream;
    struct context *context;
    size_t source_pitch, target_pitch;
    int code = rows ? check_stream(handle, &stream, &context) : INVALID_VALUE;
    if (code || !rows->width_bytes || !rows->height)
        return code;
    code = row_end(context, &rows->target, rows->width_bytes, rows->height, &values[0], &target_pitch);
    if (!code)
        code = row_end(context, &rows->source, rows->width_bytes, rows->height, &values[1],
                       &source_pitch);
    for (size_t row = 0; !code && row < rows->height; row++)
        code = copy(handle, values[0] + row * target_pitch, values[1] + row * source_pitch,
                    rows->width_bytes, TO_DEVICE | FROM_DEVICE);
    if (!code) {
        values[2] = rows->width_bytes, values[3] = rows->height;
        values[4] = target_pitch, values[5] = source_pitch;
    }
    return code;
}

API cuMemcpy2DAsync_v2(const struct CUDA_MEMCPY2D *rows, CUhandle stream)
{
    int code = enter(ID_cuMemcpy2DAsync_v2);
    uint64_t values[6] = {0};
    if (!code)
        code = copy_rows(stream, rows, values);
    return leave_with(ID_cuMemcpy2DAsync_v2, code, stream, values, 6);
}

static int fill(CUhandle handle, uint64_t target, unsigned value, size_t count, unsigned width)
{
    struct stream *stream;
    struct context *context;
    int code = check_stream(handle, &stream, &context);
    if (code || !count)
        return code;
    if (target % width || count > SIZE_MAX / width || !usable(context, target, count * width))
        return INVALID_VALUE;
    struct operation *operation = calloc(1, sizeof *operation);
    operation->what = RUN_FILL;
    operation->target = target;
    operation->value = value;
    operation->width = width;
    operation->bytes = count * width;
    return submit(stream, context, operation);
}

#define FILL(symbol, type)                                                           \
    API symbol(CUdeviceptr target, type value, size_t count)                         \
    {                                                                                \
        int code = enter(ID_##symbol);                                               \
        if (!code)                                                                   \
            code = fill(0, target, value, count, sizeof value);                      \
        uint64_t values[] = {target, value, count};                                  \
        return leave_with(ID_##symbol, code, 0, values, 3);                          \
    }

#define FILL_ASYNC(symbol, type)                                                     \
    API symbol(CUdeviceptr target, type value, size_t count, CUhandle stream)        \
    {                                                                                \
        int code = enter(ID_##symbol);                                               \
        if (!code)                                                                   \
            code = fill(stream, target, value, count, sizeof value);                 \
        uint64_t values[] = {target, value, count};                                  \
        return leave_with(ID_##symbol, code, stream, values, 3);                     \
    }

FILL(cuMemsetD8_v2, unsigned char)
FILL(cuMemsetD32_v2, unsigned)
FILL_ASYNC(cuMemsetD8Async, unsigned char)
FILL_ASYNC(cuMemsetD32Async, unsigned)
