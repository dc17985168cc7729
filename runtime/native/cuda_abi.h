/* The part of the CUDA driver's binary interface in use, in our own definitions: structures and
 * numbers as documented in the CUDA Driver API reference, so that no CUDA header is needed. Handles
 * are pointers; device addresses have 64 bits. */
#ifndef PALLASC_CUDA_ABI_H
#define PALLASC_CUDA_ABI_H

#include <stddef.h>
#include <stdint.h>

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

#endif
