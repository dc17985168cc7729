/* A checked view of an ELF file in memory (System V ABI, 64-bit, little-endian). */
#ifndef STANDIN_ELF_H
#define STANDIN_ELF_H

#include <stddef.h>
#include <stdint.h>

struct section {
    const char *name;
    uint32_t kind;
    uint64_t size;
    const unsigned char *content; /* NULL where the file holds none */
};

struct symbol {
    const char *name;
    uint16_t section;
    uint64_t value, size;
};

struct elf {
    unsigned char *data;
    uint64_t size;
    int machine, abi_version;
    uint32_t flags;
    uint32_t section_count;
};

/* Copy the file that starts at `image` and check its tables; 0 where it is not such a file. */
int open_elf(struct elf *elf, const void *image);
void close_elf(struct elf *elf);
int read_section(const struct elf *elf, uint32_t index, struct section *section);
int find_section(const struct elf *elf, const char *name, struct section *section);
uint32_t symbol_count(const struct elf *elf);
int read_symbol(const struct elf *elf, uint32_t index, struct symbol *symbol);

#endif
