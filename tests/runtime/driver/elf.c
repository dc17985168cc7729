#define _GNU_SOURCE
#include "elf.h"

#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

enum { HEADER_BYTES = 64, SECTION_BYTES = 64, SYMBOL_BYTES = 24, NOBITS = 8, MOST_BYTES = 1 << 28 };

static uint64_t number(const unsigned char *at, int bytes)
{
    uint64_t value = 0;
    for (int i = bytes - 1; i >= 0; i--)
        value = value << 8 | at[i];
    return value;
}

/* The caller gives no length, so memory is read through the kernel: a lie in the headers must
 * not end the process. */
static int read_memory(void *target, const void *source, size_t bytes)
{
    struct iovec here = {target, bytes}, there = {(void *)(uintptr_t)source, bytes};
    return process_vm_readv(getpid(), &here, 1, &there, 1, 0) == (ssize_t)bytes;
}

static const unsigned char *section_row(const struct elf *elf, uint32_t index)
{
    return elf->data + number(elf->data + 40, 8) + (uint64_t)index * SECTION_BYTES;
}

static uint64_t whole_size(const unsigned char *header, const void *image)
{
    uint64_t table = number(header + 40, 8), programs = number(header + 32, 8);
    uint64_t size = table + number(header + 60, 2) * SECTION_BYTES;
    uint64_t programs_end = programs + number(header + 54, 2) * number(header + 56, 2);
    if (number(header + 58, 2) != SECTION_BYTES || table > MOST_BYTES || programs > MOST_BYTES)
        return 0;
    for (uint32_t i = 0; i < number(header + 60, 2); i++) {
        unsigned char row[SECTION_BYTES];
        if (!read_memory(row, (const unsigned char *)image + table + i * SECTION_BYTES, sizeof row))
            return 0;
        uint64_t start = number(row + 24, 8), bytes = number(row + 32, 8);
        if (number(row + 4, 4) == NOBITS)
            continue;
        if (start > MOST_BYTES || bytes > MOST_BYTES)
            return 0;
        size = start + bytes > size ? start + bytes : size;
    }
    return programs_end > size ? programs_end : size;
}

int open_elf(struct elf *elf, const void *image)
{
    unsigned char header[HEADER_BYTES];
    memset(elf, 0, sizeof *elf);
    if (!image || !read_memory(header, image, sizeof header))
        return 0;
    if (memcmp(header, "\177ELF\2\1", 6))
        return 0;
    elf->size = whole_size(header, image);
    if (elf->size < HEADER_BYTES || !(elf->data = malloc(elf->size)))
        return 0;
    if (!read_memory(elf->data, image, elf->size)) {
        close_elf(elf);
        return 0;
    }
    elf->machine = (int)number(header + 18, 2);
    elf->abi_version = header[8];
    elf->flags = (uint32_t)number(header + 48, 4);
    elf->section_count = (uint32_t)number(header + 60, 2);
    if (number(header + 62, 2) >= elf->section_count) {
        close_elf(elf);
        return 0;
    }
    return 1;
}

void close_elf(struct elf *elf)
{
    free(elf->data);
    memset(elf, 0, sizeof *elf);
}

/* A string of a string table, "" where it does not end inside. */
static const char *text(const unsigned char *table, uint64_t size, uint64_t at)
{
    if (!table || at >= size || !memchr(table + at, 0, size - at))
        return "";
    return (const char *)table + at;
}

static void read_content(const struct elf *elf, uint32_t index, struct section *section)
{
    const unsigned char *row = section_row(elf, index);
    section->kind = (uint32_t)number(row + 4, 4);
    section->size = number(row + 32, 8);
    section->content = section->kind == NOBITS ? NULL : elf->data + number(row + 24, 8);
}

int read_section(const struct elf *elf, uint32_t index, struct section *section)
{
    struct section names;
    if (index >= elf->section_count)
        return 0;
    read_content(elf, (uint32_t)number(elf->data + 62, 2), &names);
    read_content(elf, index, section);
    section->name = text(names.content, names.size, number(section_row(elf, index), 4));
    return 1;
}

int find_section(const struct elf *elf, const char *name, struct section *section)
{
    for (uint32_t i = 0; i < elf->section_count; i++)
        if (read_section(elf, i, section) && !strcmp(section->name, name))
            return 1;
    return 0;
}

uint32_t symbol_count(const struct elf *elf)
{
    struct section table;
    if (!find_section(elf, ".symtab", &table) || !table.content)
        return 0;
    return (uint32_t)(table.size / SYMBOL_BYTES);
}

int read_symbol(const struct elf *elf, uint32_t index, struct symbol *symbol)
{
    struct section table, names;
    if (index >= symbol_count(elf) || !find_section(elf, ".symtab", &table) ||
        !find_section(elf, ".strtab", &names))
        return 0;
    const unsigned char *row = table.content + (uint64_t)index * SYMBOL_BYTES;
    symbol->name = text(names.content, names.size, number(row, 4));
    symbol->section = (uint16_t)number(row + 6, 2);
    symbol->value = number(row + 8, 8);
    symbol->size = number(row + 16, 8);
    return 1;
}
