/* Launch a plan: stack memory only, no lock.
 *
 * A launch has a block on the stack: the parameters passed by value, aligned to 128 and copied
 * together from a template; the array of pointers for `kernelParams`; then the addresses passed as
 * parameters. Tensor maps are encoded directly into the values. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

/* The buffers of a launch. */
struct call {
    const pallasc_plan *plan;
    struct device_state *state;
    void *const *buffers;
    uint64_t workspace;
    cuda_stream stream;
};

static inline uint64_t address_of(const struct call *call, uint32_t buffer)
{
    const struct place *place = &call->plan->places[buffer];
    switch (place->kind) {
    case PASSED: return (uint64_t)(uintptr_t)call->buffers[place->at];
    case WORKSPACE: return call->workspace + place->at;
    case CONSTANT: return call->state->constants[buffer];
    default: return 0;
    }
}

static void *pointer(uint64_t address)
{
    return (void *)(uintptr_t)address;
}

/* ---- checks before anything runs ---- */

static int overlapping(const pallasc_plan *plan, uint32_t written, uint32_t other)
{
    const char *first = path_of(plan, written), *second = path_of(plan, other);
    if (written >= plan->facts->input_count)
        return fail(PALLASC_ERROR_ARGUMENT, "Pass an out array that shares no memory.",
                    "%s: the memory for %s overlaps %s.", name_of(plan), first, second);
    return fail(PALLASC_ERROR_ARGUMENT, "Pass a copy of one of them.",
                "%s: %s, which is updated in place, overlaps %s.", name_of(plan), first, second);
}

static int check_alignment(const struct call *call)
{
    const pallasc_plan *plan = call->plan;
    for (uint32_t i = 0; i < plan->count[FLAT_ARRAYS]; i++) {
        const struct flat_buffer *buffer = buffer_of(plan, i);
        uint64_t address = (uint64_t)(uintptr_t)call->buffers[i];
        uint32_t mask = buffer->alignment - 1; /* usually a power of two: a division takes longer */
        if (!buffer->size)
            continue;
        if (buffer->alignment & mask ? address % buffer->alignment : address & mask)
            return fail(PALLASC_ERROR_ARGUMENT,
                        "Pass a copy, or a view that starts at an aligned address.",
                        "%s: %s starts at %#llx, misaligned by %llu bytes: the kernel requires "
                        "multiples of %u.", name_of(plan), path_of(plan, i),
                        (unsigned long long)address,
                        (unsigned long long)(address % buffer->alignment), buffer->alignment);
        if (!address)
            return fail(PALLASC_ERROR_ARGUMENT, "Pass an array that has memory.",
                        "%s: %s has %llu bytes, and its address is 0.", name_of(plan),
                        path_of(plan, i), (unsigned long long)buffer->size);
    }
    return PALLASC_OK;
}

/* Does a written array overlap one of the first `before` arrays? */
static int check_overlap(const struct call *call, uint32_t number, uint32_t before)
{
    const pallasc_plan *plan = call->plan;
    uint64_t start = (uint64_t)(uintptr_t)call->buffers[number];
    uint64_t bytes = buffer_of(plan, number)->size;
    for (uint32_t i = 0; bytes && i < before; i++) {
        uint64_t begin = (uint64_t)(uintptr_t)call->buffers[i], size = buffer_of(plan, i)->size;
        if (begin - start >= bytes && start - begin >= size)
            continue;
        if (i != number && size)
            return overlapping(plan, number, i);
    }
    return PALLASC_OK;
}

static int check_addresses(const struct call *call)
{
    const pallasc_plan *plan = call->plan;
    uint32_t inputs = plan->facts->input_count;
    int status = check_alignment(call);
    for (uint32_t i = 0; !status && i < plan->count[FLAT_ARRAYS]; i++)
        if (i >= inputs)
            status = check_overlap(call, i, i);
        else if (plan->arrays[i].flags & PALLASC_UPDATED)
            status = check_overlap(call, i, inputs);
    return status;
}

static int check_call(const struct call *call, size_t count)
{
    const pallasc_plan *plan = call->plan;
    if (count != plan->count[FLAT_ARRAYS] || (count && !call->buffers))
        return fail(PALLASC_ERROR_ARGUMENT, NULL, "%s takes %u buffers, not %zu.", name_of(plan),
                    plan->count[FLAT_ARRAYS], call->buffers ? count : 0);
    if (plan->workspace_bytes && (!call->workspace || call->workspace % BUFFER_ALIGNMENT))
        return fail(PALLASC_ERROR_ARGUMENT, NULL,
                    "%s needs %llu bytes of workspace at a multiple of %d, not at %#llx.",
                    name_of(plan), (unsigned long long)plan->workspace_bytes, BUFFER_ALIGNMENT,
                    (unsigned long long)call->workspace);
    return check_addresses(call);
}

/* ---- tensor maps ---- */

static int encode(const struct flat_map *map, void *where, uint64_t address)
{
    if (map->im2col)
        return driver.cuTensorMapEncodeIm2col(
            where, map->type, map->rank, pointer(address), map->dims, map->strides, map->lower,
            map->upper, map->channels, map->pixels, map->element_strides, map->interleave,
            map->swizzle, map->l2_promotion, map->nan_fill);
    return driver.cuTensorMapEncodeTiled(where, map->type, map->rank, pointer(address), map->dims,
                                         map->strides, map->box, map->element_strides,
                                         map->interleave, map->swizzle, map->l2_promotion,
                                         map->nan_fill);
}

/* The driver writes maps only at multiples of 64 or 128; at other addresses, maps are copied. */
static int encode_at(const struct call *call, const struct flat_launch *launch,
                     const struct flat_map *map, unsigned char *where, uint64_t address)
{
    _Alignas(VALUE_ALIGNMENT) unsigned char aside[FLAT_MAP_BYTES];
    int is_aligned = (uintptr_t)where % VALUE_ALIGNMENT == 0;
    int result = encode(map, is_aligned ? where : aside, address);
    if (!result) {
        if (!is_aligned)
            memcpy(where, aside, sizeof aside);
        return PALLASC_OK;
    }
    const char *function = map->im2col ? "cuTensorMapEncodeIm2col" : "cuTensorMapEncodeTiled";
    char what[1024];
    snprintf(what, sizeof what, "a tensor map of %s cannot be encoded",
             kernel_name(call->plan, launch));
    return answer(result, function, what);
}

static int set_maps(const struct call *call, const struct flat_launch *launch,
                    const struct layout *layout, unsigned char *values)
{
    const pallasc_plan *plan = call->plan;
    int status = PALLASC_OK;
    for (uint32_t m = layout->maps; !status && m < layout->maps + layout->map_count; m++) {
        const struct flat_map *map = &plan->maps[m];
        uint64_t address = address_of(call, map->buffer) + map->offset;
        status = encode_at(call, launch, map, values + plan->map_at[m], address);
    }
    return status;
}

/* ---- steps ---- */

/* Returns PALLASC_OK, or the error for a step, with the message of runtime/calls/plain.py. */
static int step_done(const struct call *call, uint32_t number, const char *function, int result)
{
    const char *name = name_of(call->plan), *before = "";
    char what[1024];
    if (!result)
        return PALLASC_OK;
    if (number)
        before = ", but the steps before it were launched";
    if (call->plan->count[FLAT_STEPS] == 1)
        snprintf(what, sizeof what, "%s cannot be launched", name);
    else
        snprintf(what, sizeof what, "step %u of %.900s cannot be launched%s", number, name, before);
    return answer(result, function, what);
}

static int run_launch(const struct call *call, uint32_t step, uint32_t number)
{
    const pallasc_plan *plan = call->plan;
    const struct flat_launch *launch = &plan->launches[number];
    const struct layout *layout = &plan->layouts[number];
    const struct flat_parameter *parameter = plan->parameters + launch->parameters;
    const uint32_t *value_at = plan->value_at + launch->parameters;
    size_t count = launch->parameter_count;

    /* The limits of the format bound its size; hundreds of bytes are usual. */
    unsigned char space[layout->value_bytes + 16 * count + VALUE_ALIGNMENT];
    uintptr_t base = ((uintptr_t)space + VALUE_ALIGNMENT - 1) & ~(uintptr_t)(VALUE_ALIGNMENT - 1);
    unsigned char *values = (unsigned char *)base;
    void **pointers = (void **)(values + layout->value_bytes);
    uint64_t *addresses = (uint64_t *)(pointers + count);

    if (layout->value_bytes)
        memcpy(values, plan->template + layout->values_at, layout->value_bytes);
    for (size_t i = 0; i < count; i++, parameter++) {
        if (parameter->kind != FLAT_POINTER) {
            pointers[i] = values + value_at[i];
            continue;
        }
        addresses[i] = address_of(call, parameter->buffer) + parameter->offset;
        pointers[i] = &addresses[i];
    }
    int status = set_maps(call, launch, layout, values);
    if (status)
        return status;
    struct cuda_launch_attribute attributes[2];
    struct cuda_launch_config config;
    set_config(&config, attributes, launch, call->stream);
    return step_done(call, step, "cuLaunchKernelEx",
                     driver.cuLaunchKernelEx(&config, call->state->functions[number], pointers, NULL));
}

static int run_transfer(const struct call *call, uint32_t number, const struct flat_step *step)
{
    uint64_t target = address_of(call, step->target) + step->target_offset;
    if (step->kind == FLAT_COPY) {
        uint64_t source = address_of(call, step->source) + step->source_offset;
        return step_done(call, number, "cuMemcpyDtoDAsync",
                         driver.cuMemcpyDtoDAsync(target, source, step->size, call->stream));
    }
    if (step->width == 1)
        return step_done(call, number, "cuMemsetD8Async",
                         driver.cuMemsetD8Async(target, (unsigned char)step->value, step->size,
                                                call->stream));
    return step_done(call, number, "cuMemsetD32Async",
                     driver.cuMemsetD32Async(target, (unsigned)step->value, step->size / 4,
                                             call->stream));
}

static int run_steps(const struct call *call)
{
    const pallasc_plan *plan = call->plan;
    int status = PALLASC_OK;
    for (uint32_t i = 0; !status && i < plan->count[FLAT_STEPS]; i++) {
        const struct flat_step *step = &plan->steps[i];
        status = step->kind == FLAT_LAUNCH ? run_launch(call, i, step->target)
                                           : run_transfer(call, i, step);
    }
    return status;
}

/* Not part of the interface: python.c calls it. Records `event`, unless it is NULL, after the
 * launch, even if the launch failed: some of its steps may be enqueued. */
PALLASC_API int pallasc_launch_recorded(const pallasc_plan *plan, int device, void *const *buffers,
                                        size_t count, void *workspace, void *stream, void *event);

int pallasc_launch_recorded(const pallasc_plan *plan, int device, void *const *buffers,
                            size_t count, void *workspace, void *stream, void *event)
{
    if (!is_prepared(plan, device))
        return fail(PALLASC_ERROR_ARGUMENT, "Call pallasc_prepare for this device before.",
                    "%s is not prepared on GPU %d.", name_of(plan), device);
    struct device_state *state = atomic_load(&plan->devices[device]);
    struct call call = {plan, state, buffers, (uint64_t)(uintptr_t)workspace, stream};
    int status = check_call(&call, count);
    if (status)
        return status;
    struct entered entered;
    status = enter_context(&entered, state->context, device);
    if (!status) {
        status = run_steps(&call);
        int result = event ? driver.cuEventRecord(event, stream) : CUDA_OK;
        if (!status)
            status = answer(result, "cuEventRecord", "stream work cannot be recorded");
    }
    leave(&entered);
    return status;
}

int pallasc_launch(const pallasc_plan *plan, int device, void *const *buffers, size_t count,
                   void *workspace, void *stream)
{
    return pallasc_launch_recorded(plan, device, buffers, count, workspace, stream, NULL);
}
