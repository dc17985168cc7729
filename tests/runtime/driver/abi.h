/* The part of the CUDA driver's binary interface that the stand-in offers.
 *
 * Sizes, numbers and signatures as in the CUDA Driver API reference, version 13 (cuda.h of the
 * toolkit declares the same); no CUDA header is needed to compile this. */
#ifndef STANDIN_ABI_H
#define STANDIN_ABI_H

#include <stddef.h>
#include <stdint.h>

#define API __attribute__((visibility("default"))) int

typedef int CUdevice;
typedef uint64_t CUdeviceptr;
typedef uint64_t CUhandle; /* contexts, libraries, kernels, functions, streams, events, graphs */

enum {
    CUDA_SUCCESS = 0,
    INVALID_VALUE = 1,
    OUT_OF_MEMORY = 2,
    NOT_INITIALIZED = 3,
    NO_DEVICE = 100,
    INVALID_DEVICE = 101,
    INVALID_IMAGE = 200,
    INVALID_CONTEXT = 201,
    NO_BINARY_FOR_GPU = 209,
    JIT_COMPILER_NOT_FOUND = 221,
    UNSUPPORTED_PTX_VERSION = 222,
    INVALID_HANDLE = 400,
    NOT_FOUND = 500,
    NOT_READY = 600,
    ILLEGAL_ADDRESS = 700,
    LAUNCH_OUT_OF_RESOURCES = 701,
    CONTEXT_IS_DESTROYED = 709,
    NOT_PERMITTED = 800,
    NOT_SUPPORTED = 801,
    STREAM_CAPTURE_UNSUPPORTED = 900,
    STREAM_CAPTURE_INVALIDATED = 901,
    STREAM_CAPTURE_MERGE = 902,
    STREAM_CAPTURE_UNMATCHED = 903,
    STREAM_CAPTURE_ISOLATION = 905,
    STREAM_CAPTURE_IMPLICIT = 906,
    CAPTURED_EVENT = 907,
    STREAM_CAPTURE_WRONG_THREAD = 908,
    INVALID_CLUSTER_SIZE = 912,
};

typedef union {
    unsigned char bytes[64];
    unsigned dims[3]; /* cluster dimensions */
    int number;       /* every attribute that is one number */
} CUlaunchAttributeValue;

typedef struct {
    unsigned id;
    unsigned padding;
    CUlaunchAttributeValue value;
} CUlaunchAttribute;

typedef struct {
    unsigned grid[3];
    unsigned block[3];
    unsigned smem_bytes;
    unsigned padding;
    CUhandle stream;
    CUlaunchAttribute *attributes;
    unsigned attribute_count;
    unsigned padding_2;
} CUlaunchConfig;

_Static_assert(sizeof(CUlaunchAttribute) == 72, "CUlaunchAttribute has 72 bytes");
_Static_assert(sizeof(CUlaunchConfig) == 56, "CUlaunchConfig has 56 bytes");

/* CUlaunchAttributeID */
enum {
    ATTRIBUTE_CLUSTER_DIMENSION = 4,
    ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION = 6,
    ATTRIBUTE_PROGRAMMATIC_EVENT = 7,
    ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION = 11,
    ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE = 13,
    ATTRIBUTE_LAST = 18,
};

/* CUfunction_attribute */
enum {
    FUNC_MAX_THREADS_PER_BLOCK = 0,
    FUNC_SHARED_SIZE_BYTES = 1,
    FUNC_CONST_SIZE_BYTES = 2,
    FUNC_LOCAL_SIZE_BYTES = 3,
    FUNC_NUM_REGS = 4,
    FUNC_PTX_VERSION = 5,
    FUNC_BINARY_VERSION = 6,
    FUNC_CACHE_MODE_CA = 7,
    FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES = 8,
    FUNC_PREFERRED_SHARED_MEMORY_CARVEOUT = 9,
    FUNC_CLUSTER_SIZE_MUST_BE_SET = 10,
    FUNC_REQUIRED_CLUSTER_WIDTH = 11,
    FUNC_REQUIRED_CLUSTER_DEPTH = 13,
    FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED = 14,
    FUNC_CLUSTER_SCHEDULING_POLICY_PREFERENCE = 15,
};

/* A copy of rows between two pitches; a type of memory says which address counts. */
enum { MEMORY_HOST = 1, MEMORY_DEVICE = 2, MEMORY_ARRAY = 3, MEMORY_UNIFIED = 4 };
enum { MAX_PITCH = 0x7fffffff };

struct copy_end {
    size_t x_bytes, y;
    unsigned memory_type;
    const void *host;
    uint64_t device;
    CUhandle array;
    size_t pitch;
};

struct CUDA_MEMCPY2D {
    struct copy_end source, target;
    size_t width_bytes, height;
};

/* Streams that have no object of their own. */
#define STREAM_LEGACY ((CUhandle)1)
#define STREAM_PER_THREAD ((CUhandle)2)

#endif
