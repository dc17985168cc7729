/* Check the parts of a cubin that the driver reads, before it does: that headers refer to nothing
 * outside the file, whose length the driver is not given, and the parameters of kernels, so that it
 * does not read past the launch's parameters (drivers from 12.4 on are queried as well). The rules
 * are the same as in specs/artifacts/cubin.py.
 *
 * A cubin is a 64-bit ELF file for machine 190. The section `.nv.info.KERNEL` has attributes,
 * `format:1 attribute:1 size-or-value:2 payload`; two attribute numbers describe a parameter. Every
 * offset is checked against the size of the file. Many section headers can refer to the same bytes,
 * so the bytes searched are counted over all kernels of a plan. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

enum {
    ELF_HEADER_BYTES = 64,
    SECTION_BYTES = 64,
    MACHINE_CUDA = 190,
    NO_BITS = 8,
    FORMAT_PAYLOAD = 4,
    KPARAM_INFO = 0x17,
    KPARAM_INFO_V2 = 0x45,
    SEGMENT_BYTES = 56,
    ABI_OF_CUDA_12_8 = 8,      /* from this ABI on, the second byte of e_flags is the SM */
};

static const char info_prefix[] = ".nv.info.", code_prefix[] = ".text.";

struct bytes {
    const unsigned char *at;
    uint64_t count;
};

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    memcpy(&value, at, (size_t)bytes);
    return value;
}

static struct bytes part(struct bytes whole, uint64_t offset, uint64_t count)
{
    struct bytes none = {whole.at, 0};
    if (offset > whole.count || count > whole.count - offset)
        return none;
    return (struct bytes){whole.at + offset, count};
}

static struct bytes content(struct bytes elf, const unsigned char *section)
{
    if (number(section + 4, 4) == NO_BITS)
        return (struct bytes){elf.at, 0};
    return part(elf, number(section + 24, 8), number(section + 32, 8));
}

/* Is the text at an offset of the section names a prefix followed by a kernel's name? */
static int is_name_of(struct bytes names, uint64_t at, const char *prefix, size_t prefix_bytes,
                      const char *kernel, size_t kernel_bytes)
{
    struct bytes name = part(names, at, prefix_bytes + kernel_bytes + 1);
    return name.count && !memcmp(name.at, prefix, prefix_bytes) &&
           !memcmp(name.at + prefix_bytes, kernel, kernel_bytes + 1);
}

/* The attributes of a kernel that has code; the first section of a name counts, as in Python. */
static struct bytes info_of(struct bytes elf, const char *kernel, struct effort *left)
{
    struct bytes none = {elf.at, 0}, info = none;
    int has_code = 0, has_info = 0;
    if (elf.count < ELF_HEADER_BYTES || memcmp(elf.at, "\177ELF\2\1", 6) ||
        number(elf.at + 18, 2) != MACHINE_CUDA || number(elf.at + 58, 2) != SECTION_BYTES)
        return none;
    uint64_t count = number(elf.at + 60, 2), names_at = number(elf.at + 62, 2);
    struct bytes table = part(elf, number(elf.at + 40, 8), count * SECTION_BYTES);
    if (!table.count || names_at >= count)
        return none;
    struct bytes names = content(elf, table.at + names_at * SECTION_BYTES);
    size_t kernel_bytes = strlen(kernel);
    for (uint64_t i = 0; i < count && left->sections; i++, left->sections--) {
        const unsigned char *section = table.at + i * SECTION_BYTES;
        uint64_t at = number(section, 4);
        if (!has_info && is_name_of(names, at, info_prefix, sizeof info_prefix - 1, kernel,
                                    kernel_bytes)) {
            info = content(elf, section);
            has_info = 1;
        }
        has_code = has_code || is_name_of(names, at, code_prefix, sizeof code_prefix - 1, kernel,
                                          kernel_bytes);
        if (has_code && has_info)
            return info;
    }
    return none;
}

/* Record the size of a parameter that an attribute describes; 0 if its number is out of range. */
static int note_size(const unsigned char *payload, int attribute, uint32_t *sizes, uint32_t count)
{
    uint32_t ordinal = (uint32_t)number(payload + 4, 2), bits = (uint32_t)number(payload + 8, 4);
    if (ordinal >= count)
        return 0;
    sizes[ordinal] = attribute == KPARAM_INFO ? bits >> 18 : bits & 0xffff;
    return 1;
}

int has_parameters(const void *data, size_t size, const char *kernel, const uint32_t *expected,
                   uint32_t count, struct effort *left)
{
    struct bytes info = info_of((struct bytes){data, size}, kernel, left);
    uint32_t sizes[FLAT_MOST_PARAMETERS];
    if (!info.count || info.count > left->bytes)
        return 0;
    left->bytes -= info.count;
    memset(sizes, 0xff, count * sizeof *sizes);
    for (uint64_t at = 0; info.count - at >= 4;) {
        const unsigned char *entry = info.at + at;
        int attribute = entry[1];
        uint64_t payload = entry[0] == FORMAT_PAYLOAD ? number(entry + 2, 2) : 0;
        if (payload > info.count - at - 4)
            return 0;
        if (payload >= 12 && (attribute == KPARAM_INFO || attribute == KPARAM_INFO_V2) &&
            !note_size(entry + 4, attribute, sizes, count))
            return 0;
        at += 4 + payload;
    }
    return !memcmp(sizes, expected, count * sizeof *sizes);
}

/* ---- the file */

static int is_inside(struct bytes whole, uint64_t offset, uint64_t count)
{
    return offset <= whole.count && count <= whole.count - offset;
}

/* Are all segments and sections within the file? The section table is. */
static int is_whole(struct bytes elf)
{
    uint64_t segments = number(elf.at + 32, 8), sections = number(elf.at + 40, 8);
    uint64_t segment_bytes = number(elf.at + 54, 2), segment_count = number(elf.at + 56, 2);
    uint64_t section_count = number(elf.at + 60, 2);
    if ((segment_count && segment_bytes != SEGMENT_BYTES) ||
        !is_inside(elf, segments, segment_bytes * segment_count))
        return 0;
    for (uint64_t i = 0; i < segment_count; i++) {
        const unsigned char *segment = elf.at + segments + i * SEGMENT_BYTES;
        if (!is_inside(elf, number(segment + 8, 8), number(segment + 32, 8)))
            return 0;
    }
    for (uint64_t i = 0; i < section_count; i++) {
        const unsigned char *section = elf.at + sections + i * SECTION_BYTES;
        if (number(section + 4, 4) != NO_BITS &&
            !is_inside(elf, number(section + 24, 8), number(section + 32, 8)))
            return 0;
    }
    return 1;
}

const char *broken_cubin(const void *data, size_t size, int sm, char *text, size_t capacity)
{
    struct bytes elf = {data, size};
    if (size < ELF_HEADER_BYTES || memcmp(data, "\177ELF\2\1", 6))
        return "not a 64-bit little-endian ELF file";
    unsigned machine = (unsigned)number(elf.at + 18, 2), flags = (unsigned)number(elf.at + 48, 4);
    unsigned row_bytes = (unsigned)number(elf.at + 58, 2), count = (unsigned)number(elf.at + 60, 2);
    unsigned names = (unsigned)number(elf.at + 62, 2);
    unsigned own_sm = (elf.at[8] >= ABI_OF_CUDA_12_8 ? flags >> 8 : flags) & 0xff;
    if (count && row_bytes != SECTION_BYTES)
        snprintf(text, capacity, "an ELF file has section headers of %u bytes", row_bytes);
    else if (!is_inside(elf, number(elf.at + 40, 8), (uint64_t)count * SECTION_BYTES))
        snprintf(text, capacity, "an ELF file of %zu bytes ends inside its section table", size);
    else if (!is_whole(elf))
        snprintf(text, capacity, "an ELF file of %zu bytes names what is not in it", size);
    else if (count && names >= count)
        snprintf(text, capacity, "an ELF file with %u sections has its names in %u", count, names);
    else if (machine != MACHINE_CUDA)
        snprintf(text, capacity, "not a cubin: ELF machine %u instead of %d", machine, MACHINE_CUDA);
    else if (own_sm != (unsigned)sm)
        snprintf(text, capacity, "the artifact is for sm_%d, but its cubin is for sm_%u", sm, own_sm);
    else
        return NULL;
    return text;
}
