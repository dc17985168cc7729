#define _GNU_SOURCE
#include "cubin.h"
#include "elf.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { EM_CUDA = 190, RESERVED_SMEM_BYTES = 1024, MOST_VARIABLE_BYTES = 1 << 28 };

/* Attributes of `.nv.info` sections; their names are those that `cuobjdump -elf` prints behind
 * EIATTR_. Entries are `format:1 attribute:1 size-or-value:2 payload`. */
enum {
    MAX_THREADS = 0x05,
    REQNTID = 0x10,
    FRAME_SIZE = 0x11,
    KPARAM_INFO = 0x17,
    REGCOUNT = 0x2f,
    CTA_PER_CLUSTER = 0x3d,
    EXPLICIT_CLUSTER = 0x3e,
    MAX_CLUSTER_RANK = 0x3f,
    KPARAM_INFO_V2 = 0x45,
    FORMAT_SIZED = 4,
};

static uint32_t u32(const unsigned char *at)
{
    return at[0] | at[1] << 8 | at[2] << 16 | (uint32_t)at[3] << 24;
}

static uint32_t u16(const unsigned char *at)
{
    return (uint32_t)(at[0] | at[1] << 8);
}

typedef void (*visitor)(void *object, int attribute, const unsigned char *payload, uint32_t size);

/* Call `visit` for each attribute; 0 where an entry ends behind the section. */
static int visit_attributes(const struct section *section, visitor visit, void *object)
{
    uint64_t at = 0;
    while (section->content && at + 4 <= section->size) {
        const unsigned char *entry = section->content + at;
        int sized = entry[0] == FORMAT_SIZED;
        uint32_t size = sized ? u16(entry + 2) : 2;
        uint64_t end = at + (sized ? 4 : 2) + size;
        if (end > section->size)
            return 0;
        visit(object, entry[1], entry + (sized ? 4 : 2), size);
        at = end;
    }
    return 1;
}

static void read_parameter(struct cubin_kernel *kernel, int attribute, const unsigned char *payload)
{
    uint32_t ordinal = u16(payload + 4), bits = u32(payload + 8);
    if (ordinal >= MAX_PARAMETERS)
        return;
    kernel->offsets[ordinal] = u16(payload + 6);
    kernel->sizes[ordinal] = attribute == KPARAM_INFO ? bits >> 18 : bits & 0xffff;
    if (ordinal >= kernel->parameter_count)
        kernel->parameter_count = ordinal + 1;
}

static void read_dims(uint32_t dims[3], const unsigned char *payload)
{
    for (int i = 0; i < 3; i++)
        dims[i] = u32(payload + 4 * i);
}

static void visit_kernel(void *object, int attribute, const unsigned char *payload, uint32_t size)
{
    struct cubin_kernel *kernel = object;
    if ((attribute == KPARAM_INFO || attribute == KPARAM_INFO_V2) && size >= 12)
        read_parameter(kernel, attribute, payload);
    else if (attribute == MAX_THREADS && size >= 12)
        read_dims(kernel->max_threads, payload);
    else if (attribute == REQNTID && size >= 12)
        read_dims(kernel->required_threads, payload);
    else if (attribute == CTA_PER_CLUSTER && size >= 12)
        read_dims(kernel->cluster, payload);
    else if (attribute == MAX_CLUSTER_RANK && size >= 4)
        kernel->max_cluster_rank = u32(payload);
    else if (attribute == EXPLICIT_CLUSTER)
        kernel->explicit_cluster = 1;
}

struct totals {
    const struct elf *elf;
    struct cubin_kernel *kernel;
};

/* The file's own section gives registers and stack for each kernel's symbol. */
static void visit_totals(void *object, int attribute, const unsigned char *payload, uint32_t size)
{
    struct totals *totals = object;
    struct symbol symbol;
    if ((attribute != REGCOUNT && attribute != FRAME_SIZE) || size < 8)
        return;
    if (!read_symbol(totals->elf, u32(payload), &symbol) ||
        strcmp(symbol.name, totals->kernel->name))
        return;
    if (attribute == REGCOUNT)
        totals->kernel->registers = (int)u32(payload + 4);
    else
        totals->kernel->stack_bytes = (int)u32(payload + 4);
}

static int prefixed(const struct elf *elf, const char *prefix, const char *name, struct section *found)
{
    char *whole = NULL;
    if (asprintf(&whole, "%s%s", prefix, name) < 0)
        return 0;
    int known = find_section(elf, whole, found);
    free(whole);
    return known;
}

static int read_kernel(const struct elf *elf, const struct cubin *cubin, const struct section *info,
                       struct cubin_kernel *kernel)
{
    struct section section;
    memset(kernel, 0, sizeof *kernel);
    kernel->name = strdup(info->name + strlen(".nv.info."));
    if (!kernel->name || !visit_attributes(info, visit_kernel, kernel))
        return 0;
    struct totals totals = {elf, kernel};
    if (find_section(elf, ".nv.info", &section) && !visit_attributes(&section, visit_totals, &totals))
        return 0;
    if (prefixed(elf, ".nv.shared.", kernel->name, &section)) {
        /* From sm_90 on the section starts with what the system keeps for itself. */
        uint64_t reserved = cubin->sm >= 90 ? RESERVED_SMEM_BYTES : 0;
        kernel->static_smem_bytes = section.size > reserved ? (int)(section.size - reserved) : 0;
    }
    return 1;
}

static int read_kernels(const struct elf *elf, struct cubin *cubin)
{
    cubin->kernels = calloc(elf->section_count + 1, sizeof *cubin->kernels);
    for (uint32_t i = 0; cubin->kernels && i < elf->section_count; i++) {
        struct section info, code;
        read_section(elf, i, &info);
        if (strncmp(info.name, ".nv.info.", strlen(".nv.info.")) ||
            !prefixed(elf, ".text.", info.name + strlen(".nv.info."), &code))
            continue;
        if (!read_kernel(elf, cubin, &info, &cubin->kernels[cubin->kernel_count++]))
            return 0;
    }
    return cubin->kernels != NULL;
}

static int variable_section(const struct section *section)
{
    return section->size < MOST_VARIABLE_BYTES &&
           (!strcmp(section->name, ".nv.global") || !strcmp(section->name, ".nv.global.init") ||
            !strcmp(section->name, ".nv.constant3"));
}

static void read_globals(const struct elf *elf, struct cubin *cubin)
{
    uint64_t starts[elf->section_count + 1], total = 0;
    struct section section;
    for (uint32_t i = 0; i < elf->section_count; i++) {
        read_section(elf, i, &section);
        starts[i] = total;
        if (variable_section(&section))
            total += (section.size + 255) / 256 * 256;
    }
    cubin->data = calloc(1, total + 1);
    cubin->data_bytes = total;
    cubin->globals = calloc(symbol_count(elf) + 1, sizeof *cubin->globals);
    for (uint32_t i = 0; i < elf->section_count; i++)
        if (read_section(elf, i, &section) && variable_section(&section) && section.content)
            memcpy(cubin->data + starts[i], section.content, section.size);
    for (uint32_t i = 0; i < symbol_count(elf); i++) {
        struct symbol symbol;
        if (!read_symbol(elf, i, &symbol) || !symbol.size || !symbol.name[0] ||
            !read_section(elf, symbol.section, &section) || !variable_section(&section) ||
            symbol.value > section.size || symbol.size > section.size - symbol.value)
            continue;
        struct cubin_global *global = &cubin->globals[cubin->global_count++];
        global->name = strdup(symbol.name);
        global->constant = !strcmp(section.name, ".nv.constant3");
        global->offset = starts[symbol.section] + symbol.value;
        global->bytes = symbol.size;
    }
}

/* `.note.nv.tkinfo` holds, as text, "release 13.5" and the option "-arch sm_90a". */
static void read_toolkit(const struct elf *elf, struct cubin *cubin)
{
    struct section note;
    if (!find_section(elf, ".note.nv.tkinfo", &note) || !note.content)
        return;
    const char *release = memmem(note.content, note.size, "release ", 8);
    const char *arch = memmem(note.content, note.size, "-arch sm_", 9);
    if (release)
        sscanf(release, "release %d.%d", &cubin->toolkit_major, &cubin->toolkit_minor);
    if (arch) {
        arch += 9;
        arch += strspn(arch, "0123456789");
        cubin->suffix = *arch == 'a' || *arch == 'f' ? *arch : 0;
    }
}

struct cubin *parse_cubin(const void *image)
{
    struct elf elf;
    if (!open_elf(&elf, image))
        return NULL;
    struct cubin *cubin = calloc(1, sizeof *cubin);
    int good = cubin && elf.machine == EM_CUDA;
    if (good) {
        cubin->sm = (int)(elf.abi_version >= 8 ? elf.flags >> 8 & 0xff : elf.flags & 0xff);
        read_toolkit(&elf, cubin);
        good = read_kernels(&elf, cubin);
        read_globals(&elf, cubin);
        cubin->image = elf.data;
        cubin->image_bytes = elf.size;
        elf.data = NULL;
    }
    close_elf(&elf);
    if (good)
        return cubin;
    free_cubin(cubin);
    return NULL;
}

void free_cubin(struct cubin *cubin)
{
    if (!cubin)
        return;
    for (uint32_t i = 0; i < cubin->kernel_count; i++)
        free(cubin->kernels[i].name);
    for (uint32_t i = 0; i < cubin->global_count; i++)
        free(cubin->globals[i].name);
    free(cubin->kernels);
    free(cubin->globals);
    free(cubin->data);
    free(cubin->image);
    free(cubin);
}
