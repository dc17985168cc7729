/* What a cubin says of its kernels' parameters: the part of specs/artifacts/cubin.py that keeps the
 * driver from reading behind what a launch passes. Drivers from 12.4 on are asked as well.
 *
 * A cubin is an ELF file of 64 bits for machine 190. The section `.nv.info.KERNEL` has attributes,
 * `format:1 attribute:1 size-or-value:2 payload`; those of two numbers describe a parameter. Every
 * offset is checked against the bytes at hand. Headers of sections may all name the same bytes, so
 * what is looked through is counted over all kernels of a plan. */
#include "plan.h"

#include <string.h>

enum {
    ELF_HEADER_BYTES = 64,
    SECTION_BYTES = 64,
    MACHINE_CUDA = 190,
    NO_BITS = 8,
    FORMAT_PAYLOAD = 4,
    KPARAM_INFO = 0x17,
    KPARAM_INFO_V2 = 0x45,
};

static const char info_prefix[] = ".nv.info.";

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

/* Is the text at an offset of the section's names `.nv.info.` and a kernel's name? */
static int is_info_of(struct bytes names, uint64_t at, const char *kernel, size_t kernel_bytes)
{
    size_t prefix = sizeof info_prefix - 1;
    struct bytes name = part(names, at, prefix + kernel_bytes + 1);
    return name.count && !memcmp(name.at, info_prefix, prefix) &&
           !memcmp(name.at + prefix, kernel, kernel_bytes + 1);
}

static struct bytes info_of(struct bytes elf, const char *kernel, struct effort *left)
{
    struct bytes none = {elf.at, 0};
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
        if (is_info_of(names, number(section, 4), kernel, kernel_bytes))
            return content(elf, section);
    }
    return none;
}

/* Note the size of a parameter that an attribute describes; 0: it has a number beyond the others. */
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
