/* Launching a compiled kernel from C, without Python.
 *
 * A flat plan (flat_plan.h) is everything that a compiled variant consists of, in one block of
 * bytes: what it takes, its steps, its cubins inside or by digest. The library opens it, makes it
 * ready on a device and launches it:
 *
 *     pallasc_plan *plan;
 *     if (pallasc_open(bytes, size, NULL, NULL, &plan) || pallasc_prepare(plan, 0) ||
 *         pallasc_launch(plan, 0, buffers, count, workspace, stream))
 *         fprintf(stderr, "%s\n", pallasc_last_error());
 *
 * The driver, libcuda.so.1, is opened by the first pallasc_prepare; nothing here is linked to it.
 * Every function may be called from any thread; only pallasc_close must not run beside another use
 * of the same plan. pallasc_launch takes no lock and allocates nothing.
 */
#ifndef PALLASC_H
#define PALLASC_H

#include <stddef.h>
#include <stdint.h>

#if defined(PALLASC_API)
/* The library is part of something else, which says what of it is visible. */
#elif defined(__GNUC__)
#define PALLASC_API __attribute__((visibility("default")))
#else
#define PALLASC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* What every function returns that can fail; pallasc_last_error has the words. */
enum pallasc_status {
    PALLASC_OK = 0,
    PALLASC_ERROR_ARGUMENT = 1,      /* an address, a count or a stream does not fit the kernel */
    PALLASC_ERROR_CORRUPT = 2,       /* the flat plan or a cubin is damaged */
    PALLASC_ERROR_DEVICE = 3,        /* no driver, no such GPU, or one that cannot run the kernel */
    PALLASC_ERROR_DRIVER = 4,        /* the driver answered with an error */
    PALLASC_ERROR_OUT_OF_MEMORY = 5, /* the GPU, or the host, has not enough memory */
    PALLASC_ERROR_NOT_FOUND = 6      /* a cubin or constant that the plan names by digest */
};

typedef struct pallasc_plan pallasc_plan;

/* Finds the cubin or constant with a digest, 64 hexadecimal digits. It returns 0 and sets data and
 * size, or returns another number where there is none. The data are copied before the next call. */
typedef int (*pallasc_find)(void *context, const char *sha256, const void **data, size_t *size);

/* Verifies a flat plan and opens it. The bytes are copied: they need not outlive the call, and may
 * lie anywhere. What the plan names by digest is asked of `find`, now and never again; without
 * `find` such a plan is refused. Needs neither driver nor GPU. */
PALLASC_API int pallasc_open(const void *data, size_t size, pallasc_find find, void *context,
                             pallasc_plan **plan);

/* Frees what the plan holds on the host. What it has loaded on devices stays loaded until the
 * process ends, as a captured graph may launch it. NULL is allowed. */
PALLASC_API void pallasc_close(pallasc_plan *plan);

/* Checks that a device can run the plan, loads its cubins and constants there and retains the
 * device's primary context. Costs nothing the second time. `device` is the driver's ordinal. It may
 * be called while streams are captured, by this thread or others: they are left alone. */
PALLASC_API int pallasc_prepare(pallasc_plan *plan, int device);

/* Puts all steps into a stream.
 *
 * buffers: device addresses of the `pallasc_buffer_count` arrays, in the order of pallasc_buffer.
 * workspace: pallasc_workspace_bytes of device memory at a multiple of 256, which no other launch
 *     uses until this one is over; NULL where that is 0.
 * stream: a CUstream of the device's primary context; NULL is the default stream.
 *
 * Before anything is put into the stream, addresses are checked: alignment, and that no result lies
 * over another array. It may be captured into a graph. */
PALLASC_API int pallasc_launch(const pallasc_plan *plan, int device, void *const *buffers,
                               size_t count, void *workspace, void *stream);

/* The same, going on at a step: 0 is the first. Where a step fails, `failed_step` (may be NULL) gets
 * its number, and what ran before need not be repeated: free memory, say, and go on from there. It
 * gets SIZE_MAX where nothing was put into the stream. */
PALLASC_API int pallasc_launch_from(const pallasc_plan *plan, int device, void *const *buffers,
                                    size_t count, void *workspace, void *stream,
                                    size_t first_step, size_t *failed_step);

/* What failed last in this thread: what, with which value, and what to do next on a line of its
 * own. Never NULL; "" before the first failure. Good until the thread's next failure. */
PALLASC_API const char *pallasc_last_error(void);

/* The driver's CUresult where the last failure of this thread was PALLASC_ERROR_DRIVER or one of
 * memory, else 0. */
PALLASC_API int pallasc_last_driver_result(void);

/* ---- what a plan takes ---- */

enum {
    PALLASC_INPUT = 1,  /* it is read */
    PALLASC_RESULT = 2, /* it is written: memory that the caller provides */
    PALLASC_UPDATED = 4 /* an input that is updated in place, or passed through as an output */
};

typedef struct pallasc_array {
    const char *path;       /* "q", "out.0" */
    const char *dtype;      /* "bf16", "i4", "f8e4m3fn" */
    const int64_t *shape;   /* `rank` sizes */
    const int64_t *strides; /* `rank` steps between elements, in elements */
    size_t rank;
    size_t bits;      /* of an element; under 8 they are packed */
    size_t bytes;     /* of the array on the device */
    size_t alignment; /* its address must be a multiple */
    size_t buffer;    /* its place among the buffers of a launch */
    int flags;        /* PALLASC_INPUT, …_RESULT, …_UPDATED */
} pallasc_array;

/* Arrays that a launch takes: the inputs, then the results, which are outputs that are no inputs. */
PALLASC_API size_t pallasc_buffer_count(const pallasc_plan *plan);
PALLASC_API int pallasc_buffer(const pallasc_plan *plan, size_t index, pallasc_array *array);

/* What comes back, in the function's order; `buffer` tells in which of the buffers. */
PALLASC_API size_t pallasc_output_count(const pallasc_plan *plan);
PALLASC_API int pallasc_output(const pallasc_plan *plan, size_t index, pallasc_array *array);

/* What its temporaries take together; a multiple of 256. */
PALLASC_API size_t pallasc_workspace_bytes(const pallasc_plan *plan);

/* What messages call it: "matmul[m=1024]@h100-sxm". */
PALLASC_API const char *pallasc_name(const pallasc_plan *plan);

/* The architecture that it was compiled for: "sm_90a". */
PALLASC_API const char *pallasc_arch(const pallasc_plan *plan);

/* ---- the process ---- */

/* Forgets the driver and all that was loaded, as after the start of the process: for programs that
 * destroy or reset primary contexts. Plans must be prepared again. No launch may be under way. */
PALLASC_API void pallasc_forget(void);

/* The library's version: "0.1.0". */
PALLASC_API const char *pallasc_version(void);

#ifdef __cplusplus
}
#endif

#endif
