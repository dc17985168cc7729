/* Libraries (`cuLibrary…`) and modules: cubins as the driver takes them. */
#include "state.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int newest_ptx(void)
{
    /* PTX 9.x came with CUDA 13.x, 8.x with 12.x and 11.x; only the major counts here. */
    return options.driver_version / 1000 - 4;
}

/* Text instead of a cubin: the stand-in has no compiler, but tells a version that is too new. */
static int refuse_text(const char *text)
{
    int major;
    const char *version = strstr(text, ".version");
    if (!version || sscanf(version, ".version %d", &major) != 1)
        return INVALID_IMAGE;
    return major > newest_ptx() ? UNSUPPORTED_PTX_VERSION : JIT_COMPILER_NOT_FOUND;
}

/* Is the cubin for this device? "a" is for exactly its architecture; "f" and no suffix for the same
 * major with at least its minor (CUDA C++ Programming Guide, "Binary Compatibility"). */
int loadable(const struct cubin *cubin, int device)
{
    int sm = 10 * devices[device].major + devices[device].minor;
    if (cubin->suffix == 'a' ? sm != cubin->sm : sm / 10 != cubin->sm / 10 || sm < cubin->sm)
        return NO_BINARY_FOR_GPU;
    return CUDA_SUCCESS;
}

static int loadable_anywhere(const struct cubin *cubin)
{
    for (int device = 0; device < device_count; device++)
        if (!loadable(cubin, device))
            return 1;
    return 0;
}

static int load(const void *image, struct library **library)
{
    if (!image)
        return INVALID_VALUE;
    const unsigned char *start = image;
    if (isprint(start[0]) || isspace(start[0]))
        return refuse_text(image);
    struct cubin *cubin = parse_cubin(image);
    if (!cubin)
        return INVALID_IMAGE;
    int code = cubin->toolkit_major > options.driver_version / 1000 ? INVALID_IMAGE : CUDA_SUCCESS;
    if (!code && options.eager_loading && !loadable_anywhere(cubin))
        code = NO_BINARY_FOR_GPU;
    if (code) {
        free_cubin(cubin);
        return code;
    }
    *library = calloc(1, sizeof **library);
    (*library)->cubin = cubin;
    (*library)->kernels = calloc(cubin->kernel_count + 1, sizeof(CUhandle));
    (*library)->handle = add_handle(KIND_LIBRARY, *library);
    return CUDA_SUCCESS;
}

/* Its kernels and functions end with it. Their memory stays: a launch may be under way. */
static void unload(struct library *library)
{
    size_t at = 0;
    struct function_object *function;
    struct kernel *kernel;
    while ((function = next_handle(KIND_FUNCTION, &at)))
        if (function->kernel->library == library)
            drop_handle(function->handle);
    at = 0;
    while ((kernel = next_handle(KIND_KERNEL, &at)))
        if (kernel->library == library)
            drop_handle(kernel->handle);
    drop_handle(library->handle);
}

void reset_libraries(void)
{
    size_t at = 0;
    struct library *library;
    while ((library = next_handle(KIND_LIBRARY, &at)))
        unload(library);
}

/* The cubin of a library, which may be unloaded: those of a launch stay in memory. */
const unsigned char *standin_image(const void *library, uint64_t *bytes)
{
    const struct cubin *cubin = ((const struct library *)library)->cubin;
    *bytes = cubin->image_bytes;
    return cubin->image;
}

API cuLibraryLoadData(CUhandle *handle, const void *image, const void *jit_options, void **jit_values,
                      unsigned jit_count, const void *library_options, void **library_values,
                      unsigned library_count)
{
    struct library *library = NULL;
    int code = enter(ID_cuLibraryLoadData);
    if (!code && (!handle || (jit_count && (!jit_options || !jit_values)) ||
                  (library_count && (!library_options || !library_values))))
        code = INVALID_VALUE;
    if (!code)
        code = load(image, &library);
    if (code)
        return leave(ID_cuLibraryLoadData, code);
    *handle = library->handle;
    uint64_t bytes = library->cubin->image_bytes;
    uint64_t values[] = {bytes, content_of(library->cubin->image, bytes)};
    return leave_with(ID_cuLibraryLoadData, code, 0, values, 2);
}

API cuLibraryUnload(CUhandle handle)
{
    int code = enter(ID_cuLibraryUnload);
    struct library *library = find_handle(KIND_LIBRARY, handle);
    if (!code && !library)
        code = INVALID_HANDLE;
    if (!code)
        unload(library);
    return leave(ID_cuLibraryUnload, code);
}

static struct kernel *make_kernel(struct library *library, uint32_t index)
{
    if (library->kernels[index])
        return find_handle(KIND_KERNEL, library->kernels[index]);
    struct kernel *kernel = calloc(1, sizeof *kernel);
    kernel->library = library;
    kernel->code = &library->cubin->kernels[index];
    for (int device = 0; device < MAX_DEVICES; device++) {
        int rest = 48 * 1024 - kernel->code->static_smem_bytes;
        kernel->max_dynamic[device] = rest > 0 ? rest : 0;
        kernel->carveout[device] = -1;
        memcpy(kernel->cluster[device], kernel->code->cluster, sizeof kernel->cluster[device]);
    }
    kernel->handle = library->kernels[index] = add_handle(KIND_KERNEL, kernel);
    return kernel;
}

static int get_kernel(struct library *library, const char *name, struct kernel **kernel)
{
    if (!name)
        return INVALID_VALUE;
    for (uint32_t i = 0; i < library->cubin->kernel_count; i++)
        if (!strcmp(library->cubin->kernels[i].name, name)) {
            *kernel = make_kernel(library, i);
            return CUDA_SUCCESS;
        }
    return NOT_FOUND;
}

API cuLibraryGetKernel(CUhandle *handle, CUhandle library_handle, const char *name)
{
    struct kernel *kernel = NULL;
    int code = enter(ID_cuLibraryGetKernel);
    struct library *library = find_handle(KIND_LIBRARY, library_handle);
    if (!code)
        code = !library ? INVALID_HANDLE : !handle ? INVALID_VALUE : get_kernel(library, name, &kernel);
    if (!code)
        *handle = kernel->handle;
    uint64_t values[] = {library_handle, name ? content_of(name, strlen(name)) : 0};
    return leave_with(ID_cuLibraryGetKernel, code, 0, values, 2);
}

static int get_global(CUdeviceptr *address, size_t *bytes, struct library *library, const char *name)
{
    struct context *context = current_context();
    const struct cubin *cubin = library->cubin;
    int device = context->device, code = loadable(cubin, device);
    for (uint32_t i = 0; !code && i < cubin->global_count; i++) {
        if (!name || strcmp(cubin->globals[i].name, name))
            continue;
        if (!library->globals[device]) {
            code = allocate(context, cubin->data_bytes, IMAGE, &library->globals[device]);
            if (code)
                return code;
            memcpy((void *)library->globals[device], cubin->data, cubin->data_bytes);
        }
        if (address)
            *address = library->globals[device] + cubin->globals[i].offset;
        if (bytes)
            *bytes = cubin->globals[i].bytes;
        return CUDA_SUCCESS;
    }
    return code ? code : NOT_FOUND;
}

API cuLibraryGetGlobal(CUdeviceptr *address, size_t *bytes, CUhandle handle, const char *name)
{
    int code = enter(ID_cuLibraryGetGlobal);
    struct library *library = find_handle(KIND_LIBRARY, handle);
    if (!code)
        code = library ? get_global(address, bytes, library, name) : INVALID_HANDLE;
    return leave(ID_cuLibraryGetGlobal, code);
}

/* A module is a library that is loaded at once into the current context. */
static int load_module(CUhandle *handle, const void *image)
{
    struct library *library = NULL;
    int code = handle ? load(image, &library) : INVALID_VALUE;
    if (!code)
        code = loadable(library->cubin, current_context()->device);
    if (!code)
        *handle = library->handle;
    else if (library)
        unload(library);
    return code;
}

API cuModuleLoadData(CUhandle *handle, const void *image)
{
    int code = enter(ID_cuModuleLoadData);
    return leave(ID_cuModuleLoadData, code ? code : load_module(handle, image));
}

API cuModuleGetFunction(CUhandle *handle, CUhandle module, const char *name)
{
    struct kernel *kernel = NULL;
    int code = enter(ID_cuModuleGetFunction);
    struct library *library = find_handle(KIND_LIBRARY, module);
    if (!code)
        code = !library ? INVALID_HANDLE : !handle ? INVALID_VALUE : get_kernel(library, name, &kernel);
    if (!code)
        code = load_kernel(kernel, current_context(), handle);
    return leave(ID_cuModuleGetFunction, code);
}
