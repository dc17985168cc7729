/* Launch a compiled kernel from C, without Python.
 *
 * A flat plan (flat_plan.h) contains a whole compiled variant in one block of bytes: its arrays,
 * its steps, and its cubins, either included or named by digest. The library opens it, prepares it
 * on a device and launches it:
 *
 *     pallasc_plan *plan;
 *     if (pallasc_open(bytes, size, NULL, NULL, &plan) || pallasc_prepare(plan, 0) ||
 *         pallasc_launch(plan, 0, buffers, count, workspace, stream))
 *         fprintf(stderr, "%s\n", pallasc_last_error());
 *
 * The first pallasc_prepare opens the driver, libcuda.so.1; the library is not linked to it. All
 * functions may be called from any thread; only pallasc_close must not run concurrently with
 * another use of the same plan. pallasc_launch takes no lock and allocates nothing.
 */
#ifndef PALLASC_H
#define PALLASC_H

#include <stddef.h>
#include <stdint.h>

#if defined(PALLASC_API)
/* The library is part of another program, which decides what is visible. */
#elif defined(__GNUC__)
#define PALLASC_API __attribute__((visibility("default")))
#else
#define PALLASC_API
#endif

#ifdef __cplusplus
extern "C" {
#endif

/* Status of every function that can fail; pallasc_last_error returns the message. */
enum pallasc_status {
    PALLASC_OK = 0,
    PALLASC_ERROR_ARGUMENT = 1,      /* an address, a count or a stream does not fit the kernel */
    PALLASC_ERROR_CORRUPT = 2,       /* the flat plan or a cubin is damaged */
    PALLASC_ERROR_DEVICE = 3,        /* no driver, no such GPU, or it cannot run the kernel */
    PALLASC_ERROR_DRIVER = 4,        /* the driver returned an error */
    PALLASC_ERROR_OUT_OF_MEMORY = 5, /* the GPU or the host is out of memory */
    PALLASC_ERROR_NOT_FOUND = 6      /* a cubin or constant named by digest was not found */
};

typedef struct pallasc_plan pallasc_plan;

/* Finds the cubin or constant with a digest, 64 hexadecimal digits. Returns 0 and sets data and
 * size, or returns another number if there is none. The data are copied before the next call. */
typedef int (*pallasc_find)(void *context, const char *sha256, const void **data, size_t *size);

/* Verifies a flat plan and opens it. The bytes are copied, so they need not outlive the call, and
 * need no alignment. Blobs that the plan names by digest are requested from `find` during this call
 * only; without `find`, such a plan is rejected. Needs neither a driver nor a GPU. */
PALLASC_API int pallasc_open(const void *data, size_t size, pallasc_find find, void *context,
                             pallasc_plan **plan);

/* Frees the plan's memory on the host. Everything loaded on devices stays loaded until the process
 * ends, since a captured graph may launch it. NULL is allowed. */
PALLASC_API void pallasc_close(pallasc_plan *plan);

/* Checks that a device can run the plan, loads its cubins and constants there and retains the
 * device's primary context. A second call costs nothing. `device` is the driver's ordinal. It may
 * be called while this or another thread captures streams: captures are not disturbed. */
PALLASC_API int pallasc_prepare(pallasc_plan *plan, int device);

/* Enqueues all steps in a stream.
 *
 * buffers: device addresses of the `pallasc_buffer_count` arrays, in the order of pallasc_buffer.
 * workspace: pallasc_workspace_bytes of device memory, aligned to 256, which no other launch may
 *     use until this launch is done; NULL if the size is 0.
 * stream: a CUstream of the device's primary context; NULL is the default stream.
 *
 * Before anything is enqueued, addresses are checked: only an array without bytes may be at 0, all
 * are aligned, and no result overlaps another array. Launches may be captured into a graph. */
PALLASC_API int pallasc_launch(const pallasc_plan *plan, int device, void *const *buffers,
                               size_t count, void *workspace, void *stream);

/* The last failure in this thread: what failed, with which value, and the remedy on a separate
 * line. Never NULL; "" before the first failure. Valid until the thread's next failure. */
PALLASC_API const char *pallasc_last_error(void);

/* The driver's CUresult if this thread's last failure was PALLASC_ERROR_DRIVER or out of memory,
 * else 0. */
PALLASC_API int pallasc_last_driver_result(void);

/* ---- arrays of a plan ---- */

enum {
    PALLASC_INPUT = 1,  /* the launch reads it */
    PALLASC_RESULT = 2, /* the launch writes it to the caller's memory */
    PALLASC_UPDATED = 4 /* an input that is updated in place, or passed through as an output */
};

typedef struct pallasc_array {
    const char *path;       /* "q", "out.0" */
    const char *dtype;      /* "bf16", "i4", "f8e4m3fn" */
    const int64_t *shape;   /* `rank` sizes */
    const int64_t *strides; /* `rank` steps between elements, in elements */
    size_t rank;
    size_t bits;      /* of an element; below 8, elements are packed */
    size_t bytes;     /* of the array on the device */
    size_t alignment; /* required alignment of its address */
    int flags;        /* PALLASC_INPUT, …_RESULT, …_UPDATED */
} pallasc_array;

/* The arrays of a launch: the inputs, then the results, which are outputs that are not inputs. */
PALLASC_API size_t pallasc_buffer_count(const pallasc_plan *plan);
PALLASC_API int pallasc_buffer(const pallasc_plan *plan, size_t index, pallasc_array *array);

/* Total size of the temporaries; a multiple of 256. */
PALLASC_API size_t pallasc_workspace_bytes(const pallasc_plan *plan);

/* The plan's name in messages: "matmul[m=1024]@h100-sxm". */
PALLASC_API const char *pallasc_name(const pallasc_plan *plan);

/* The architecture that it was compiled for: "sm_90a". */
PALLASC_API const char *pallasc_arch(const pallasc_plan *plan);

/* ---- the process ---- */

/* Forgets the driver and everything that was loaded, as if the process had just started. Programs
 * that destroy or reset primary contexts need it. Plans must be prepared again. No launch may be in
 * progress. */
PALLASC_API void pallasc_forget(void);

/* The library's version: "0.1.0". */
PALLASC_API const char *pallasc_version(void);

#ifdef __cplusplus
}
#endif

#endif
