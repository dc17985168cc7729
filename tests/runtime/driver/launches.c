/* Launching: find kernel, context and stream, check, copy every parameter byte, run. */
#include "state.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static kernel_callback callback;

/* Entries of `extra`: one packed buffer in place of an array of pointers. */
static void *const EXTRA_END = (void *)0, *const EXTRA_POINTER = (void *)1, *const EXTRA_SIZE = (void *)2;

static uint32_t packed_bytes(const struct cubin_kernel *code)
{
    uint32_t last = code->parameter_count;
    return last ? code->offsets[last - 1] + code->sizes[last - 1] : 0;
}

static int read_extra(void **extra, const struct cubin_kernel *code, const unsigned char **packed)
{
    size_t size = 0;
    for (; extra[0] != EXTRA_END; extra += 2) {
        if (extra[0] == EXTRA_POINTER)
            *packed = extra[1];
        else if (extra[0] == EXTRA_SIZE)
            size = *(size_t *)extra[1];
        else
            return INVALID_VALUE;
    }
    return *packed && size == packed_bytes(code) ? CUDA_SUCCESS : INVALID_VALUE;
}

static int check_parameters(void **parameters, void **extra, const struct cubin_kernel *code,
                            const unsigned char **packed)
{
    if (extra)
        return parameters ? INVALID_VALUE : read_extra(extra, code, packed);
    if (code->parameter_count && !parameters)
        return INVALID_VALUE;
    for (uint32_t i = 0; i < code->parameter_count; i++)
        if (!parameters[i])
            return INVALID_VALUE;
    return CUDA_SUCCESS;
}

/* A record in one block: the structure, offsets, sizes, attributes, name, parameters. */
static struct launch *record(const CUlaunchConfig *config, const struct kernel *kernel,
                             const struct context *context, void **parameters,
                             const unsigned char *packed)
{
    const struct cubin_kernel *code = kernel->code;
    uint32_t n = code->parameter_count, bytes = 0;
    for (uint32_t i = 0; i < n; i++)
        bytes += code->sizes[i];
    size_t attribute_bytes = config->attribute_count * sizeof(CUlaunchAttribute);
    size_t name_bytes = strlen(code->name) + 1;
    struct launch launch = {
        .kernel = NULL, .context = context->handle, .stream = config->stream,
        .device = context->device, .smem_bytes = config->smem_bytes, .parameter_count = n,
        .attribute_count = config->attribute_count, .byte_count = bytes, .library = kernel->library,
    };
    memcpy(launch.grid, config->grid, sizeof launch.grid);
    memcpy(launch.block, config->block, sizeof launch.block);
    struct launch *copy = malloc(sizeof launch + attribute_bytes + 8 * (size_t)n + name_bytes + bytes);
    if (!copy)
        abort();
    CUlaunchAttribute *attributes = (CUlaunchAttribute *)(copy + 1);
    uint32_t *offsets = (uint32_t *)(attributes + config->attribute_count), *sizes = offsets + n;
    char *name = (char *)(sizes + n);
    unsigned char *at = (unsigned char *)name + name_bytes;
    *copy = launch;
    copy->kernel = memcpy(name, code->name, name_bytes);
    copy->attributes = attribute_bytes ? memcpy(attributes, config->attributes, attribute_bytes) : attributes;
    copy->offsets = memcpy(offsets, code->offsets, 4 * (size_t)n);
    copy->sizes = memcpy(sizes, code->sizes, 4 * (size_t)n);
    copy->bytes = at;
    for (uint32_t i = 0; i < n; at += code->sizes[i++])
        memcpy(at, packed ? packed + code->offsets[i] : parameters[i], code->sizes[i]);
    return copy;
}

/* The handle may be a kernel, which runs in the context of the stream, or a function. */
static int find_target(CUhandle f, CUhandle stream_handle, struct kernel **kernel,
                       struct stream **stream, struct context **context)
{
    struct function_object *function = find_handle(KIND_FUNCTION, f);
    *kernel = function ? function->kernel : find_handle(KIND_KERNEL, f);
    if (!*kernel)
        return INVALID_HANDLE;
    if (options.strict_context && !current_context())
        return missing_context();
    int code = check_stream(stream_handle, stream, context);
    if (code)
        return code;
    if (function)
        return function->context == *context ? CUDA_SUCCESS : INVALID_HANDLE;
    CUhandle loaded;
    return load_kernel(*kernel, *context, &loaded);
}

struct launch *check_launch(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra,
                            struct stream **stream, struct context **context, int *code)
{
    struct kernel *kernel;
    unsigned cluster[3];
    const unsigned char *packed = NULL;
    *code = config ? find_target(f, config->stream, &kernel, stream, context) : INVALID_VALUE;
    if (!*code)
        *code = check_limits(config, kernel, (*context)->device, cluster);
    if (!*code)
        *code = check_parameters(parameters, extra, kernel->code, &packed);
    if (*code)
        return NULL;
    struct launch *launch = record(config, kernel, *context, parameters, packed);
    memcpy(launch->cluster, cluster, sizeof cluster);
    return launch;
}

static int check_pointer(struct context *context, uint64_t address)
{
    if (!address && options.null_pointers)
        return CUDA_SUCCESS;
    if (!usable_by_kernel(context, address, 1))
        return ILLEGAL_ADDRESS;
    if (options.pointer_alignment && address % (unsigned)options.pointer_alignment)
        return MISALIGNED_ADDRESS;
    return CUDA_SUCCESS;
}

/* What the hardware finds while the kernel runs: 8 bytes are taken for a pointer, and in larger
 * parameters every tensor map for one. */
static int check_addresses(struct context *context, const struct launch *launch)
{
    const unsigned char *at = launch->bytes;
    int code = CUDA_SUCCESS;
    for (uint32_t i = 0; !code && i < launch->parameter_count; at += launch->sizes[i++]) {
        uint64_t address, bytes;
        if (launch->sizes[i] == 8) {
            memcpy(&address, at, 8);
            code = check_pointer(context, address);
        }
        for (uint32_t offset = 0; !code && offset + 128 <= launch->sizes[i]; offset += 64)
            if (map_extent(at + offset, &address, &bytes) &&
                !usable_by_kernel(context, address, bytes))
                code = ILLEGAL_ADDRESS;
    }
    return code;
}

static int call_back(const struct launch *launch)
{
    kernel_callback function = callback;
    if (!function)
        return CUDA_SUCCESS;
    unlock_all();
    int code = function(launch);
    lock_all();
    return code;
}

/* Run a copy of the launch in the context. Errors of the device appear at a later call. */
int run_launch(struct context *context, const struct launch *launch)
{
    struct launch *run = copy_launch(launch);
    int code = options.check_pointers ? check_addresses(context, run) : CUDA_SUCCESS;
    compare_launch(run);
    if (!code && !context->pending && !context->sticky)
        code = call_back(run);
    if (code)
        fail_context(context, code, 0);
    devices[context->device].clock_ns += (uint64_t)options.kernel_ns;
    log_launch(run, code);
    return CUDA_SUCCESS;
}

static int launch_on(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra)
{
    int code;
    struct stream *stream;
    struct context *context;
    struct launch *launch = check_launch(config, f, parameters, extra, &stream, &context, &code);
    if (code)
        return code;
    struct operation *operation = calloc(1, sizeof *operation);
    operation->what = RUN_LAUNCH;
    operation->launch = launch;
    return submit(stream, context, operation);
}

API cuLaunchKernelEx(const CUlaunchConfig *config, CUhandle f, void **parameters, void **extra)
{
    if (options.raw_speed)
        return CUDA_SUCCESS;
    int code = enter(ID_cuLaunchKernelEx);
    if (!code)
        code = launch_on(config, f, parameters, extra);
    return leave_with(ID_cuLaunchKernelEx, code, config ? config->stream : 0, &f, 1);
}

API cuLaunchKernel(CUhandle f, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                   unsigned block_y, unsigned block_z, unsigned smem_bytes, CUhandle stream,
                   void **parameters, void **extra)
{
    if (options.raw_speed)
        return CUDA_SUCCESS;
    CUlaunchConfig config = {.grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z},
                             .smem_bytes = smem_bytes, .stream = stream};
    int code = enter(ID_cuLaunchKernel);
    if (!code)
        code = launch_on(&config, f, parameters, extra);
    return leave_with(ID_cuLaunchKernel, code, stream, &f, 1);
}

API cuLaunchCooperativeKernel(CUhandle f, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                              unsigned block_x, unsigned block_y, unsigned block_z,
                              unsigned smem_bytes, CUhandle stream, void **parameters)
{
    CUlaunchAttribute attribute = {.id = ATTRIBUTE_COOPERATIVE, .value = {.number = 1}};
    CUlaunchConfig config = {.grid = {grid_x, grid_y, grid_z}, .block = {block_x, block_y, block_z},
                             .smem_bytes = smem_bytes, .stream = stream,
                             .attributes = &attribute, .attribute_count = 1};
    int code = enter(ID_cuLaunchCooperativeKernel);
    if (!code)
        code = launch_on(&config, f, parameters, NULL);
    return leave_with(ID_cuLaunchCooperativeKernel, code, stream, &f, 1);
}

API cuLaunchHostFunc(CUhandle handle, void (*function)(void *), void *data)
{
    struct stream *stream;
    struct context *context;
    int code = enter(ID_cuLaunchHostFunc);
    if (!code)
        code = function ? check_stream(handle, &stream, &context) : INVALID_VALUE;
    if (!code && stream && stream->capture)
        code = NOT_SUPPORTED; /* host nodes of graphs: not here */
    if (!code) {
        unlock_all();
        function(data);
        lock_all();
    }
    return leave_with(ID_cuLaunchHostFunc, code, handle, NULL, 0);
}

/* Let a function of the test be the kernel; it runs without the mutex, in the launching thread. */
void standin_callback(kernel_callback function)
{
    lock_all();
    callback = function;
    unlock_all();
}
