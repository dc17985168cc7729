/* Open a flat plan: everything is verified here, once, so nothing has to be checked later.
 *
 * Offsets and sizes are compared by subtracting from a larger value, or in 64 bits after they were
 * bounded, so no sum overflows. All loops run over entries within the block. */
#include "plan.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "flat plans are read in place, on little-endian machines only"
#endif

enum {
    CHECKED = (int)sizeof(((struct flat_header *)0)->magic) + 16 + 32,
    MOST_BITS = 128, /* of an element */
    MOST_MAP_RANK = 5,
};

/* Used after the check of the digest, so only a forged plan or a faulty writer is the cause. */
static int damaged(const char *what, uint64_t number)
{
    return fail(PALLASC_ERROR_CORRUPT, NULL, "the flat plan is damaged: %s %llu is not valid.", what,
                (unsigned long long)number);
}

static const uint32_t entry_bytes[FLAT_TABLES] = {
#define TABLE(number, name, entry) sizeof(entry),
    FLAT_EACH_TABLE(TABLE)
#undef TABLE
};

static uint64_t align(uint64_t size, uint64_t alignment)
{
    return (size + alignment - 1) / alignment * alignment;
}

/* ---- header and tables ---- */

static int check_header(const struct flat_header *header, size_t size)
{
    if (memcmp(header->magic, FLAT_MAGIC, sizeof header->magic))
        return fail(PALLASC_ERROR_CORRUPT, NULL, "these bytes are not a flat plan.");
    if (header->version != FLAT_VERSION)
        return fail(PALLASC_ERROR_CORRUPT,
                    "Write it with this version of pallasc, or install the one that wrote it.",
                    "the flat plan has version %u, and this library reads version %u.",
                    header->version, FLAT_VERSION);
    if (header->header_bytes != sizeof *header || header->total_bytes != size)
        return fail(PALLASC_ERROR_CORRUPT, NULL,
                    "the flat plan is damaged: its header says %llu bytes, but there are %zu.",
                    (unsigned long long)header->total_bytes, size);
    uint8_t digest[32];
    sha256((const char *)header + CHECKED, size - CHECKED, digest);
    if (memcmp(digest, header->digest, sizeof digest))
        return fail(PALLASC_ERROR_CORRUPT, NULL,
                    "the flat plan is damaged: its bytes do not match its digest.");
    return PALLASC_OK;
}

/* Every table must start right after the previous one, so tables cannot overlap. */
static int check_tables(pallasc_plan *plan, const struct flat_header *header, size_t size)
{
    uint64_t end = sizeof *header;
    for (int i = 0; i < FLAT_TABLES; i++) {
        const struct flat_table *table = &header->tables[i];
        uint64_t start = align(end, 16), bytes = (uint64_t)table->count * table->entry_bytes;
        if (table->entry_bytes != entry_bytes[i] || table->offset != start || start > size ||
            bytes > size - start)
            return damaged("table", (uint64_t)i);
        plan->count[i] = table->count;
        end = start + bytes;
    }
    return end == size ? PALLASC_OK : damaged("the byte after its tables,", end);
}

static void find_tables(pallasc_plan *plan, const struct flat_header *header)
{
#define TABLE(number, name, entry) \
    plan->name = (const void *)(plan->data + header->tables[number].offset);
    FLAT_EACH_TABLE(TABLE)
#undef TABLE
}

static int check_strings(const pallasc_plan *plan)
{
    size_t count = plan->count[FLAT_STRINGS], length;
    const unsigned char *text = (const unsigned char *)plan->strings;
    if (!count || text[count - 1])
        return damaged("table", FLAT_STRINGS);
    for (size_t at = 0; at < count; at += length)
        if (!(length = character(text + at, count - at)))
            return damaged("the text at", at);
    return PALLASC_OK;
}

static int is_string(const pallasc_plan *plan, uint32_t at)
{
    return at < plan->count[FLAT_STRINGS] && (!at || !plan->strings[at - 1]);
}

/* "sm_90a": digits, the last of which is the minor version, and a suffix. */
static int read_architecture(pallasc_plan *plan, const char *arch)
{
    int number = 0;
    const char *at = strncmp(arch, "sm_", 3) ? "" : arch + 3, *first = at;
    for (; *at >= '0' && *at <= '9' && at - first < 5; at++)
        number = 10 * number + (*at - '0');
    plan->suffix = *at == 'a' || *at == 'f' ? *at : 0;
    plan->major = number / 10;
    plan->minor = number % 10;
    return at - first >= 2 && !at[plan->suffix ? 1 : 0];
}

static int check_facts(pallasc_plan *plan)
{
    const struct flat_facts *facts = plan->facts;
    if (plan->count[FLAT_FACTS] != 1 || plan->count[FLAT_ARRAYS] > FLAT_MOST_ARRAYS ||
        facts->input_count > plan->count[FLAT_ARRAYS] || !is_string(plan, facts->name) ||
        (facts->package != FLAT_NONE && !is_string(plan, facts->package)) ||
        !is_string(plan, facts->arch) || !read_architecture(plan, string_of(plan, facts->arch)))
        return damaged("table", FLAT_FACTS);
    return PALLASC_OK;
}

/* ---- cubins and constants ---- */

/* No digest may occur twice, or one large blob could be requested and copied again and again. */
static int is_new_blob(const pallasc_plan *plan, uint32_t number)
{
    const struct flat_blob *blobs = plan->blobs;
    for (uint32_t i = 0; i < number; i++)
        if (!memcmp(blobs[i].sha256, blobs[number].sha256, sizeof blobs[i].sha256))
            return 0;
    return 1;
}

static int check_blobs(const pallasc_plan *plan)
{
    uint64_t end = 0;
    if (plan->count[FLAT_BLOBS] > FLAT_MOST_BLOBS)
        return damaged("table", FLAT_BLOBS);
    for (uint32_t i = 0; i < plan->count[FLAT_BLOBS]; i++) {
        const struct flat_blob *blob = &plan->blobs[i];
        uint64_t start = blob->inside ? align(end, 16) : 0;
        if (blob->inside > 1 || blob->offset != start || !is_new_blob(plan, i))
            return damaged("blob", i);
        if (!blob->inside)
            continue;
        if (start > plan->count[FLAT_DATA] || blob->size > plan->count[FLAT_DATA] - start)
            return damaged("blob", i);
        end = start + blob->size;
    }
    return PALLASC_OK;
}

static int read_blob(pallasc_plan *plan, uint32_t number, pallasc_find find, void *context)
{
    const struct flat_blob *blob = &plan->blobs[number];
    const void **found = &plan->found[number];
    char digest_text[65];
    uint8_t digest[32];
    const void *data = plan->content + blob->offset;
    size_t size = blob->size;
    for (int i = 0; i < 32; i++)
        snprintf(digest_text + 2 * i, 3, "%02x", blob->sha256[i]);
    if (!blob->inside &&
        (!find || find(context, digest_text, &data, &size) || (!data && size)))
        return fail(PALLASC_ERROR_NOT_FOUND,
                    find ? "Install the bundle that it came with, or write the plan with its cubins."
                         : "Write the plan with its cubins inside, or say where they are found.",
                    "%s: the plan names its cubin or constant %.12s by digest, and it is not here.",
                    name_of(plan), digest_text);
    if (blob->inside) {
        *found = data;
    } else if (size == blob->size) {
        void *copy = malloc(size ? size : 1);
        if (!copy)
            return fail_host_memory();
        *found = size ? memcpy(copy, data, size) : copy;
    }
    /* Plans share what they load by the digests of blobs, so the block's digest is not enough. */
    if (size == blob->size)
        sha256(*found, size, digest);
    if (size != blob->size || memcmp(digest, blob->sha256, sizeof digest))
        return fail(PALLASC_ERROR_CORRUPT, NULL, "%s: blob %s does not match its digest",
                    name_of(plan), digest_text);
    return PALLASC_OK;
}

static int read_blobs(pallasc_plan *plan, pallasc_find find, void *context)
{
    int status = PALLASC_OK;
    for (uint32_t i = 0; !status && i < plan->count[FLAT_BLOBS]; i++)
        status = read_blob(plan, i, find, context);
    return status;
}

static int check_code(const pallasc_plan *plan)
{
    for (uint32_t i = 0; i < plan->count[FLAT_CUBINS]; i++) {
        uint32_t blob = plan->cubins[i].blob;
        char text[128];
        const char *broken = broken_cubin(plan->found[blob], plan->blobs[blob].size,
                                          plan->major * 10 + plan->minor, text, sizeof text);
        if (broken)
            return fail(PALLASC_ERROR_CORRUPT, NULL, "%s: %s", name_of(plan), broken);
    }
    return PALLASC_OK;
}

/* ---- buffers and arrays ---- */

static int check_buffers(pallasc_plan *plan)
{
    for (uint32_t i = 0; i < plan->count[FLAT_BUFFERS]; i++) {
        const struct flat_buffer *buffer = &plan->buffers[i];
        struct place *place = &plan->places[i];
        int is_constant = buffer->role == FLAT_CONSTANT;
        if (buffer->role > FLAT_TEMPORARY || buffer->size >= FLAT_MOST_SIZE || !buffer->alignment ||
            (is_constant ? buffer->blob >= plan->count[FLAT_BLOBS] ||
                               plan->blobs[buffer->blob].size != buffer->size
                         : buffer->blob != FLAT_NONE))
            return damaged("buffer", i);
        if (is_constant)
            place->kind = CONSTANT;
        if (buffer->role != FLAT_TEMPORARY)
            continue;
        *place = (struct place){WORKSPACE, plan->workspace_bytes};
        plan->workspace_bytes += align(buffer->size, BUFFER_ALIGNMENT);
        if (plan->workspace_bytes >= FLAT_MOST_SIZE)
            return damaged("buffer", i);
    }
    return PALLASC_OK;
}

/* Returns 0 if an array takes more than 2^60 bytes. */
static int array_bytes(const pallasc_plan *plan, const struct flat_array *array, uint64_t *bytes)
{
    uint64_t bits = array->bits, most = 1ull << 63;
    const int64_t *shape = plan->numbers + array->numbers;
    *bytes = 0;
    for (uint32_t i = 0; i < array->rank; i++)
        if (!shape[i])
            return 1;
    for (uint32_t i = 0; i < array->rank; i++) {
        if (bits > most / (uint64_t)shape[i])
            return 0;
        bits *= (uint64_t)shape[i];
    }
    *bytes = (bits + 7) / 8;
    return 1;
}

/* `numbers` counts the numbers used so far. */
static int is_array(const pallasc_plan *plan, uint32_t number, uint32_t *numbers)
{
    const struct flat_array *array = &plan->arrays[number];
    uint32_t left = plan->count[FLAT_NUMBERS] - *numbers;
    uint64_t bytes;
    if (!is_string(plan, array->path) || !is_string(plan, array->dtype) || !array->bits ||
        array->bits > MOST_BITS || array->rank > FLAT_MOST_RANK ||
        array->numbers != *numbers || 2 * array->rank > left ||
        array->buffer >= plan->count[FLAT_BUFFERS] || array->place != number)
        return 0;
    for (uint32_t i = 0; i < 2 * array->rank; i++)
        if (plan->numbers[*numbers + i] < 0)
            return 0;
    *numbers += 2 * array->rank;
    const struct flat_buffer *buffer = &plan->buffers[array->buffer];
    uint32_t flags = number < plan->facts->input_count ? PALLASC_INPUT : PALLASC_RESULT;
    uint32_t may_have = flags == PALLASC_INPUT ? PALLASC_UPDATED : 0;
    return array_bytes(plan, array, &bytes) && bytes == buffer->size &&
           (array->flags & ~may_have) == flags && buffer->role <= FLAT_OUTPUT &&
           plan->places[array->buffer].kind == NOWHERE;
}

static int check_arrays(pallasc_plan *plan)
{
    uint32_t numbers = 0;
    for (uint32_t i = 0; i < plan->count[FLAT_ARRAYS]; i++) {
        if (!is_array(plan, i, &numbers))
            return damaged("array", i);
        plan->places[plan->arrays[i].buffer] = (struct place){PASSED, i};
    }
    for (uint32_t i = 0; i < plan->count[FLAT_BUFFERS]; i++)
        if (plan->buffers[i].role <= FLAT_OUTPUT && plan->places[i].kind == NOWHERE &&
            plan->buffers[i].size)
            return damaged("buffer", i); /* no array provides it */
    return PALLASC_OK;
}

/* Are `size` bytes from an offset on inside of a buffer? */
static int lies_inside(const pallasc_plan *plan, uint32_t buffer, uint64_t offset, uint64_t size)
{
    if (buffer >= plan->count[FLAT_BUFFERS])
        return 0;
    uint64_t held = plan->buffers[buffer].size;
    return offset <= held && size <= held - offset;
}

/* ---- kernels ---- */

static int is_new_cubin(const pallasc_plan *plan, uint32_t number)
{
    for (uint32_t i = 0; i < number; i++)
        if (plan->cubins[i].blob == plan->cubins[number].blob)
            return 0;
    return 1;
}

static int check_cubins(const pallasc_plan *plan)
{
    for (uint32_t i = 0; i < plan->count[FLAT_CUBINS]; i++) {
        const struct flat_cubin *cubin = &plan->cubins[i];
        if (i >= plan->count[FLAT_BLOBS] || cubin->blob >= plan->count[FLAT_BLOBS] ||
            !is_new_cubin(plan, i))
            return damaged("cubin", i);
    }
    return PALLASC_OK;
}

static int check_kernels(const pallasc_plan *plan)
{
    uint32_t used = 0;
    if (plan->count[FLAT_KERNELS] > FLAT_MOST_KERNELS)
        return damaged("table", FLAT_KERNELS);
    for (uint32_t i = 0; i < plan->count[FLAT_KERNELS]; i++) {
        const struct flat_kernel *kernel = &plan->kernels[i];
        if (!is_string(plan, kernel->name) || kernel->cubin >= plan->count[FLAT_CUBINS] ||
            kernel->sizes != used || kernel->size_count > plan->count[FLAT_SIZES] - used ||
            kernel->size_count > FLAT_MOST_PARAMETERS)
            return damaged("kernel", i);
        used += kernel->size_count;
    }
    return PALLASC_OK;
}

/* ---- steps ---- */

/* Like `lies_inside`, but not for constants: plans share them, so no step may write to them. */
static int may_write(const pallasc_plan *plan, const struct flat_step *step)
{
    return lies_inside(plan, step->target, step->target_offset, step->size) &&
           plan->buffers[step->target].role != FLAT_CONSTANT;
}

static int is_fill(const pallasc_plan *plan, const struct flat_step *step)
{
    return (step->width == 1 || step->width == 4) && step->size && step->size % step->width == 0 &&
           !(step->value >> 8 * step->width) && may_write(plan, step);
}

static int is_copy(const pallasc_plan *plan, const struct flat_step *step)
{
    return step->size && may_write(plan, step) &&
           lies_inside(plan, step->source, step->source_offset, step->size);
}

static int check_steps(const pallasc_plan *plan)
{
    uint32_t launches = 0;
    for (uint32_t i = 0; i < plan->count[FLAT_STEPS]; i++) {
        const struct flat_step *step = &plan->steps[i];
        int is_valid = step->kind == FLAT_FILL   ? is_fill(plan, step)
                       : step->kind == FLAT_COPY ? is_copy(plan, step)
                                                 : step->kind == FLAT_LAUNCH &&
                                                       step->target == launches++;
        if (!is_valid)
            return damaged("step", i);
    }
    return launches == plan->count[FLAT_LAUNCHES] ? PALLASC_OK : damaged("table", FLAT_LAUNCHES);
}

/* Numbers of table entries used so far. */
struct used {
    uint32_t parameters, maps, values;
    uint64_t bytes; /* passed by value */
};

/* Are the rank and the enumeration values of a map known to the driver? The driver reads `rank`
 * sizes and strides, and checks them itself. */
static int is_map(const struct flat_map *map)
{
    return map->rank >= (map->im2col ? 3 : 1) && map->rank <= MOST_MAP_RANK && map->type <= 9 &&
           map->swizzle <= 3 && map->interleave <= 2 && map->l2_promotion <= 3 &&
           map->nan_fill <= 1 && map->im2col <= 1 &&
           (!map->im2col || (map->channels && map->pixels));
}

static int check_maps(pallasc_plan *plan, const struct flat_parameter *parameter, uint32_t value_at)
{
    uint64_t free_at = 0; /* maps are in the order of their offsets */
    for (uint32_t i = parameter->maps; i < parameter->maps + parameter->map_count; i++) {
        const struct flat_map *map = &plan->maps[i];
        if (!is_map(map) || !lies_inside(plan, map->buffer, map->offset, 0) ||
            parameter->size < FLAT_MAP_BYTES || map->at > parameter->size - FLAT_MAP_BYTES ||
            map->at < free_at)
            return damaged("tensor map", i);
        plan->map_at[i] = value_at + map->at;
        free_at = (uint64_t)map->at + FLAT_MAP_BYTES;
    }
    return PALLASC_OK;
}

static int check_parameter(pallasc_plan *plan, uint32_t number, struct used *used,
                           struct layout *layout)
{
    const struct flat_parameter *parameter = &plan->parameters[number];
    int is_value = parameter->kind == FLAT_VALUE;
    if (parameter->kind > FLAT_ZEROS || parameter->maps != used->maps ||
        parameter->map_count > plan->count[FLAT_MAPS] - used->maps)
        return damaged("parameter", number);
    if (parameter->kind == FLAT_POINTER)
        return parameter->size == 8 && !parameter->map_count &&
                       lies_inside(plan, parameter->buffer, parameter->offset, 0)
                   ? PALLASC_OK
                   : damaged("parameter", number);
    if (parameter->offset != (is_value ? used->values : 0) ||
        parameter->size > FLAT_MOST_PARAMETER_BYTES ||
        (is_value && parameter->size > plan->count[FLAT_VALUES] - used->values))
        return damaged("parameter", number);
    uint64_t at = align(layout->value_bytes, parameter->map_count ? VALUE_ALIGNMENT : 16);
    plan->value_at[number] = (uint32_t)at;
    layout->value_bytes = align(at + parameter->size, 16);
    if (is_value)
        used->values += parameter->size;
    used->maps += parameter->map_count;
    used->bytes += parameter->size;
    if (used->bytes > FLAT_MOST_VALUE_BYTES)
        return damaged("parameter", number);
    return check_maps(plan, parameter, (uint32_t)at);
}

/* Do the parameters of a launch have the sizes that its kernel declares, within the limit? */
static int has_sizes(const pallasc_plan *plan, const struct flat_launch *launch)
{
    const struct flat_kernel *kernel = &plan->kernels[launch->kernel];
    uint64_t sum = 0;
    if (launch->parameter_count != kernel->size_count)
        return 0;
    for (uint32_t i = 0; i < launch->parameter_count; i++) {
        uint32_t size = plan->parameters[launch->parameters + i].size;
        sum += size;
        if (size != plan->sizes[kernel->sizes + i])
            return 0;
    }
    return sum <= FLAT_MOST_PARAMETER_BYTES;
}

static int has_shape(const struct flat_launch *launch)
{
    const uint32_t *cluster = launch->cluster;
    int has_cluster = cluster[0] || cluster[1] || cluster[2];
    for (int i = 0; i < 3; i++) {
        if (!launch->grid[i] || !launch->block[i] || (has_cluster && !cluster[i]))
            return 0;
        if (has_cluster && launch->grid[i] % cluster[i])
            return 0;
    }
    return launch->blocks_per_sm != 0;
}

static int check_launch(pallasc_plan *plan, uint32_t number, struct used *used)
{
    const struct flat_launch *launch = &plan->launches[number];
    struct layout *layout = &plan->layouts[number];
    if (launch->kernel >= plan->count[FLAT_KERNELS] || launch->parameters != used->parameters ||
        launch->parameter_count > plan->count[FLAT_PARAMETERS] - used->parameters ||
        launch->parameter_count > FLAT_MOST_PARAMETERS || !has_shape(launch) ||
        !has_sizes(plan, launch))
        return damaged("launch", number);
    *layout = (struct layout){.values_at = plan->template_bytes, .maps = used->maps};
    int status = PALLASC_OK;
    for (uint32_t i = 0; !status && i < launch->parameter_count; i++)
        status = check_parameter(plan, launch->parameters + i, used, layout);
    used->parameters += launch->parameter_count;
    layout->map_count = used->maps - layout->maps;
    plan->template_bytes = align(plan->template_bytes + layout->value_bytes, VALUE_ALIGNMENT);
    return status;
}

static int check_launches(pallasc_plan *plan)
{
    struct used used = {0, 0, 0, 0};
    int status = PALLASC_OK;
    for (uint32_t i = 0; !status && i < plan->count[FLAT_LAUNCHES]; i++)
        status = check_launch(plan, i, &used);
    if (!status && (used.parameters != plan->count[FLAT_PARAMETERS] ||
                    used.maps != plan->count[FLAT_MAPS] || used.values != plan->count[FLAT_VALUES]))
        status = damaged("table", FLAT_PARAMETERS);
    return status;
}

/* Lay out the values of all launches as they will be passed. */
static int make_template(pallasc_plan *plan)
{
    if (!plan->template_bytes)
        return PALLASC_OK;
    plan->template = calloc(1, plan->template_bytes);
    if (!plan->template)
        return fail_host_memory();
    for (uint32_t i = 0; i < plan->count[FLAT_LAUNCHES]; i++) {
        const struct flat_launch *launch = &plan->launches[i];
        for (uint32_t j = launch->parameters; j < launch->parameters + launch->parameter_count; j++) {
            const struct flat_parameter *parameter = &plan->parameters[j];
            if (parameter->kind == FLAT_VALUE && parameter->size)
                memcpy(plan->template + plan->layouts[i].values_at + plan->value_at[j],
                       plan->values + parameter->offset, parameter->size);
        }
    }
    return PALLASC_OK;
}

/* ---- opening and closing ---- */

static int make_room(pallasc_plan *plan)
{
    plan->places = calloc(plan->count[FLAT_BUFFERS] + 1ul, sizeof *plan->places);
    plan->layouts = calloc(plan->count[FLAT_LAUNCHES] + 1ul, sizeof *plan->layouts);
    plan->value_at = calloc(plan->count[FLAT_PARAMETERS] + 1ul, sizeof *plan->value_at);
    plan->map_at = calloc(plan->count[FLAT_MAPS] + 1ul, sizeof *plan->map_at);
    plan->found = calloc(plan->count[FLAT_BLOBS] + 1ul, sizeof *plan->found);
    return plan->places && plan->layouts && plan->value_at && plan->map_at && plan->found
               ? PALLASC_OK
               : fail_host_memory();
}

static int verify(pallasc_plan *plan, size_t size, pallasc_find find, void *context)
{
    const struct flat_header *header = (const void *)plan->data;
    int status = check_header(header, size);
    if (!status)
        status = check_tables(plan, header, size);
    if (status)
        return status;
    find_tables(plan, header);
    if (!(status = make_room(plan)) && !(status = check_strings(plan)) &&
        !(status = check_facts(plan)) && !(status = check_blobs(plan)) &&
        !(status = check_buffers(plan)) && !(status = check_arrays(plan)) &&
        !(status = check_cubins(plan)) && !(status = check_kernels(plan)) &&
        !(status = check_steps(plan)) && !(status = check_launches(plan)) &&
        !(status = make_template(plan)) && !(status = read_blobs(plan, find, context)))
        status = check_code(plan);
    return status;
}

int pallasc_open(const void *data, size_t size, pallasc_find find, void *context,
                 pallasc_plan **plan)
{
    if (!plan || (!data && size))
        return fail(PALLASC_ERROR_ARGUMENT, NULL, "pallasc_open takes data and a place for the plan.");
    *plan = NULL;
    if (size < sizeof(struct flat_header))
        return fail(PALLASC_ERROR_CORRUPT, NULL, "these %zu bytes are not a flat plan.", size);
    pallasc_plan *made = calloc(1, sizeof *made);
    if (made)
        made->data = malloc(size);
    if (!made || !made->data) {
        free(made);
        return fail_host_memory();
    }
    memcpy(made->data, data, size);
    int status = verify(made, size, find, context);
    if (status)
        pallasc_close(made);
    else
        *plan = made;
    return status;
}

void pallasc_close(pallasc_plan *plan)
{
    if (!plan)
        return;
    free_states(plan);
    for (uint32_t i = 0; plan->found && i < plan->count[FLAT_BLOBS]; i++)
        if (!plan->blobs[i].inside)
            free((void *)plan->found[i]);
    free(plan->places);
    free(plan->layouts);
    free(plan->value_at);
    free(plan->map_at);
    free(plan->found);
    free(plan->template);
    free(plan->data);
    free(plan);
}

/* ---- arrays of a plan ---- */

size_t pallasc_buffer_count(const pallasc_plan *plan)
{
    return plan->count[FLAT_ARRAYS];
}

int pallasc_buffer(const pallasc_plan *plan, size_t index, pallasc_array *array)
{
    if (index >= plan->count[FLAT_ARRAYS] || !array)
        return fail(PALLASC_ERROR_ARGUMENT, NULL, "%s takes %u buffers, and there is no buffer %zu.",
                    name_of(plan), plan->count[FLAT_ARRAYS], index);
    const struct flat_array *own = &plan->arrays[index];
    *array = (pallasc_array){
        .path = string_of(plan, own->path),
        .dtype = string_of(plan, own->dtype),
        .shape = plan->numbers + own->numbers,
        .strides = plan->numbers + own->numbers + own->rank,
        .rank = own->rank,
        .bits = own->bits,
        .bytes = (size_t)plan->buffers[own->buffer].size,
        .alignment = plan->buffers[own->buffer].alignment,
        .flags = (int)own->flags,
    };
    return PALLASC_OK;
}

size_t pallasc_workspace_bytes(const pallasc_plan *plan)
{
    return (size_t)plan->workspace_bytes;
}

const char *pallasc_name(const pallasc_plan *plan)
{
    return name_of(plan);
}

const char *pallasc_arch(const pallasc_plan *plan)
{
    return string_of(plan, plan->facts->arch);
}

#ifndef PALLASC_LIBRARY_VERSION
#define PALLASC_LIBRARY_VERSION "0"
#endif

const char *pallasc_version(void)
{
    return PALLASC_LIBRARY_VERSION;
}

#ifndef PALLASC_LIBRARY_SOURCES
#define PALLASC_LIBRARY_SOURCES ""
#endif

/* Not part of the interface: library.py compares it with the sources in its folder. */
PALLASC_API const char *pallasc_sources(void);

const char *pallasc_sources(void)
{
    return PALLASC_LIBRARY_SOURCES;
}
