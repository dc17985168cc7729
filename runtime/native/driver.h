/* The CUDA driver, opened on first use; its GPUs and their contexts.
 *
 * No CUDA header is needed: this file defines the structures and numbers in use, as documented in
 * the CUDA Driver API reference. Handles are pointers; device addresses have 64 bits. */
#ifndef PALLASC_DRIVER_H
#define PALLASC_DRIVER_H

#include "errors.h"

typedef struct cuda_context *cuda_context;
typedef struct cuda_library *cuda_library;
typedef struct cuda_kernel *cuda_kernel;
typedef struct cuda_function *cuda_function;
typedef struct cuda_stream *cuda_stream;
typedef uint64_t cuda_address;

/* CUresult */
enum {
    CUDA_OK = 0,
    CUDA_INVALID_VALUE = 1,
    CUDA_OUT_OF_MEMORY = 2,
    CUDA_INVALID_CLUSTER_SIZE = 912,
};

/* CUdevice_attribute */
enum {
    DEVICE_MULTIPROCESSORS = 16,
    DEVICE_MAJOR = 75,
    DEVICE_MINOR = 76,
    DEVICE_SMEM_OPTIN = 97,
};

/* CUfunction_attribute */
enum {
    FUNCTION_BINARY_VERSION = 6,
    FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
};

enum { STREAM_NON_BLOCKING = 1 };            /* CUstream_flags */
enum { CAPTURE_MODE_RELAXED = 2 };           /* CUstreamCaptureMode */
enum { LAUNCH_CLUSTER = 4, LAUNCH_PDL = 6 }; /* CUlaunchAttributeID */

/* CUlaunchAttribute: a number, then at offset 8 a union of 64 bytes. */
struct cuda_launch_attribute {
    uint32_t id, padding;
    union {
        uint8_t bytes[64];
        uint32_t cluster[3];
        int32_t number;
    } value;
};

/* CUlaunchConfig */
struct cuda_launch_config {
    uint32_t grid[3], block[3];
    uint32_t smem_bytes, padding;
    cuda_stream stream;
    struct cuda_launch_attribute *attributes;
    uint32_t attribute_count, padding_2;
};

_Static_assert(sizeof(struct cuda_launch_attribute) == 72, "CUlaunchAttribute has 72 bytes");
_Static_assert(sizeof(struct cuda_launch_config) == 56, "CUlaunchConfig has 56 bytes");
_Static_assert(sizeof(void *) == 8, "the driver is for machines of 64 bits");

/* The driver's functions; NULL if the driver is too old. Written once, under the lock. */
struct driver {
    int version; /* 13020 for 13.2 */
#define FUNCTION(name, since, arguments) int (*name) arguments;
#include "driver_functions.h"
#undef FUNCTION
};

struct device {
    int ordinal;
    int major, minor, sm_count, smem_optin_bytes;
    cuda_context context; /* its primary context, retained */
    cuda_stream stream;   /* for work that this library waits for; NULL until created */
    char label[320];      /* "GPU 0 (NVIDIA H100, sm_90)" */
};

extern struct driver driver;

/* Held while anything is created that exists once per process; not held by launches. */
void lock_process(void);
void unlock_process(void);

/* Incremented whenever everything loaded is lost: in a forked child, or by pallasc_forget. */
unsigned current_epoch(void);

/* Call these with the lock held. */
int open_driver(void);
int get_device(int ordinal, struct device **device);
int own_stream(struct device *device);

/* Opens the driver and finds a device; call it without the lock. */
int use_device(int ordinal, struct device **device);

/* The version as text: "13.2". */
const char *version_text(char text[16], int version);

/* Call a driver function; `what` is the start of the error message. */
#define CALL(what, name, ...) answer(driver.name(__VA_ARGS__), #name, what)
int answer(int result, const char *function, const char *what);

/* Make a device's context current, or keep captures valid, or both (`quietly`), until `leave`. */
struct entered {
    int has_pushed, has_exchanged, mode;
};
int enter_context(struct entered *entered, cuda_context context, int ordinal);
int leave_captures_alone(struct entered *entered);
int enter_quietly(struct entered *entered, const struct device *device);
void leave(struct entered *entered);

#endif
