/* What a kernel may ask of a device: threads, registers, shared memory, clusters. */
#include "state.h"

enum { REGISTERS = 65536, WARP_REGISTERS_UNIT = 256, WARPS_UNIT = 4, RESERVED_SMEM_BYTES = 1024,
       PORTABLE_CLUSTER = 8, MOST_THREADS = 1024 };

static unsigned product(const uint32_t dims[3])
{
    return dims[0] * dims[1] * dims[2];
}

/* Registers are given to whole warps in units of 256, and warps in units of four. */
static int register_threads(const struct cubin_kernel *code)
{
    int warp = (code->registers * 32 + WARP_REGISTERS_UNIT - 1) / WARP_REGISTERS_UNIT;
    if (!warp)
        return MOST_THREADS;
    int threads = REGISTERS / (warp * WARP_REGISTERS_UNIT) / WARPS_UNIT * WARPS_UNIT * 32;
    return threads < MOST_THREADS ? threads : MOST_THREADS;
}

static int most_threads(const struct cubin_kernel *code)
{
    int most = register_threads(code);
    if (product(code->max_threads) && (int)product(code->max_threads) < most)
        most = (int)product(code->max_threads);
    if (product(code->required_threads) && (int)product(code->required_threads) < most)
        most = (int)product(code->required_threads);
    return most;
}

int kernel_attribute(const struct kernel *kernel, int attribute, int device, int *value)
{
    const struct cubin_kernel *code = kernel->code;
    switch (attribute) {
    case FUNC_MAX_THREADS_PER_BLOCK: *value = most_threads(code); break;
    case FUNC_SHARED_SIZE_BYTES: *value = code->static_smem_bytes; break;
    case FUNC_CONST_SIZE_BYTES: *value = 0; break;
    case FUNC_LOCAL_SIZE_BYTES: *value = code->stack_bytes; break;
    case FUNC_NUM_REGS: *value = code->registers; break;
    case FUNC_PTX_VERSION: case FUNC_BINARY_VERSION: *value = kernel->library->cubin->sm; break;
    case FUNC_CACHE_MODE_CA: *value = 0; break;
    case FUNC_MAX_DYNAMIC_SHARED_SIZE_BYTES: *value = kernel->max_dynamic[device]; break;
    case FUNC_PREFERRED_SHARED_MEMORY_CARVEOUT: *value = kernel->carveout[device]; break;
    case FUNC_CLUSTER_SIZE_MUST_BE_SET: *value = code->explicit_cluster; break;
    case FUNC_REQUIRED_CLUSTER_WIDTH:
    case FUNC_REQUIRED_CLUSTER_WIDTH + 1:
    case FUNC_REQUIRED_CLUSTER_DEPTH:
        *value = kernel->cluster[device][attribute - FUNC_REQUIRED_CLUSTER_WIDTH];
        break;
    case FUNC_NON_PORTABLE_CLUSTER_SIZE_ALLOWED: *value = kernel->non_portable[device]; break;
    case FUNC_CLUSTER_SCHEDULING_POLICY_PREFERENCE: *value = kernel->policy[device]; break;
    default: return INVALID_VALUE;
    }
    return CUDA_SUCCESS;
}

static int check_block(const CUlaunchConfig *config, const struct cubin_kernel *code)
{
    static const unsigned most_block[3] = {1024, 1024, 64};
    static const unsigned most_grid[3] = {0x7fffffff, 65535, 65535};
    for (int i = 0; i < 3; i++)
        if (!config->block[i] || config->block[i] > most_block[i] || !config->grid[i] ||
            config->grid[i] > most_grid[i])
            return INVALID_VALUE;
    unsigned threads = product(config->block);
    if (threads > MOST_THREADS)
        return INVALID_VALUE;
    if (product(code->required_threads))
        for (int i = 0; i < 3; i++)
            if (config->block[i] != code->required_threads[i])
                return INVALID_VALUE;
    return (int)threads > most_threads(code) ? LAUNCH_OUT_OF_RESOURCES : CUDA_SUCCESS;
}

static int check_attribute(const CUlaunchAttribute *attribute, int device, unsigned cluster[3])
{
    int hopper = devices[device].major >= 9;
    switch (attribute->id) {
    case ATTRIBUTE_CLUSTER_DIMENSION:
        for (int i = 0; i < 3; i++)
            if (!(cluster[i] = attribute->value.dims[i]))
                return INVALID_VALUE;
        return hopper || product(cluster) == 1 ? CUDA_SUCCESS : NOT_SUPPORTED;
    case ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION:
        return hopper || !attribute->value.number ? CUDA_SUCCESS : NOT_SUPPORTED;
    case ATTRIBUTE_PROGRAMMATIC_EVENT:
    case ATTRIBUTE_PREFERRED_CLUSTER_DIMENSION:
        return hopper ? CUDA_SUCCESS : NOT_SUPPORTED;
    case ATTRIBUTE_DEVICE_UPDATABLE_KERNEL_NODE:
        return INVALID_VALUE; /* only for nodes of graphs */
    default:
        return attribute->id <= ATTRIBUTE_LAST ? CUDA_SUCCESS : INVALID_VALUE;
    }
}

/* What the kernel itself says about clusters, then what the device can hold. */
static int check_cluster(const CUlaunchConfig *config, const struct kernel *kernel, int device,
                         unsigned cluster[3])
{
    const struct cubin_kernel *code = kernel->code;
    const int *required = kernel->cluster[device];
    int asked = cluster[0] != 0;
    for (int i = 0; i < 3; i++) {
        if (required[0] && asked && cluster[i] != (unsigned)required[i])
            return INVALID_CLUSTER_SIZE;
        if (required[0])
            cluster[i] = (unsigned)required[i];
    }
    if (!cluster[0])
        return code->explicit_cluster ? INVALID_CLUSTER_SIZE : CUDA_SUCCESS;
    for (int i = 0; i < 3; i++)
        if (!cluster[i] || config->grid[i] % cluster[i])
            return INVALID_VALUE;
    unsigned size = product(cluster);
    unsigned most = (unsigned)devices[device].max_cluster;
    if (!kernel->non_portable[device] && most > PORTABLE_CLUSTER)
        most = PORTABLE_CLUSTER;
    if (size > most || (code->max_cluster_rank && size > code->max_cluster_rank))
        return INVALID_CLUSTER_SIZE;
    return CUDA_SUCCESS;
}

/* Blocks of this shape that one SM can hold at once. */
int resident_blocks(const struct kernel *kernel, int device, unsigned threads, size_t smem_bytes)
{
    const struct device *chip = &devices[device];
    int sm = 10 * chip->major + chip->minor;
    int most_threads_sm = sm == 86 || sm == 89 || sm >= 120 ? 1536 : 2048;
    size_t smem = (size_t)kernel->code->static_smem_bytes + smem_bytes + RESERVED_SMEM_BYTES;
    int blocks = most_threads_sm / (int)((threads + 31) / 32 * 32);
    int by_smem = (int)((size_t)chip->smem_sm_bytes / smem);
    int by_registers = kernel->code->registers
                           ? REGISTERS / ((kernel->code->registers + 7) / 8 * 8 * (int)((threads + 31) / 32 * 32))
                           : blocks;
    int most = blocks_per_sm(chip);
    blocks = most < blocks ? most : blocks;
    blocks = by_smem < blocks ? by_smem : blocks;
    return by_registers < blocks ? by_registers : blocks;
}

/* Check what does not depend on the arguments; `cluster` gets the cluster that will run, or 0. */
int check_limits(const CUlaunchConfig *config, const struct kernel *kernel, int device,
                 unsigned cluster[3])
{
    int code = check_block(config, kernel->code);
    cluster[0] = cluster[1] = cluster[2] = 0;
    if (!code && config->attribute_count && !config->attributes)
        code = INVALID_VALUE;
    for (unsigned i = 0; !code && i < config->attribute_count; i++)
        code = check_attribute(&config->attributes[i], device, cluster);
    if (!code && (config->smem_bytes > INT32_MAX ||
                  (int)config->smem_bytes > kernel->max_dynamic[device]))
        code = INVALID_VALUE;
    if (!code)
        code = check_cluster(config, kernel, device, cluster);
    return code;
}
