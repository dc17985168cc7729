/* Check a cubin before the driver reads it. The driver does not get the file's length, so no header
 * may refer to data outside of the file. specs/artifacts/cubin.py has the same rules. A cubin is a
 * 64-bit ELF file for machine 190. */
#include "plan.h"

#include <stdio.h>
#include <string.h>

enum {
    ELF_HEADER_BYTES = 64,
    SECTION_BYTES = 64,
    MACHINE_CUDA = 190,
    NO_BITS = 8,
    SEGMENT_BYTES = 56,
    ABI_OF_CUDA_12_8 = 8,      /* from this ABI on, the second byte of e_flags is the SM */
};

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

static int is_inside(struct bytes whole, uint64_t offset, uint64_t count)
{
    return offset <= whole.count && count <= whole.count - offset;
}

/* Are all segments and sections within the file? The caller has checked the section table. */
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
    if ((count && (row_bytes != SECTION_BYTES || names >= count)) ||
        !is_inside(elf, number(elf.at + 40, 8), (uint64_t)count * SECTION_BYTES) || !is_whole(elf))
        snprintf(text, capacity, "an ELF file of %zu bytes refers to missing data", size);
    else if (machine != MACHINE_CUDA)
        snprintf(text, capacity, "not a cubin: ELF machine %u instead of %d", machine, MACHINE_CUDA);
    else if (own_sm != (unsigned)sm)
        snprintf(text, capacity, "the artifact is for sm_%d, but its cubin is for sm_%u", sm, own_sm);
    else
        return NULL;
    return text;
}
