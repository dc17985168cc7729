/* Kernels (of a library, for all devices) and functions (of one context), and their attributes. */
#include "state.h"

#include <stdlib.h>
#include <string.h>

/* Give the function of a kernel in a context; this is where a wrong architecture shows. */
int load_kernel(struct kernel *kernel, struct context *context, CUhandle *handle)
{
    int code = loadable(kernel->library->cubin, context->device);
    if (code)
        return code;
    CUhandle known = kernel->functions[context->device];
    struct function_object *function = known ? find_handle(KIND_FUNCTION, known) : NULL;
    if (!function || function->context != context) {
        function = calloc(1, sizeof *function);
        function->kernel = kernel;
        function->context = context;
        function->handle = add_handle(KIND_FUNCTION, function);
        kernel->functions[context->device] = function->handle;
    }
    *handle = function->handle;
    return CUDA_SUCCESS;
}

API cuKernelGetFunction(CUhandle *function, CUhandle handle)
{
    int code = enter(ID_cuKernelGetFunction);
    struct kernel *kernel = find_handle(KIND_KERNEL, handle);
    if (!code)
        code = !kernel    ? INVALID_HANDLE
               : !function ? INVALID_VALUE
                           : load_kernel(kernel, current_context(), function);
    uint64_t values[] = {handle};
    return leave_with(ID_cuKernelGetFunction, code, 0, values, 1);
}

static int get_parameter(size_t index, size_t *offset, size_t *size, const struct kernel *kernel)
{
    if (!kernel || !offset)
        return kernel ? INVALID_VALUE : INVALID_HANDLE;
    if (index >= kernel->code->parameter_count)
        return INVALID_VALUE;
    *offset = kernel->code->offsets[index];
    if (size)
        *size = kernel->code->sizes[index];
    return CUDA_SUCCESS;
}

API cuKernelGetParamInfo(CUhandle handle, size_t index, size_t *offset, size_t *size)
{
    int code = enter(ID_cuKernelGetParamInfo);
    if (!code)
        code = get_parameter(index, offset, size, find_handle(KIND_KERNEL, handle));
    uint64_t values[] = {handle, index};
    return leave_with(ID_cuKernelGetParamInfo, code, 0, values, 2);
}

API cuFuncLoad(CUhandle handle)
{
    int code = enter(ID_cuFuncLoad);
    struct function_object *function = find_handle(KIND_FUNCTION, handle);
    if (!code && !function)
        code = INVALID_HANDLE;
    if (!code)
        code = function->context->sticky;
    if (!code)
        function->loaded = 1;
    return leave_with(ID_cuFuncLoad, code, 0, &handle, 1);
}

static int get_attribute(int *value, int attribute, const struct kernel *kernel, int device)
{
    if (!kernel)
        return INVALID_HANDLE;
    if (!value)
        return INVALID_VALUE;
    if (device < 0 || device >= device_count)
        return INVALID_DEVICE;
    int code = loadable(kernel->library->cubin, device);
    return code ? code : kernel_attribute(kernel, attribute, device, value);
}

static int set_cluster(struct kernel *kernel, int axis, int value, int device)
{
    if (kernel->code->cluster[0])
        return NOT_PERMITTED; /* fixed when the kernel was compiled */
    if (value < 0)
        return INVALID_VALUE;
    kernel->cluster[device][axis] = value;
    return CUDA_SUCCESS;
}

static int set_attribute(int attribute, int value, struct kernel *kernel, int device)
{
    if (!kernel)
        return INVALID_HANDLE;
    if (device < 0 || device >= device_count)
        return INVALID_DEVICE;
    int code = loadable(kernel->library->cubin, device);
    if (code)
        return code;
    int most = devices[device].smem_optin_bytes - kernel->code->static_smem_bytes;
    switch (attribute) {
    case FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES:
        if (value < 0 || value > most)
            return INVALID_VALUE;
        kernel->max_dynamic[device] = value;
        return CUDA_SUCCESS;
    case FUNC_PREFERRED_SHARED_MEMORY_CARVEOUT:
        if (value < -1 || value > 100)
            return INVALID_VALUE;
        kernel->carveout[device] = value;
        return CUDA_SUCCESS;
    case FUNC_REQUIRED_CLUSTER_WIDTH:
    case FUNC_REQUIRED_CLUSTER_WIDTH + 1:
    case FUNC_REQUIRED_CLUSTER_DEPTH:
        return set_cluster(kernel, attribute - FUNC_REQUIRED_CLUSTER_WIDTH, value, device);
    case FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        if (value < 0 || value > 1)
            return INVALID_VALUE;
        kernel->non_portable[device] = value;
        return CUDA_SUCCESS;
    case FUNC_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
        if (value < 0 || value > 2)
            return INVALID_VALUE;
        kernel->policy[device] = value;
        return CUDA_SUCCESS;
    default:
        return INVALID_VALUE; /* unknown, or not to be set */
    }
}

API cuKernelGetAttribute(int *value, int attribute, CUhandle handle, CUdevice device)
{
    int code = enter(ID_cuKernelGetAttribute);
    if (!code)
        code = get_attribute(value, attribute, find_handle(KIND_KERNEL, handle), device);
    uint64_t values[] = {(uint64_t)attribute, handle, (uint64_t)device};
    return leave_with(ID_cuKernelGetAttribute, code, 0, values, 3);
}

API cuKernelSetAttribute(int attribute, int value, CUhandle handle, CUdevice device)
{
    int code = enter(ID_cuKernelSetAttribute);
    if (!code)
        code = set_attribute(attribute, value, find_handle(KIND_KERNEL, handle), device);
    uint64_t values[] = {(uint64_t)attribute, (uint64_t)(int64_t)value, handle, (uint64_t)device};
    return leave_with(ID_cuKernelSetAttribute, code, 0, values, 4);
}

API cuFuncGetAttribute(int *value, int attribute, CUhandle handle)
{
    int code = enter(ID_cuFuncGetAttribute);
    struct function_object *function = find_handle(KIND_FUNCTION, handle);
    if (!code)
        code = !function ? INVALID_HANDLE
                         : get_attribute(value, attribute, function->kernel, function->context->device);
    uint64_t values[] = {(uint64_t)attribute, handle};
    return leave_with(ID_cuFuncGetAttribute, code, 0, values, 2);
}

API cuFuncSetAttribute(CUhandle handle, int attribute, int value)
{
    int code = enter(ID_cuFuncSetAttribute);
    struct function_object *function = find_handle(KIND_FUNCTION, handle);
    if (!code)
        code = !function ? INVALID_HANDLE
                         : set_attribute(attribute, value, function->kernel, function->context->device);
    uint64_t values[] = {(uint64_t)attribute, (uint64_t)(int64_t)value, handle};
    return leave_with(ID_cuFuncSetAttribute, code, 0, values, 3);
}
