/* The CUDA runtime as far as XLA's CUDA client needs it: it registers its own kernels, asks for
 * devices, and finds the driver. It goes before NVIDIA's with LD_PRELOAD, whose library needs
 * private tables of a real driver. Signatures as in the CUDA Runtime API reference 13. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdint.h>
#include <string.h>

#define CUDA __attribute__((visibility("default"))) int

enum { SUCCESS = 0, INVALID_VALUE = 1, INITIALIZATION = 3, SYMBOL_NOT_FOUND = 500 };

static void *driver(const char *name)
{
    static void *library;
    if (!library)
        library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_GLOBAL);
    return library ? dlsym(library, name) : NULL;
}

CUDA cudaGetDeviceCount(int *count)
{
    int (*init)(unsigned) = driver("cuInit"), (*get)(int *) = driver("cuDeviceGetCount");
    if (!init || !get || init(0))
        return INITIALIZATION;
    return get(count);
}

CUDA cudaDriverGetVersion(int *version)
{
    int (*get)(int *) = driver("cuDriverGetVersion");
    return get ? get(version) : INITIALIZATION;
}

CUDA cudaRuntimeGetVersion(int *version)
{
    *version = 13020;
    return SUCCESS;
}

CUDA cudaGetLastError(void) { return SUCCESS; }
CUDA cudaPeekAtLastError(void) { return SUCCESS; }

__attribute__((visibility("default"))) const char *cudaGetErrorString(int code)
{
    return code ? "an error of the stand-in for the CUDA runtime" : "no error";
}

__attribute__((visibility("default"))) const char *cudaGetErrorName(int code)
{
    return code ? "cudaErrorStandIn" : "cudaSuccess";
}

/* Kernels inside XLA's libraries are registered at load, and never found later. */
__attribute__((visibility("default"))) void **__cudaRegisterFatBinary(void *binary)
{
    static void *handle[1];
    (void)binary;
    return handle;
}

CUDA __cudaRegisterFatBinaryEnd(void **handle) { return (void)handle, SUCCESS; }
CUDA __cudaUnregisterFatBinary(void **handle) { return (void)handle, SUCCESS; }
CUDA __cudaRegisterFunction(void) { return SUCCESS; }
CUDA __cudaRegisterVar(void) { return SUCCESS; }
CUDA cudaGetFuncBySymbol(void **function, const void *symbol)
{
    (void)symbol;
    *function = NULL;
    return SYMBOL_NOT_FOUND;
}
