#define _POSIX_C_SOURCE 200809L
#include "host.h"

#include "driver.h"
#include "plan.h"

#include <pthread.h>
#include <stdio.h>

/* Device memory for copies; it grows, and is used by one launch at a time. */
struct arena {
    cuda_address address;
    uint64_t bytes;
    unsigned epoch;
};

static struct arena arenas[MOST_DEVICES];
static pthread_mutex_t turn = PTHREAD_MUTEX_INITIALIZER;

int host_devices_in_use(int *ordinals, int most)
{
    int count = 0, found = 0;
    lock_process();
    if (!open_driver() && !driver.cuDeviceGetCount(&count))
        for (int ordinal = 0; ordinal < count && found < most; ordinal++) {
            int handle, active = 0;
            unsigned flags;
            if (!driver.cuDeviceGet(&handle, ordinal) &&
                !driver.cuDevicePrimaryCtxGetState(handle, &flags, &active) && active)
                ordinals[found++] = ordinal;
        }
    unlock_process();
    return found;
}

int host_current_device(void)
{
    int handle = 0;
    lock_process();
    int status = open_driver();
    unlock_process();
    return !status && !driver.cuCtxGetDevice(&handle) ? handle : 0;
}

static uint64_t aligned(uint64_t bytes)
{
    return (bytes + BUFFER_ALIGNMENT - 1) / BUFFER_ALIGNMENT * BUFFER_ALIGNMENT;
}

static int check_packing(const pallasc_plan *plan)
{
    pallasc_array array;
    for (size_t n = 0; n < pallasc_buffer_count(plan); n++) {
        pallasc_buffer(plan, n, &array);
        if (array.bits < 8)
            return fail(PALLASC_ERROR_ARGUMENT, "Run it where JAX uses the GPU.",
                        "%s: %s is %s, of which the CPU stores one per byte, and the GPU several.",
                        pallasc_name(plan), array.path, array.dtype);
    }
    return PALLASC_OK;
}

static int grow(struct arena *arena, const pallasc_plan *plan, const struct device *device,
                uint64_t bytes)
{
    char what[512];
    if (arena->epoch != current_epoch())
        *arena = (struct arena){0, 0, current_epoch()};
    if (arena->bytes >= bytes)
        return PALLASC_OK;
    if (arena->bytes)
        driver.cuMemFree(arena->address);
    arena->bytes = 0;
    snprintf(what, sizeof what, "%.120s needs %llu bytes on %.320s", pallasc_name(plan),
             (unsigned long long)bytes, device->label);
    int status = CALL(what, cuMemAlloc, &arena->address, bytes);
    arena->bytes = status ? 0 : bytes;
    return status;
}

static int copy(const pallasc_plan *plan, const struct device *device, void *const *buffers,
                void *const *places, int is_back)
{
    char what[256];
    int status = PALLASC_OK;
    snprintf(what, sizeof what, is_back ? "a result of %.120s cannot be copied from the GPU"
                                        : "an input of %.120s cannot be copied to the GPU",
             pallasc_name(plan));
    for (size_t n = 0; !status && n < pallasc_buffer_count(plan); n++) {
        pallasc_array array;
        pallasc_buffer(plan, n, &array);
        int wanted = is_back ? array.flags & (PALLASC_UPDATED | PALLASC_RESULT)
                             : array.flags & PALLASC_INPUT;
        cuda_address place = (cuda_address)(uintptr_t)places[n];
        if (!wanted || !array.bytes)
            continue;
        if (is_back)
            status = CALL(what, cuMemcpyDtoHAsync, buffers[n], place, array.bytes, device->stream);
        else
            status = CALL(what, cuMemcpyHtoDAsync, place, buffers[n], array.bytes, device->stream);
    }
    return status;
}

/* Call with the device's context current, captures protected, and the arena not in use. */
static int launch_in(struct arena *arena, pallasc_plan *plan, const struct device *device,
                     void *const *buffers)
{
    void *places[FLAT_MOST_ARRAYS];
    size_t count = pallasc_buffer_count(plan);
    uint64_t total = 0;
    char what[256];
    for (size_t n = 0; n < count; n++) {
        places[n] = (void *)(uintptr_t)total; /* an offset, until the address is known */
        total += aligned(plan->passed[n].bytes);
    }
    int status = grow(arena, plan, device, total + pallasc_workspace_bytes(plan) + 1);
    if (status)
        return status;
    for (size_t n = 0; n < count; n++)
        places[n] = (void *)(uintptr_t)(arena->address + (uintptr_t)places[n]);
    void *workspace = (void *)(uintptr_t)(arena->address + total);
    status = copy(plan, device, buffers, places, 0);
    if (!status)
        status = pallasc_launch(plan, device->ordinal, places, count, workspace, device->stream);
    if (!status)
        status = copy(plan, device, buffers, places, 1);
    if (status) {
        driver.cuStreamSynchronize(device->stream); /* copies may still use the arrays */
        return status;
    }
    snprintf(what, sizeof what, "the results of %.120s cannot be copied from the GPU",
             pallasc_name(plan));
    return CALL(what, cuStreamSynchronize, device->stream);
}

int host_launch(pallasc_plan *plan, int ordinal, void *const *buffers)
{
    struct device *device;
    struct entered entered;
    int status = check_packing(plan);
    if (!status)
        status = use_device(ordinal, &device);
    if (status)
        return status;
    lock_process();
    status = own_stream(device);
    unlock_process();
    if (status)
        return status;
    pthread_mutex_lock(&turn);
    status = enter_quietly(&entered, device);
    if (!status)
        status = launch_in(&arenas[ordinal], plan, device, buffers);
    leave(&entered);
    pthread_mutex_unlock(&turn);
    return status;
}
