#include "steps.h"

#include "cuda_abi.h"

#include <stdlib.h>
#include <string.h>

static int read_launch(step *made, const uint64_t *words, size_t count, const unsigned char *values,
                       size_t buffers)
{
    enum { HEAD = 16 };
    if (count < HEAD || words[14] > MOST_PARAMETERS || words[15] > MOST_VALUE_BYTES / MAP_BYTES ||
        count != HEAD + 3 * (words[14] + words[15]) || made->value_bytes > MOST_VALUE_BYTES)
        return -1;
    made->function = (void *)(uintptr_t)words[1];
    for (int n = 0; n < 3; n++) {
        made->grid[n] = (uint32_t)words[2 + n];
        made->block[n] = (uint32_t)words[5 + n];
        made->cluster[n] = words[9] ? (uint32_t)words[10 + n] : 0;
    }
    made->smem_bytes = (uint32_t)words[8];
    made->pdl = words[13] != 0;
    made->parameter_count = words[14];
    made->map_count = words[15];
    const uint64_t *parts = words + HEAD;
    for (size_t n = 0; n < made->parameter_count; n++, parts += 3)
        if (parts[0] ? parts[2] > made->value_bytes : parts[1] >= buffers)
            return -1;
    for (size_t n = 0; n < made->map_count; n++, parts += 3)
        if (parts[0] > made->value_bytes || made->value_bytes - parts[0] < MAP_BYTES ||
            parts[1] >= buffers)
            return -1;
    made->parameters = malloc((made->parameter_count + 1) * sizeof *made->parameters);
    made->maps = malloc((made->map_count + 1) * sizeof *made->maps);
    made->values = aligned_alloc(MAP_BYTES, (made->value_bytes / MAP_BYTES + 1) * MAP_BYTES);
    if (!made->parameters || !made->maps || !made->values)
        return -1;
    parts = words + HEAD;
    memcpy(made->parameters, parts, made->parameter_count * sizeof *made->parameters);
    parts += 3 * made->parameter_count;
    memcpy(made->maps, parts, made->map_count * sizeof *made->maps);
    if (made->value_bytes)
        memcpy(made->values, values, made->value_bytes);
    return 0;
}

static int read_memory(step *made, const uint64_t *words, size_t count, size_t buffers)
{
    if (count != 6 || words[1] >= buffers)
        return -1;
    made->buffer = words[1];
    made->offset = words[2];
    if (made->kind == STEP_COPY) {
        made->source = words[3];
        made->source_offset = words[4];
        made->count = words[5];
        return made->source < buffers ? 0 : -1;
    }
    made->count = words[3];
    made->value = words[4];
    made->width = words[5];
    return made->width == 1 || made->width == 4 ? 0 : -1;
}

static void step_free(step *made)
{
    free(made->parameters);
    free(made->maps);
    free(made->values);
}

int step_read(step *made, const uint64_t *words, size_t count, const unsigned char *values,
              size_t value_bytes, size_t buffers)
{
    memset(made, 0, sizeof *made);
    if (!count)
        return -1;
    made->kind = words[0];
    made->value_bytes = value_bytes;
    int code = made->kind == STEP_LAUNCH ? read_launch(made, words, count, values, buffers)
               : made->kind <= STEP_COPY ? read_memory(made, words, count, buffers)
                                         : -1;
    if (code)
        step_free(made);
    return code;
}

void steps_free(steps *plan)
{
    for (size_t n = 0; n < plan->step_count; n++)
        step_free(&plan->list[n]);
    free(plan->list);
    free(plan->places);
    memset(plan, 0, sizeof *plan);
}

/* Sets the addresses of this call in the tensor maps of a copy of the values. */
static int set_maps(const driver_functions *driver, const step *own, unsigned char *values,
                    const uint64_t *addresses)
{
    for (size_t n = 0; n < own->map_count; n++) {
        const map_place *map = &own->maps[n];
        void *address = (void *)(uintptr_t)(addresses[map->buffer] + map->offset);
        int code;
        if (map->at % MAP_BYTES == 0) {
            code = driver->replace_address(values + map->at, address);
        } else {
            _Alignas(MAP_BYTES) unsigned char aside[MAP_BYTES];
            memcpy(aside, values + map->at, MAP_BYTES);
            code = driver->replace_address(aside, address);
            memcpy(values + map->at, aside, MAP_BYTES);
        }
        if (code)
            return code;
    }
    return 0;
}

static int launch_kernel(const driver_functions *driver, const step *own, unsigned char *values,
                         const uint64_t *addresses, void *stream)
{
    uint64_t passed[MOST_PARAMETERS];
    void *parameters[MOST_PARAMETERS];
    struct cuda_launch_attribute attributes[2];
    uint32_t attribute_count = 0;
    for (size_t n = 0; n < own->parameter_count; n++) {
        const parameter *each = &own->parameters[n];
        if (each->is_value) {
            parameters[n] = values + each->at;
        } else {
            passed[n] = addresses[each->buffer] + each->at;
            parameters[n] = &passed[n];
        }
    }
    if (own->cluster[0]) {
        struct cuda_launch_attribute *cluster = &attributes[attribute_count++];
        memset(cluster, 0, sizeof *cluster);
        cluster->id = LAUNCH_CLUSTER;
        memcpy(cluster->value.cluster, own->cluster, sizeof own->cluster);
    }
    if (own->pdl) {
        struct cuda_launch_attribute *pdl = &attributes[attribute_count++];
        memset(pdl, 0, sizeof *pdl);
        pdl->id = LAUNCH_PDL;
        pdl->value.number = 1;
    }
    struct cuda_launch_config made = {
        .grid = {own->grid[0], own->grid[1], own->grid[2]},
        .block = {own->block[0], own->block[1], own->block[2]},
        .smem_bytes = own->smem_bytes,
        .stream = stream,
        .attributes = attributes,
        .attribute_count = attribute_count,
    };
    return driver->launch(&made, own->function, parameters, NULL);
}

/* Launches with tensor maps in a copy of the values on the stack. */
static int launch_mapped(const driver_functions *driver, const step *own, const uint64_t *addresses,
                         void *stream)
{
    _Alignas(MAP_BYTES) unsigned char values[MOST_VALUE_BYTES];
    memcpy(values, own->values, own->value_bytes);
    int code = set_maps(driver, own, values, addresses);
    return code ? code : launch_kernel(driver, own, values, addresses, stream);
}

static int put(const driver_functions *driver, const step *own, const uint64_t *addresses,
               void *stream)
{
    if (own->kind == STEP_LAUNCH)
        return own->map_count ? launch_mapped(driver, own, addresses, stream)
                              : launch_kernel(driver, own, own->values, addresses, stream);
    uint64_t target = addresses[own->buffer] + own->offset;
    if (own->kind == STEP_COPY)
        return driver->copy(target, addresses[own->source] + own->source_offset, own->count,
                            stream);
    return own->width == 1
               ? driver->fill8(target, (unsigned char)own->value, own->count, stream)
               : driver->fill32(target, (unsigned int)own->value, own->count, stream);
}

int steps_launch(const steps *plan, const uint64_t *arrays, uint64_t workspace, void *stream,
                 size_t first, size_t *failed)
{
    uint64_t addresses[MOST_BUFFERS];
    for (size_t n = 0; n < plan->place_count; n++) {
        const place *own = &plan->places[n];
        addresses[n] = own->kind == AT_ARRAY       ? arrays[own->value]
                       : own->kind == AT_WORKSPACE ? workspace + own->value
                                                   : own->value;
    }
    for (size_t n = first; n < plan->step_count; n++) {
        int code = put(&plan->driver, &plan->list[n], addresses, stream);
        if (code) {
            *failed = n;
            return code;
        }
    }
    return 0;
}
