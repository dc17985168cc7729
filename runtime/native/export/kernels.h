/* The kernels of an export: tables written by `pallasc bundle export --c`, and their functions. */
#ifndef PALLASC_KERNELS_H
#define PALLASC_KERNELS_H

#include "../plan.h"
#include "pallasc_tensor.h"

#define PALLASC_EXPORTED __attribute__((visibility("default")))

/* Embed the bytes of a file as a constant; the file is found in the compiler's include folders. */
#define INCLUDE_PLAN(symbol, file)                   \
    __asm__(".pushsection .rodata,\"a\",%progbits\n" \
            ".balign 16\n"                           \
            ".globl " #symbol "\n"                   \
            ".hidden " #symbol "\n" #symbol ":\n"    \
            ".incbin \"" file "\"\n"                 \
            ".popsection\n");                        \
    extern const unsigned char symbol[] __attribute__((visibility("hidden")))

struct array_type {
    const char *path, *dtype;
    const int64_t *numbers; /* `rank` sizes, then `rank` strides in elements */
    size_t rank;
};

struct variant {
    const char *name;
    const unsigned char *plan;
    size_t plan_bytes;
    const char *const *models; /* driver names of the GPU it was compiled for; NULL ends them */
    const struct array_type *arrays;
    size_t array_count;
    int sm, suffix, sm_count; /* 90 and 'a' for sm_90a (0: no suffix); the model's SMs */
    _Atomic(pallasc_plan *) opened;
};

struct kernel {
    const char *name;
    struct variant *variants;
    size_t count;
};

/* Selects the variant for these arrays, and loads it on the device. */
int prepare_kernel(struct kernel *kernel, int device, const pallasc_tensor *arrays, size_t count,
                   size_t *workspace_bytes);

/* Also launches the variant; the arrays' addresses must be valid on the device. */
int launch_kernel(struct kernel *kernel, int device, const pallasc_tensor *arrays, size_t count,
                  void *workspace, size_t workspace_bytes, void *stream);

/* ---- the functions that a library has for each kernel ---- */

#define KERNEL_FUNCTIONS(function, kernel)                                                        \
    PALLASC_EXPORTED int function(int device, const pallasc_tensor *arrays, size_t count,         \
                                  void *workspace, size_t workspace_bytes, void *stream)          \
    {                                                                                             \
        return launch_kernel(kernel, device, arrays, count, workspace, workspace_bytes, stream);  \
    }                                                                                             \
    PALLASC_EXPORTED int function##_prepare(int device, const pallasc_tensor *arrays,             \
                                            size_t count, size_t *workspace_bytes)                \
    {                                                                                             \
        return prepare_kernel(kernel, device, arrays, count, workspace_bytes);                    \
    }

#endif
