/* Prepare a plan on a device: the same driver queries, in the same order, and the same errors as
 * runtime/calls/plain.py. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    PARAMETER_QUERIES = 12040,
    FORCED_LOADING = 12040,
    DEFAULT_SMEM_BYTES = 48 * 1024,
    PORTABLE_CLUSTER = 8,
    WHAT_BYTES = 1024,
};

/* ---- once per process: cubins in the driver, constants on devices ---- */

enum { EVERYWHERE = -1 };

struct loaded {
    struct loaded *next;
    uint8_t sha256[32];
    unsigned epoch;
    int ordinal; /* of a constant; EVERYWHERE for a cubin */
    int is_loaded;
    union {
        cuda_library library;
        cuda_address address;
    } what;
};

static struct loaded *first_loaded;

/* Returns the entry of a blob, and creates it if it is missing; NULL if memory is exhausted. */
static struct loaded *entry_of(const uint8_t sha256[32], int ordinal)
{
    struct loaded *entry = first_loaded;
    for (; entry; entry = entry->next)
        if (entry->epoch == current_epoch() && entry->ordinal == ordinal &&
            !memcmp(entry->sha256, sha256, sizeof entry->sha256))
            return entry;
    entry = calloc(1, sizeof *entry);
    if (!entry)
        return NULL;
    memcpy(entry->sha256, sha256, sizeof entry->sha256);
    entry->epoch = current_epoch();
    entry->ordinal = ordinal;
    entry->next = first_loaded;
    return first_loaded = entry;
}

/* ---- which GPUs can run a plan ---- */

/* Embedded GPUs are not compatible with others of their major version
 * (runtime/matching/selection.py). */
static int is_embedded(int major, int minor)
{
    int sm = 10 * major + minor;
    return sm == 87 || sm == 88 || sm == 101 || sm == 110;
}

static int check_architecture(const pallasc_plan *plan, const struct device *device)
{
    const char *arch = string_of(plan, plan->facts->arch);
    if (plan->major == device->major && plan->minor == device->minor)
        return PALLASC_OK;
    if (plan->suffix == 'a')
        return fail(PALLASC_ERROR_DEVICE, NULL,
                    "%s cannot run on %s: %s runs on exactly sm_%d%d, and this GPU is sm_%d%d.",
                    name_of(plan), device->label, arch, plan->major, plan->minor, device->major,
                    device->minor);
    if (plan->major == device->major && plan->minor <= device->minor &&
        !is_embedded(plan->major, plan->minor) && !is_embedded(device->major, device->minor))
        return PALLASC_OK;
    return fail(PALLASC_ERROR_DEVICE, NULL,
                "%s cannot run on %s: %s runs on sm_%d%d and newer ones of its family, and this GPU "
                "is sm_%d%d.",
                name_of(plan), device->label, arch, plan->major, plan->minor, device->major,
                device->minor);
}

static int check_minimum_driver(const pallasc_plan *plan, const struct device *device)
{
    int needed = (int)plan->facts->driver;
    if (needed <= driver.version)
        return PALLASC_OK;
    char hint[256], versions[2][16];
    const char *package =
        plan->facts->package == FLAT_NONE ? "" : string_of(plan, plan->facts->package);
    snprintf(hint, sizeof hint, "Install NVIDIA driver %.64s or newer.", package);
    return fail(PALLASC_ERROR_DEVICE, hint,
                "%s cannot run on %s: it needs a driver for CUDA %s, %.64s or newer, and this one is "
                "for CUDA %s.",
                name_of(plan), device->label, version_text(versions[0], needed), package,
                version_text(versions[1], driver.version));
}

static uint64_t product(const uint32_t sizes[3])
{
    return (uint64_t)sizes[0] * sizes[1] * sizes[2];
}

static uint64_t smem_bytes(const pallasc_plan *plan, const struct flat_launch *launch)
{
    return (uint64_t)launch->smem_bytes + plan->kernels[launch->kernel].static_smem_bytes;
}

static int check_launch(const pallasc_plan *plan, const struct flat_launch *launch,
                        const struct device *device)
{
    const char *kernel = kernel_name(plan, launch);
    uint64_t smem = smem_bytes(plan, launch), here = (uint64_t)device->sm_count;
    uint64_t at_a_time = launch->blocks_per_sm, made_for = plan->facts->sm_count;
    /* A grid has fewer than 2^96 blocks. More than 2^64 blocks are never resident at once. */
    uint64_t plane = (uint64_t)launch->grid[0] * launch->grid[1];
    uint64_t blocks = plane > UINT32_MAX ? UINT64_MAX : plane * launch->grid[2];
    if (smem > (uint64_t)device->smem_optin_bytes)
        return fail(PALLASC_ERROR_DEVICE, "Compile for this model, or with smaller tiles.",
                    "a block of %s takes %llu bytes of shared memory, and %s has %d.", kernel,
                    (unsigned long long)smem, device->label, device->smem_optin_bytes);
    if (at_a_time * here < blocks && blocks <= at_a_time * made_for)
        return fail(PALLASC_ERROR_DEVICE, NULL,
                    "%s cannot run on %s: %s needs all %llu blocks resident at once, as on %llu SMs; "
                    "this GPU has %d and could deadlock.",
                    name_of(plan), device->label, kernel, (unsigned long long)blocks,
                    (unsigned long long)made_for, device->sm_count);
    return PALLASC_OK;
}

static int check_device(const pallasc_plan *plan, const struct device *device)
{
    int status = check_architecture(plan, device);
    if (!status)
        status = check_minimum_driver(plan, device);
    for (uint32_t i = 0; !status && i < plan->count[FLAT_LAUNCHES]; i++)
        status = check_launch(plan, &plan->launches[i], device);
    return status;
}

/* ---- cubins and kernels ---- */

/* Here and below, `what` is the start of messages: "kernel K cannot be loaded on D". */
static int get_library(const pallasc_plan *plan, const struct flat_cubin *cubin, const char *what,
                       cuda_library *library)
{
    struct loaded *entry = entry_of(plan->blobs[cubin->blob].sha256, EVERYWHERE);
    if (!entry)
        return fail_host_memory();
    if (!entry->is_loaded) {
        struct entered entered = {0, 0, 0};
        int status = leave_captures_alone(&entered);
        if (!status)
            status = CALL(what, cuLibraryLoadData, &entry->what.library,
                          plan->found[cubin->blob], NULL, NULL, 0, NULL, NULL, 0);
        leave(&entered);
        if (status)
            return status;
        entry->is_loaded = 1;
    }
    *library = entry->what.library;
    return PALLASC_OK;
}

/* Compare the plan with the parameters that the driver reports, if it can report them. */
static int check_parameters(const pallasc_plan *plan, const struct flat_launch *launch,
                            cuda_kernel kernel, const char *what)
{
    const struct flat_kernel *own = &plan->kernels[launch->kernel];
    const uint32_t *sizes = plan->sizes + own->sizes;
    char passed[512] = "", told[512] = "";
    size_t offset, size, count = 0;
    int same = 1;
    if (driver.version < PARAMETER_QUERIES)
        return PALLASC_OK;
    for (; count <= own->size_count; count++) {
        int result = driver.cuKernelGetParamInfo(kernel, count, &offset, &size);
        if (result == CUDA_INVALID_VALUE)
            break;
        if (result)
            return answer(result, "cuKernelGetParamInfo", what);
        same = same && count < own->size_count && size == sizes[count];
        append(told, sizeof told, count ? ", %zu" : "%zu", size);
    }
    if (same && count == own->size_count)
        return PALLASC_OK;
    for (size_t i = 0; i < own->size_count; i++)
        append(passed, sizeof passed, i ? ", %u" : "%u", sizes[i]);
    return fail(PALLASC_ERROR_CORRUPT, NULL,
                "%s: the plan passes parameters of [%s] bytes to %s, and the driver says [%s]",
                name_of(plan), passed, kernel_name(plan, launch), told);
}

static int raise_attribute(cuda_kernel kernel, const struct device *device, int attribute,
                           int value, const char *what)
{
    int held = 0;
    int status =
        CALL(what, cuKernelGetAttribute, &held, attribute, kernel, device->ordinal);
    if (!status && held < value)
        status = CALL(what, cuKernelSetAttribute, attribute, value, kernel, device->ordinal);
    return status;
}

/* Raise the limits of a kernel on a device to the needs of this launch. */
static int allow(const pallasc_plan *plan, const struct flat_launch *launch, cuda_kernel kernel,
                 const struct device *device, const char *what)
{
    int status = PALLASC_OK;
    if (smem_bytes(plan, launch) > DEFAULT_SMEM_BYTES)
        status = raise_attribute(kernel, device, FUNCTION_MAX_DYNAMIC_SHARED_SIZE_BYTES,
                                 (int)launch->smem_bytes, what);
    if (!status && product(launch->cluster) > PORTABLE_CLUSTER)
        status = raise_attribute(kernel, device, FUNCTION_NON_PORTABLE_CLUSTER_SIZE_ALLOWED, 1, what);
    return status;
}

void set_config(struct cuda_launch_config *config, struct cuda_launch_attribute attributes[2],
                const struct flat_launch *launch, cuda_stream stream)
{
    memset(config, 0, sizeof *config);
    memcpy(config->grid, launch->grid, sizeof config->grid);
    memcpy(config->block, launch->block, sizeof config->block);
    config->smem_bytes = launch->smem_bytes;
    config->stream = stream;
    config->attributes = attributes;
    if (launch->cluster[0]) {
        struct cuda_launch_attribute *attribute = &attributes[config->attribute_count++];
        memset(attribute, 0, sizeof *attribute);
        attribute->id = LAUNCH_CLUSTER;
        memcpy(attribute->value.cluster, launch->cluster, sizeof launch->cluster);
    }
    if (launch->pdl) {
        struct cuda_launch_attribute *attribute = &attributes[config->attribute_count++];
        memset(attribute, 0, sizeof *attribute);
        attribute->id = LAUNCH_PDL;
        attribute->value.number = 1;
    }
}

static int check_cluster(const pallasc_plan *plan, const struct flat_launch *launch,
                         cuda_function function, const struct device *device, const char *what)
{
    struct cuda_launch_attribute attributes[2];
    struct cuda_launch_config config;
    int count = 0;
    const uint32_t *cluster = launch->cluster;
    if (!cluster[0])
        return PALLASC_OK;
    set_config(&config, attributes, launch, NULL);
    int result = driver.cuOccupancyMaxActiveClusters(&count, function, &config);
    if (result && result != CUDA_INVALID_CLUSTER_SIZE)
        return answer(result, "cuOccupancyMaxActiveClusters", what);
    if (!result && count >= 1)
        return PALLASC_OK;
    return fail(PALLASC_ERROR_DEVICE, "Compile with a smaller cluster.",
                "a cluster of %u×%u×%u blocks of %s is too large for %s: none fits.", cluster[0],
                cluster[1], cluster[2], kernel_name(plan, launch), device->label);
}

/* Call with the context current and captures protected. */
static int load_function(const pallasc_plan *plan, const struct flat_launch *launch,
                         cuda_kernel kernel, const struct device *device, const char *what,
                         cuda_function *function)
{
    int version, status = allow(plan, launch, kernel, device, what);
    if (!status)
        status = CALL(what, cuKernelGetFunction, function, kernel);
    if (status)
        return status;
    if (driver.version >= FORCED_LOADING)
        status = CALL(what, cuFuncLoad, *function);
    else
        status = CALL(what, cuFuncGetAttribute, &version, FUNCTION_BINARY_VERSION, *function);
    return status ? status : check_cluster(plan, launch, *function, device, what);
}

static int ready_function(const pallasc_plan *plan, const struct flat_launch *launch,
                          const struct device *device, cuda_function *function)
{
    const struct flat_kernel *own = &plan->kernels[launch->kernel];
    char what[WHAT_BYTES];
    cuda_library library = NULL;
    cuda_kernel kernel = NULL;
    snprintf(what, sizeof what, "kernel %s cannot be loaded on %s", kernel_name(plan, launch),
             device->label);
    int status = get_library(plan, &plan->cubins[own->cubin], what, &library);
    if (!status)
        status = CALL(what, cuLibraryGetKernel, &kernel, library, string_of(plan, own->name));
    if (!status)
        status = check_parameters(plan, launch, kernel, what);
    if (status)
        return status;
    struct entered entered;
    status = enter_quietly(&entered, device);
    if (!status)
        status = load_function(plan, launch, kernel, device, what, function);
    leave(&entered);
    return status;
}

/* ---- constants ---- */

static int copy_constant(const pallasc_plan *plan, uint32_t number, const struct device *device,
                         cuda_address *address)
{
    const struct flat_blob *blob = &plan->blobs[number];
    char what[WHAT_BYTES];
    snprintf(what, sizeof what, "the constants of %s do not fit into %s", name_of(plan),
             device->label);
    int status = CALL(what, cuMemAlloc, address, blob->size ? blob->size : 1);
    if (status || !blob->size)
        return status;
    status = CALL(what, cuMemcpyHtoDAsync, *address, plan->found[number], blob->size,
                  device->stream);
    if (!status)
        status = CALL(what, cuStreamSynchronize, device->stream);
    if (status)
        driver.cuMemFree(*address);
    return status;
}

static int get_constant(const pallasc_plan *plan, uint32_t number, struct device *device,
                        cuda_address *address)
{
    struct loaded *entry = entry_of(plan->blobs[number].sha256, device->ordinal);
    if (!entry)
        return fail_host_memory();
    if (!entry->is_loaded) {
        struct entered entered;
        int status = own_stream(device);
        if (status)
            return status;
        status = enter_quietly(&entered, device);
        if (!status)
            status = copy_constant(plan, number, device, &entry->what.address);
        leave(&entered);
        if (status)
            return status;
        entry->is_loaded = 1;
    }
    *address = entry->what.address;
    return PALLASC_OK;
}

/* ---- the state of a plan on a device ---- */

static void free_state(struct device_state *state)
{
    if (!state)
        return;
    free(state->functions);
    free(state->constants);
    free(state);
}

void free_states(pallasc_plan *plan)
{
    for (int i = 0; i < MOST_DEVICES; i++)
        free_state(atomic_load(&plan->devices[i]));
}

static struct device_state *new_state(const pallasc_plan *plan, const struct device *device)
{
    struct device_state *state = calloc(1, sizeof *state);
    if (!state)
        return NULL;
    state->epoch = current_epoch();
    state->ordinal = device->ordinal;
    state->context = device->context;
    state->functions = calloc(plan->count[FLAT_LAUNCHES] + 1ul, sizeof *state->functions);
    state->constants = calloc(plan->count[FLAT_BUFFERS] + 1ul, sizeof *state->constants);
    if (!state->functions || !state->constants) {
        free_state(state);
        return NULL;
    }
    return state;
}

static int fill_state(const pallasc_plan *plan, struct device *device, struct device_state *state)
{
    int status = PALLASC_OK;
    for (uint32_t i = 0; !status && i < plan->count[FLAT_LAUNCHES]; i++)
        status = ready_function(plan, &plan->launches[i], device, &state->functions[i]);
    for (uint32_t i = 0; !status && i < plan->count[FLAT_BUFFERS]; i++)
        if (plan->buffers[i].role == FLAT_CONSTANT)
            status = get_constant(plan, plan->buffers[i].blob, device, &state->constants[i]);
    return status;
}

int is_prepared(const pallasc_plan *plan, int ordinal)
{
    const struct device_state *state = NULL;
    if (ordinal >= 0 && ordinal < MOST_DEVICES)
        state = atomic_load_explicit(&plan->devices[ordinal], memory_order_acquire);
    return state && state->epoch == current_epoch();
}

static int prepare(pallasc_plan *plan, int ordinal)
{
    struct device *device;
    int status = open_driver();
    if (!status)
        status = get_device(ordinal, &device);
    if (status)
        return status;
    struct device_state *old = atomic_load(&plan->devices[ordinal]);
    if (is_prepared(plan, ordinal)) /* by another thread, meanwhile */
        return PALLASC_OK;
    status = check_device(plan, device);
    if (status)
        return status;
    struct device_state *state = new_state(plan, device);
    if (!state)
        return fail_host_memory();
    status = fill_state(plan, device, state);
    if (status) {
        free_state(state);
        return status;
    }
    atomic_store_explicit(&plan->devices[ordinal], state, memory_order_release);
    free_state(old); /* from before a fork, or forgotten: no launch uses it */
    return PALLASC_OK;
}

int pallasc_prepare(pallasc_plan *plan, int device)
{
    if (is_prepared(plan, device))
        return PALLASC_OK;
    lock_process();
    int status = prepare(plan, device);
    unlock_process();
    return status;
}
