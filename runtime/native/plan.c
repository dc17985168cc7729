/* Open a flat plan: everything is verified here, once, so nothing has to be checked later.
 *
 * Offsets and sizes are compared by subtracting from a larger value, or in 64 bits after they were
 * bounded, so no sum overflows. All loops run over entries within the block. */
#include "plan.h"
#include "sha256.h"
#include "text.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#if !defined(__BYTE_ORDER__) || __BYTE_ORDER__ != __ORDER_LITTLE_ENDIAN__
#error "flat plans are read in place, on little-endian machines only"
#endif

#define DAMAGED(...) fail(PALLASC_ERROR_CORRUPT, NULL, "the flat plan is damaged: " __VA_ARGS__)

enum {
    CHECKED = (int)sizeof(((struct flat_header *)0)->magic) + 16 + 32,
    MOST_SECTIONS = 1 << 24,
};

static const uint32_t entry_bytes[FLAT_TABLES] = {
    [FLAT_STRINGS] = 1,
    [FLAT_NUMBERS] = 8,
    [FLAT_FACTS] = sizeof(struct flat_facts),
    [FLAT_BUFFERS] = sizeof(struct flat_buffer),
    [FLAT_ARRAYS] = sizeof(struct flat_array),
    [FLAT_OUTPUTS] = sizeof(struct flat_array),
    [FLAT_STEPS] = sizeof(struct flat_step),
    [FLAT_LAUNCHES] = sizeof(struct flat_launch),
    [FLAT_PARAMETERS] = sizeof(struct flat_parameter),
    [FLAT_MAPS] = sizeof(struct flat_map),
    [FLAT_VALUES] = 1,
    [FLAT_KERNELS] = sizeof(struct flat_kernel),
    [FLAT_SIZES] = 4,
    [FLAT_CUBINS] = sizeof(struct flat_cubin),
    [FLAT_BLOBS] = sizeof(struct flat_blob),
    [FLAT_DATA] = 1,
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
    if (header->header_bytes != sizeof *header)
        return DAMAGED("its header has %u bytes.", header->header_bytes);
    if (header->total_bytes != size)
        return DAMAGED("it has %llu bytes, and %zu are given.",
                       (unsigned long long)header->total_bytes, size);
    uint8_t digest[32];
    sha256((const char *)header + CHECKED, size - CHECKED, digest);
    if (memcmp(digest, header->digest, sizeof digest))
        return DAMAGED("its bytes do not match its digest.");
    return PALLASC_OK;
}

/* Every table must start where the previous one leads, so tables cannot overlap. */
static int check_tables(pallasc_plan *plan, const struct flat_header *header, size_t size)
{
    uint64_t end = sizeof *header;
    for (int i = 0; i < FLAT_TABLES; i++) {
        const struct flat_table *table = &header->tables[i];
        uint64_t start = align(end, 16), bytes = (uint64_t)table->count * table->entry_bytes;
        if (table->entry_bytes != entry_bytes[i] || table->offset != start || start > size ||
            bytes > size - start)
            return DAMAGED("table %d has %u entries of %u bytes at %llu.", i, table->count,
                           table->entry_bytes, (unsigned long long)table->offset);
        for (; end < start; end++)
            if (plan->data[end])
                return DAMAGED("there is something before table %d.", i);
        plan->count[i] = table->count;
        end = start + bytes;
    }
    return end == size ? PALLASC_OK : DAMAGED("%zu bytes follow its tables.", (size_t)(size - end));
}

static void find_tables(pallasc_plan *plan, const struct flat_header *header)
{
#define AT(number) ((const void *)(plan->data + header->tables[number].offset))
    plan->strings = AT(FLAT_STRINGS);
    plan->numbers = AT(FLAT_NUMBERS);
    plan->facts = AT(FLAT_FACTS);
    plan->buffers = AT(FLAT_BUFFERS);
    plan->arrays = AT(FLAT_ARRAYS);
    plan->outputs = AT(FLAT_OUTPUTS);
    plan->steps = AT(FLAT_STEPS);
    plan->launches = AT(FLAT_LAUNCHES);
    plan->parameters = AT(FLAT_PARAMETERS);
    plan->maps = AT(FLAT_MAPS);
    plan->values = AT(FLAT_VALUES);
    plan->kernels = AT(FLAT_KERNELS);
    plan->sizes = AT(FLAT_SIZES);
    plan->cubins = AT(FLAT_CUBINS);
    plan->blobs = AT(FLAT_BLOBS);
    plan->content = AT(FLAT_DATA);
#undef AT
}

static int check_strings(const pallasc_plan *plan)
{
    size_t count = plan->count[FLAT_STRINGS], length;
    const unsigned char *text = (const unsigned char *)plan->strings;
    if (!count || text[count - 1])
        return DAMAGED("its texts have no end.");
    for (size_t at = 0; at < count; at += length)
        if (!(length = character(text + at, count - at)))
            return DAMAGED("its texts are not UTF-8.");
    return PALLASC_OK;
}

static int is_string(const pallasc_plan *plan, uint32_t at)
{
    return at < plan->count[FLAT_STRINGS] && (!at || !plan->strings[at - 1]);
}

/* Each kernel name is searched in its cubin, so its length is limited. */
static int is_name(const pallasc_plan *plan, uint32_t at)
{
    if (!is_string(plan, at))
        return 0;
    uint32_t room = plan->count[FLAT_STRINGS] - at;
    return memchr(string_of(plan, at), 0, room < FLAT_MOST_NAME ? room : FLAT_MOST_NAME) != NULL;
}

static int is_string_or_none(const pallasc_plan *plan, uint32_t at)
{
    return at == FLAT_NONE || is_string(plan, at);
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
    if (plan->count[FLAT_FACTS] != 1)
        return DAMAGED("it has %u entries of facts.", plan->count[FLAT_FACTS]);
    if (!is_string(plan, facts->name) || !is_string(plan, facts->arch) ||
        !is_string_or_none(plan, facts->package))
        return DAMAGED("its facts name a text that is not there.");
    if (!read_architecture(plan, string_of(plan, facts->arch)))
        return DAMAGED("'%.40s' is not an architecture.", string_of(plan, facts->arch));
    if (plan->count[FLAT_ARRAYS] > FLAT_MOST_ARRAYS ||
        facts->input_count > plan->count[FLAT_ARRAYS])
        return DAMAGED("it has %u arrays, of which %u are inputs.", plan->count[FLAT_ARRAYS],
                       facts->input_count);
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
        return DAMAGED("it has %u blobs.", plan->count[FLAT_BLOBS]);
    for (uint32_t i = 0; i < plan->count[FLAT_BLOBS]; i++) {
        const struct flat_blob *blob = &plan->blobs[i];
        uint64_t start = blob->inside ? align(end, 16) : 0;
        if (blob->inside > 1 || blob->reserved || blob->offset != start ||
            !is_new_blob(plan, i))
            return DAMAGED("blob %u is at %llu.", i, (unsigned long long)blob->offset);
        if (!blob->inside)
            continue;
        if (start > plan->count[FLAT_DATA] || blob->size > plan->count[FLAT_DATA] - start)
            return DAMAGED("blob %u of %llu bytes does not lie inside.", i,
                           (unsigned long long)blob->size);
        for (; end < start; end++)
            if (plan->content[end])
                return DAMAGED("there is something before blob %u.", i);
        end = start + blob->size;
    }
    return end == plan->count[FLAT_DATA] ? PALLASC_OK : DAMAGED("something follows its blobs.");
}

static int find_blob(pallasc_plan *plan, uint32_t number, pallasc_find find, void *context)
{
    const struct flat_blob *blob = &plan->blobs[number];
    struct blob *found = &plan->found[number];
    char digest_text[65];
    uint8_t digest[32];
    const void *data = NULL;
    size_t size = 0;
    sha256_text(blob->sha256, digest_text);
    if (!find || find(context, digest_text, &data, &size) || (!data && size))
        return fail(PALLASC_ERROR_NOT_FOUND,
                    find ? "Install the bundle that it came with, or write the plan with its cubins."
                         : "Write the plan with its cubins inside, or say where they are found.",
                    "%s: the plan names its cubin or constant %.12s by digest, and it is not here.",
                    name_of(plan), digest_text);
    if (size == blob->size) {
        found->data = found->owned = malloc(size ? size : 1);
        if (!found->owned)
            return fail_host_memory();
        if (size)
            memcpy(found->owned, data, size);
        sha256(found->owned, size, digest);
    }
    if (size != blob->size || memcmp(digest, blob->sha256, sizeof digest))
        return fail(PALLASC_ERROR_CORRUPT, NULL, "%s: blob %s does not match its digest",
                    name_of(plan), digest_text);
    return PALLASC_OK;
}

static int read_blobs(pallasc_plan *plan, pallasc_find find, void *context)
{
    for (uint32_t i = 0; i < plan->count[FLAT_BLOBS]; i++) {
        const struct flat_blob *blob = &plan->blobs[i];
        if (!blob->inside) {
            int status = find_blob(plan, i, find, context);
            if (status)
                return status;
            continue;
        }
        /* Copies in the driver are shared by this digest, so check it as well as the block's. */
        uint8_t digest[32];
        plan->found[i].data = plan->content + blob->offset;
        sha256(plan->found[i].data, blob->size, digest);
        if (memcmp(digest, blob->sha256, sizeof digest))
            return DAMAGED("blob %u does not match its digest.", i);
    }
    return PALLASC_OK;
}

static int check_code(const pallasc_plan *plan)
{
    struct effort left = {MOST_SECTIONS, 0};
    for (uint32_t i = 0; i < plan->count[FLAT_BLOBS]; i++)
        left.bytes += plan->blobs[i].size;
    for (uint32_t i = 0; i < plan->count[FLAT_CUBINS]; i++) {
        uint32_t blob = plan->cubins[i].blob;
        char text[128];
        const char *broken = broken_cubin(plan->found[blob].data, plan->blobs[blob].size,
                                          plan->major * 10 + plan->minor, text, sizeof text);
        if (broken)
            return fail(PALLASC_ERROR_CORRUPT, NULL, "%s: %s", name_of(plan), broken);
    }
    for (uint32_t i = 0; i < plan->count[FLAT_KERNELS]; i++) {
        const struct flat_kernel *kernel = &plan->kernels[i];
        uint32_t blob = plan->cubins[kernel->cubin].blob;
        const char *name = string_of(plan, kernel->name);
        if (!has_parameters(plan->found[blob].data, plan->blobs[blob].size, name,
                            plan->sizes + kernel->sizes, kernel->size_count, &left))
            return fail(PALLASC_ERROR_CORRUPT, NULL,
                        "%s: its cubin has no kernel %s with the parameters that the plan passes.",
                        name_of(plan), name);
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
        if (buffer->role > FLAT_TEMPORARY || buffer->size >= FLAT_MOST_SIZE || buffer->reserved ||
            !buffer->alignment)
            return DAMAGED("buffer %u has role %u, %llu bytes and alignment %u.", i, buffer->role,
                           (unsigned long long)buffer->size, buffer->alignment);
        if (is_constant ? buffer->blob >= plan->count[FLAT_BLOBS] ||
                              plan->blobs[buffer->blob].size != buffer->size
                        : buffer->blob != FLAT_NONE)
            return DAMAGED("buffer %u names blob %u.", i, buffer->blob);
        if (is_constant)
            place->kind = CONSTANT;
        if (buffer->role != FLAT_TEMPORARY)
            continue;
        *place = (struct place){WORKSPACE, plan->workspace_bytes};
        plan->workspace_bytes += align(buffer->size, BUFFER_ALIGNMENT);
        if (plan->workspace_bytes >= FLAT_MOST_SIZE)
            return DAMAGED("its temporaries are too large.");
    }
    return PALLASC_OK;
}

/* Is it an element type (specs/arrays.py) with this number of bits? */
static int is_dtype(const char *name, uint32_t bits)
{
    static const struct {
        char name[16];
        uint8_t bits;
    } known[] = {
        {"bool", 8}, {"i1", 1}, {"i2", 2}, {"i4", 4}, {"i8", 8}, {"i16", 16}, {"i32", 32},
        {"i64", 64}, {"u1", 1}, {"u2", 2}, {"u4", 4}, {"u8", 8}, {"u16", 16}, {"u32", 32},
        {"u64", 64}, {"f16", 16}, {"bf16", 16}, {"f32", 32}, {"f64", 64}, {"f8e4m3fn", 8},
        {"f8e5m2", 8}, {"f8e4m3b11fnuz", 8}, {"f8e4m3fnuz", 8}, {"f8e5m2fnuz", 8}, {"f8e4m3", 8},
        {"f8e3m4", 8}, {"f8e8m0fnu", 8}, {"f6e2m3fn", 6}, {"f6e3m2fn", 6}, {"f4e2m1fn", 4},
        {"c64", 64}, {"c128", 128},
    };
    for (size_t i = 0; i < sizeof known / sizeof *known; i++)
        if (!strcmp(known[i].name, name))
            return known[i].bits == bits;
    return 0;
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

/* Checks common to arrays and outputs; `numbers` counts the numbers used so far. */
static int check_array(const pallasc_plan *plan, const char *what, uint32_t number,
                       const struct flat_array *array, uint32_t *numbers, uint64_t *bytes)
{
    uint32_t left = plan->count[FLAT_NUMBERS] - *numbers;
    if (!is_string(plan, array->path) || !is_string(plan, array->dtype) ||
        !is_dtype(string_of(plan, array->dtype), array->bits) || array->rank > FLAT_MOST_RANK ||
        array->numbers != *numbers || 2 * array->rank > left || array->buffer >= plan->count[FLAT_BUFFERS] ||
        array->place >= plan->count[FLAT_ARRAYS])
        return DAMAGED("%s %u does not fit.", what, number);
    const int64_t *shape = plan->numbers + *numbers;
    for (uint32_t i = 0; i < 2 * array->rank; i++)
        if (shape[i] < 0)
            return DAMAGED("%s %u has a negative size.", what, number);
    *numbers += 2 * array->rank;
    uint64_t held = plan->buffers[array->buffer].size;
    if (!array_bytes(plan, array, bytes) || *bytes > held)
        return DAMAGED("%s %u is larger than its buffer of %llu bytes.", what, number,
                       (unsigned long long)held);
    return PALLASC_OK;
}

static int check_passed(pallasc_plan *plan, uint32_t *numbers)
{
    for (uint32_t i = 0; i < plan->count[FLAT_ARRAYS]; i++) {
        const struct flat_array *array = &plan->arrays[i];
        uint64_t bytes = 0;
        int status = check_array(plan, "array", i, array, numbers, &bytes);
        if (status)
            return status;
        const struct flat_buffer *buffer = &plan->buffers[array->buffer];
        struct place *place = &plan->places[array->buffer];
        uint32_t flags = i < plan->facts->input_count ? PALLASC_INPUT : PALLASC_RESULT;
        uint32_t may_have = flags == PALLASC_INPUT ? PALLASC_UPDATED : 0;
        if (array->place != i || (array->flags & ~may_have) != flags || bytes != buffer->size ||
            buffer->role > FLAT_OUTPUT || place->kind != NOWHERE)
            return DAMAGED("array %u does not fit its buffer %u.", i, array->buffer);
        *place = (struct place){PASSED, i};
        uint64_t alignment = buffer->alignment;
        plan->passed[i] = (struct array){
            .bytes = bytes,
            .mask = alignment & (alignment - 1) ? 0 : alignment - 1,
            .alignment = alignment,
            .path = string_of(plan, array->path),
        };
    }
    for (uint32_t i = 0; i < plan->count[FLAT_BUFFERS]; i++)
        if (plan->buffers[i].role <= FLAT_OUTPUT && plan->places[i].kind == NOWHERE &&
            plan->buffers[i].size)
            return DAMAGED("nobody provides buffer %u.", i);
    return PALLASC_OK;
}

static int check_outputs(const pallasc_plan *plan, uint32_t *numbers)
{
    uint8_t updated[FLAT_MOST_ARRAYS] = {0};
    for (uint32_t i = 0; i < plan->count[FLAT_OUTPUTS]; i++) {
        const struct flat_array *output = &plan->outputs[i];
        uint64_t bytes;
        int status = check_array(plan, "output", i, output, numbers, &bytes);
        if (status)
            return status;
        if (output->flags || plan->arrays[output->place].buffer != output->buffer)
            return DAMAGED("output %u does not lie in array %u.", i, output->place);
        updated[output->place] = 1;
    }
    for (uint32_t i = 0; i < plan->count[FLAT_ARRAYS]; i++) {
        uint32_t flags = plan->arrays[i].flags;
        if (updated[i] != (flags == PALLASC_RESULT || (flags & PALLASC_UPDATED)))
            return DAMAGED("array %u has flags %u.", i, flags);
    }
    if (*numbers != plan->count[FLAT_NUMBERS])
        return DAMAGED("%u of its numbers are not used.", plan->count[FLAT_NUMBERS] - *numbers);
    return PALLASC_OK;
}

static int check_arrays(pallasc_plan *plan)
{
    uint32_t numbers = 0;
    int status = check_passed(plan, &numbers);
    return status ? status : check_outputs(plan, &numbers);
}

/* Are this many bytes from an offset within a buffer? */
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
    if (plan->count[FLAT_CUBINS] > plan->count[FLAT_BLOBS])
        return DAMAGED("it has %u cubins.", plan->count[FLAT_CUBINS]);
    for (uint32_t i = 0; i < plan->count[FLAT_CUBINS]; i++) {
        const struct flat_cubin *cubin = &plan->cubins[i];
        if (cubin->blob >= plan->count[FLAT_BLOBS] || !is_new_cubin(plan, i) || !is_string_or_none(plan, cubin->toolkit) ||
            !is_string_or_none(plan, cubin->package) || cubin->reserved)
            return DAMAGED("cubin %u names what is not there.", i);
    }
    return PALLASC_OK;
}

static int check_kernels(const pallasc_plan *plan)
{
    uint32_t used = 0;
    if (plan->count[FLAT_KERNELS] > FLAT_MOST_KERNELS)
        return DAMAGED("it has %u kernels.", plan->count[FLAT_KERNELS]);
    for (uint32_t i = 0; i < plan->count[FLAT_KERNELS]; i++) {
        const struct flat_kernel *kernel = &plan->kernels[i];
        if (!is_name(plan, kernel->name) || kernel->cubin >= plan->count[FLAT_CUBINS] ||
            kernel->sizes != used || kernel->size_count > plan->count[FLAT_SIZES] - used ||
            kernel->size_count > FLAT_MOST_PARAMETERS || kernel->reserved)
            return DAMAGED("kernel %u does not fit.", i);
        used += kernel->size_count;
    }
    return used == plan->count[FLAT_SIZES] ? PALLASC_OK : DAMAGED("a size is of no kernel.");
}

/* ---- steps ---- */

/* Like `lies_inside`; plans share constants, so nothing may write to them. */
static int may_write(const pallasc_plan *plan, const struct flat_step *step)
{
    return lies_inside(plan, step->target, step->target_offset, step->size) &&
           plan->buffers[step->target].role != FLAT_CONSTANT;
}

static int check_fill(const pallasc_plan *plan, uint32_t number, const struct flat_step *step)
{
    if (step->source || step->source_offset || (step->width != 1 && step->width != 4) ||
        !step->size || step->size % step->width || step->value >> 8 * step->width ||
        !may_write(plan, step))
        return DAMAGED("step %u fills %llu bytes with %#llx.", number,
                       (unsigned long long)step->size, (unsigned long long)step->value);
    return PALLASC_OK;
}

static int check_copy(const pallasc_plan *plan, uint32_t number, const struct flat_step *step)
{
    if (step->width || step->value || !step->size || !may_write(plan, step) ||
        !lies_inside(plan, step->source, step->source_offset, step->size))
        return DAMAGED("step %u copies %llu bytes that do not lie in its buffers.", number,
                       (unsigned long long)step->size);
    return PALLASC_OK;
}

static int check_steps(const pallasc_plan *plan)
{
    uint32_t launches = 0;
    int status = PALLASC_OK;
    for (uint32_t i = 0; !status && i < plan->count[FLAT_STEPS]; i++) {
        const struct flat_step *step = &plan->steps[i];
        if (step->kind == FLAT_FILL)
            status = check_fill(plan, i, step);
        else if (step->kind == FLAT_COPY)
            status = check_copy(plan, i, step);
        else if (step->kind != FLAT_LAUNCH || step->target != launches++ || step->source ||
                 step->width || step->target_offset || step->source_offset || step->size ||
                 step->value)
            status = DAMAGED("step %u is of kind %u.", i, step->kind);
    }
    if (!status && launches != plan->count[FLAT_LAUNCHES])
        status = DAMAGED("it has %u launches, and its steps %u.", plan->count[FLAT_LAUNCHES],
                         launches);
    return status;
}

/* Numbers of table entries used so far. */
struct used {
    uint32_t parameters, maps, values;
    uint64_t bytes; /* passed by value */
};

static int check_maps(pallasc_plan *plan, const struct flat_launch *launch,
                      const struct flat_parameter *parameter, uint32_t value_at)
{
    uint64_t free_at = 0; /* maps are in the order of their offsets */
    for (uint32_t i = parameter->maps; i < parameter->maps + parameter->map_count; i++) {
        const struct flat_map *map = &plan->maps[i];
        char text[512];
        const char *broken = broken_rule(map, text, sizeof text);
        if (broken)
            return fail(PALLASC_ERROR_CORRUPT, NULL,
                        "the driver would refuse a tensor map of %s: %s", kernel_name(plan, launch),
                        broken);
        if (!lies_inside(plan, map->buffer, map->offset, 0) || parameter->size < FLAT_MAP_BYTES ||
            map->at > parameter->size - FLAT_MAP_BYTES || map->at < free_at)
            return DAMAGED("a tensor map of %s does not fit.", kernel_name(plan, launch));
        plan->map_at[i] = value_at + map->at;
        free_at = (uint64_t)map->at + FLAT_MAP_BYTES;
    }
    return PALLASC_OK;
}

static int check_parameter(pallasc_plan *plan, const struct flat_launch *launch, uint32_t number,
                           struct used *used, struct layout *layout)
{
    const struct flat_parameter *parameter = &plan->parameters[number];
    int is_value = parameter->kind == FLAT_VALUE;
    uint64_t offset = is_value ? used->values : 0;
    if (parameter->kind > FLAT_ZEROS || parameter->reserved || parameter->maps != used->maps ||
        parameter->map_count > plan->count[FLAT_MAPS] - used->maps)
        return DAMAGED("parameter %u is of kind %u.", number, parameter->kind);
    if (parameter->kind == FLAT_POINTER) {
        if (parameter->size != 8 || parameter->map_count ||
            !lies_inside(plan, parameter->buffer, parameter->offset, 0))
            return DAMAGED("parameter %u points behind its buffer %u.", number, parameter->buffer);
        return PALLASC_OK;
    }
    if (parameter->buffer || parameter->offset != offset ||
        parameter->size > FLAT_MOST_PARAMETER_BYTES ||
        (is_value && parameter->size > plan->count[FLAT_VALUES] - used->values))
        return DAMAGED("parameter %u has %u bytes at %llu.", number, parameter->size,
                       (unsigned long long)parameter->offset);
    uint64_t at = align(layout->value_bytes, parameter->map_count ? VALUE_ALIGNMENT : 16);
    plan->value_at[number] = (uint32_t)at;
    layout->value_bytes = align(at + parameter->size, 16);
    if (is_value)
        used->values += parameter->size;
    used->maps += parameter->map_count;
    used->bytes += parameter->size;
    if (used->bytes > FLAT_MOST_VALUE_BYTES)
        return DAMAGED("it passes too much by value.");
    return check_maps(plan, launch, parameter, (uint32_t)at);
}

static int check_sizes(const pallasc_plan *plan, const struct flat_launch *launch)
{
    const struct flat_kernel *kernel = &plan->kernels[launch->kernel];
    uint64_t sum = 0;
    uint32_t passed[MOST_SHOWN];
    int same = launch->parameter_count == kernel->size_count;
    for (uint32_t i = 0; i < launch->parameter_count; i++) {
        uint32_t size = plan->parameters[launch->parameters + i].size;
        sum += size;
        same = same && size == plan->sizes[kernel->sizes + i];
        if (i < MOST_SHOWN)
            passed[i] = size;
    }
    if (sum > FLAT_MOST_PARAMETER_BYTES)
        return DAMAGED("it passes %llu bytes to %s.", (unsigned long long)sum,
                       kernel_name(plan, launch));
    if (same)
        return PALLASC_OK;
    char texts[2][512];
    return fail(PALLASC_ERROR_CORRUPT, NULL,
                "the plan passes parameters of %s bytes to %s, and its cubin says %s",
                sizes_text(texts[0], sizeof texts[0], "[]", passed, launch->parameter_count),
                kernel_name(plan, launch),
                sizes_text(texts[1], sizeof texts[1], "[]", plan->sizes + kernel->sizes,
                           kernel->size_count));
}

static int check_shape(const struct flat_launch *launch)
{
    const uint32_t *cluster = launch->cluster;
    int has_cluster = cluster[0] || cluster[1] || cluster[2];
    for (int i = 0; i < 3; i++) {
        if (!launch->grid[i] || !launch->block[i] || (has_cluster && !cluster[i]))
            return 0;
        if (has_cluster && launch->grid[i] % cluster[i])
            return 0;
    }
    return launch->pdl <= 1 && launch->blocks_per_sm && !launch->reserved;
}

static int check_launch(pallasc_plan *plan, uint32_t number, struct used *used)
{
    const struct flat_launch *launch = &plan->launches[number];
    struct layout *layout = &plan->layouts[number];
    if (launch->kernel >= plan->count[FLAT_KERNELS] || launch->parameters != used->parameters ||
        launch->parameter_count > plan->count[FLAT_PARAMETERS] - used->parameters ||
        launch->parameter_count > FLAT_MOST_PARAMETERS || !check_shape(launch))
        return DAMAGED("launch %u does not fit.", number);
    *layout = (struct layout){.values_at = plan->template_bytes, .maps = used->maps};
    int status = check_sizes(plan, launch);
    for (uint32_t i = 0; !status && i < launch->parameter_count; i++)
        status = check_parameter(plan, launch, launch->parameters + i, used, layout);
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
        status = DAMAGED("a parameter is of no launch.");
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

static void *zeros(size_t count, size_t bytes)
{
    return calloc(count ? count : 1, bytes);
}

static int make_room(pallasc_plan *plan)
{
    plan->places = zeros(plan->count[FLAT_BUFFERS], sizeof *plan->places);
    plan->passed = zeros(plan->count[FLAT_ARRAYS], sizeof *plan->passed);
    plan->layouts = zeros(plan->count[FLAT_LAUNCHES], sizeof *plan->layouts);
    plan->value_at = zeros(plan->count[FLAT_PARAMETERS], sizeof *plan->value_at);
    plan->map_at = zeros(plan->count[FLAT_MAPS], sizeof *plan->map_at);
    plan->found = zeros(plan->count[FLAT_BLOBS], sizeof *plan->found);
    return plan->places && plan->passed && plan->layouts && plan->value_at && plan->map_at &&
                   plan->found
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
        free(plan->found[i].owned);
    free(plan->places);
    free(plan->passed);
    free(plan->layouts);
    free(plan->value_at);
    free(plan->map_at);
    free(plan->found);
    free(plan->template);
    free(plan->data);
    free(plan);
}

/* ---- arrays of a plan ---- */

static int describe(const pallasc_plan *plan, const struct flat_array *array, pallasc_array *told)
{
    uint64_t bytes;
    array_bytes(plan, array, &bytes);
    *told = (pallasc_array){
        .path = string_of(plan, array->path),
        .dtype = string_of(plan, array->dtype),
        .shape = plan->numbers + array->numbers,
        .strides = plan->numbers + array->numbers + array->rank,
        .rank = array->rank,
        .bits = array->bits,
        .bytes = (size_t)bytes,
        .alignment = plan->buffers[array->buffer].alignment,
        .buffer = array->place,
        .flags = (int)plan->arrays[array->place].flags,
    };
    return PALLASC_OK;
}

size_t pallasc_buffer_count(const pallasc_plan *plan)
{
    return plan->count[FLAT_ARRAYS];
}

int pallasc_buffer(const pallasc_plan *plan, size_t index, pallasc_array *array)
{
    if (index >= plan->count[FLAT_ARRAYS] || !array)
        return fail(PALLASC_ERROR_ARGUMENT, NULL, "%s takes %u buffers, and there is no buffer %zu.",
                    name_of(plan), plan->count[FLAT_ARRAYS], index);
    return describe(plan, &plan->arrays[index], array);
}

size_t pallasc_output_count(const pallasc_plan *plan)
{
    return plan->count[FLAT_OUTPUTS];
}

int pallasc_output(const pallasc_plan *plan, size_t index, pallasc_array *array)
{
    if (index >= plan->count[FLAT_OUTPUTS] || !array)
        return fail(PALLASC_ERROR_ARGUMENT, NULL, "%s has %u outputs, and there is no output %zu.",
                    name_of(plan), plan->count[FLAT_OUTPUTS], index);
    return describe(plan, &plan->outputs[index], array);
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
