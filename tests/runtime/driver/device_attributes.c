/* cuDeviceGetAttribute. Limits from "Technical Specifications per Compute Capability" in the CUDA
 * C++ Programming Guide. */
#include "state.h"

enum { KIB = 1024, RESERVED_SMEM_BYTES = 1024 };

static int threads_per_sm(const struct device *device)
{
    int sm = 10 * device->major + device->minor;
    return sm == 86 || sm == 89 || sm >= 120 ? 1536 : 2048;
}

int blocks_per_sm(const struct device *device)
{
    int sm = 10 * device->major + device->minor;
    return sm == 86 ? 16 : sm == 89 || sm >= 110 ? 24 : 32;
}

static int attribute_value(const struct device *device, int number, int attribute, int *value)
{
    int hopper = device->major >= 9;
    switch (attribute) {
    case 1: *value = 1024; break;                     /* MAX_THREADS_PER_BLOCK */
    case 2: case 3: *value = 1024; break;             /* MAX_BLOCK_DIM_X, _Y */
    case 4: *value = 64; break;                       /* MAX_BLOCK_DIM_Z */
    case 5: *value = 0x7fffffff; break;               /* MAX_GRID_DIM_X */
    case 6: case 7: *value = 65535; break;            /* MAX_GRID_DIM_Y, _Z */
    case 8: *value = 48 * KIB; break;                 /* MAX_SHARED_MEMORY_PER_BLOCK */
    case 9: *value = 64 * KIB; break;                 /* TOTAL_CONSTANT_MEMORY */
    case 10: *value = 32; break;                      /* WARP_SIZE */
    case 11: *value = 0x7fffffff; break;              /* MAX_PITCH */
    case 12: case 82: *value = 65536; break;          /* MAX_REGISTERS_PER_BLOCK, _MULTIPROCESSOR */
    case 13: *value = device->clock_khz; break;       /* CLOCK_RATE */
    case 14: *value = 512; break;                     /* TEXTURE_ALIGNMENT */
    case 15: *value = 1; break;                       /* GPU_OVERLAP */
    case 16: *value = device->sms; break;             /* MULTIPROCESSOR_COUNT */
    case 17: case 18: case 20: *value = 0; break;     /* EXEC_TIMEOUT, INTEGRATED, COMPUTE_MODE */
    case 19: case 31: case 32: *value = 1; break;     /* MAP_HOST, CONCURRENT_KERNELS, ECC */
    case 33: *value = number + 1; break;              /* PCI_BUS_ID */
    case 34: case 35: case 50: *value = 0; break;     /* PCI_DEVICE_ID, TCC_DRIVER, PCI_DOMAIN_ID */
    case 36: *value = device->memory_clock_khz; break; /* MEMORY_CLOCK_RATE */
    case 37: *value = device->bus_bits; break;        /* GLOBAL_MEMORY_BUS_WIDTH */
    case 38: *value = device->l2_bytes; break;        /* L2_CACHE_SIZE */
    case 39: *value = threads_per_sm(device); break;  /* MAX_THREADS_PER_MULTIPROCESSOR */
    case 40: *value = 3; break;                       /* ASYNC_ENGINE_COUNT */
    case 41: *value = 1; break;                       /* UNIFIED_ADDRESSING */
    case 75: *value = device->major; break;           /* COMPUTE_CAPABILITY_MAJOR */
    case 76: *value = device->minor; break;           /* COMPUTE_CAPABILITY_MINOR */
    case 78: case 79: case 80: *value = 1; break;     /* STREAM_PRIORITIES, L1 caches */
    case 81: *value = device->smem_sm_bytes; break;   /* MAX_SHARED_MEMORY_PER_MULTIPROCESSOR */
    case 83: *value = 1; break;                       /* MANAGED_MEMORY */
    case 88: case 89: *value = 0; break;              /* PAGEABLE_MEMORY, CONCURRENT_MANAGED */
    case 90: case 91: *value = 1; break;              /* COMPUTE_PREEMPTION, HOST_POINTER_REGISTERED */
    case 95: case 99: *value = 1; break;              /* COOPERATIVE_LAUNCH, HOST_REGISTER */
    case 97: *value = device->smem_optin_bytes; break; /* MAX_SHARED_MEMORY_PER_BLOCK_OPTIN */
    case 102: *value = 1; break;                      /* VIRTUAL_ADDRESS_MANAGEMENT */
    case 106: *value = blocks_per_sm(device); break;  /* MAX_BLOCKS_PER_MULTIPROCESSOR */
    case 111: *value = RESERVED_SMEM_BYTES; break;    /* RESERVED_SHARED_MEMORY_PER_BLOCK */
    case 115: *value = 1; break;                      /* MEMORY_POOLS_SUPPORTED */
    case 120: *value = hopper; break;                 /* CLUSTER_LAUNCH */
    case 126: *value = hopper ? 4 : 1; break;         /* MEM_SYNC_DOMAIN_COUNT */
    case 127: *value = hopper; break;                 /* TENSOR_MAP_ACCESS_SUPPORTED */
    case 129: *value = 1; break;                      /* UNIFIED_FUNCTION_POINTERS */
    case 132: *value = 0; break;                      /* MULTICAST_SUPPORTED */
    default:
        if (attribute < 1 || attribute > 161)
            return INVALID_VALUE;
        *value = 0; /* textures, surfaces, sharing between processes: nothing of it */
    }
    return CUDA_SUCCESS;
}

API cuDeviceGetAttribute(int *value, int attribute, CUdevice device)
{
    int code = enter(ID_cuDeviceGetAttribute);
    if (!code && !value)
        code = INVALID_VALUE;
    if (!code && (device < 0 || device >= device_count))
        code = INVALID_DEVICE;
    if (!code)
        code = attribute_value(&devices[device], device, attribute, value);
    uint64_t values[] = {(uint64_t)attribute, (uint64_t)device};
    return leave_with(ID_cuDeviceGetAttribute, code, 0, values, 2);
}
