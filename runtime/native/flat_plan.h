/* The flat plan: an artifact and its launch plan as one block of bytes.
 *
 * This file is the format's grammar. specs/artifacts/flat_plan.py is its only writer, plan.c its
 * only reader. The writer follows every rule below; the reader checks the rules that are needed so
 * that neither the reader nor the driver accesses invalid memory. Version history:
 *
 *   1  the first. Plans of one device: plans for several devices cannot be written.
 *
 * All numbers are little-endian. The block starts with a header, followed by tables in the order of
 * `enum flat_table_number`, each at the next multiple of 16 after the previous one, with zeros in
 * between; the block ends with the last table. So nothing overlaps, and all offsets follow from the
 * counts; they are stored so that they can be checked.
 *
 * A reader verifies, once and before it uses anything:
 *
 *   - magic, version, header_bytes, total_bytes, digest, the offset and entry size of every table
 *   - every string number is the start of a text in the table of strings, whose last byte is 0;
 *     texts are UTF-8
 *   - ranges ("first" and "count") in a table follow each other without gaps, in the order of the
 *     entries that contain them; so every check takes linear time
 *   - every buffer exists, all accesses are within its size, and no step writes to a constant
 *   - no blob digest and no cubin blob occurs twice
 *   - cubins are ELF files for the architecture with nothing outside the file: the driver reads
 *     their length from their headers
 *   - ranks and numbers of enumerations in tensor maps; the driver checks the rest when it encodes
 *     them
 *   - parameters have the sizes that their kernel declares here; drivers from CUDA 12.4 on report
 *     the sizes in the cubin, which must be the same
 *   - the limits at the end of this file
 *
 * The writer also guarantees that dtypes are listed in specs/arrays.py, gaps and reserved fields
 * are 0, parameters match the cubin, and tensor maps follow the driver's rules (below).
 *
 * Other readers may use these structures directly: fields are aligned to their size, and no
 * compiler adds padding. On little-endian machines, a copy of the block at a multiple of 16 can be
 * used in place. */
#ifndef PALLASC_FLAT_PLAN_H
#define PALLASC_FLAT_PLAN_H

#include <stdint.h>

#define FLAT_MAGIC "PALLASC\n"
#define FLAT_VERSION 1u
#define FLAT_NONE 0xffffffffu /* no string, no blob */

/* TABLE(number, name, entry). A string is the offset of its first byte in the table of strings. */
#define FLAT_EACH_TABLE(TABLE)                                                                    \
    TABLE(FLAT_STRINGS, strings, char)     /* zero-terminated texts */                            \
    TABLE(FLAT_NUMBERS, numbers, int64_t)  /* shapes and strides of arrays */                     \
    TABLE(FLAT_FACTS, facts, struct flat_facts) /* exactly one */                                 \
    TABLE(FLAT_BUFFERS, buffers, struct flat_buffer)                                              \
    TABLE(FLAT_ARRAYS, arrays, struct flat_array) /* inputs, then results, as a launch takes them */ \
    TABLE(FLAT_OUTPUTS, outputs, struct flat_array) /* of the function, for other readers */       \
    TABLE(FLAT_STEPS, steps, struct flat_step)                                                    \
    TABLE(FLAT_LAUNCHES, launches, struct flat_launch) /* in the order of the steps that launch */ \
    TABLE(FLAT_PARAMETERS, parameters, struct flat_parameter)                                     \
    TABLE(FLAT_MAPS, maps, struct flat_map)                                                       \
    TABLE(FLAT_VALUES, values, unsigned char) /* parameters passed by value, concatenated */      \
    TABLE(FLAT_KERNELS, kernels, struct flat_kernel)                                              \
    TABLE(FLAT_SIZES, sizes, uint32_t) /* sizes of the parameters of kernels */                   \
    TABLE(FLAT_CUBINS, cubins, struct flat_cubin)                                                 \
    TABLE(FLAT_BLOBS, blobs, struct flat_blob) /* cubins and constants */                         \
    TABLE(FLAT_DATA, content, unsigned char) /* blobs included in the block */

enum flat_table_number {
#define FLAT_NUMBER(number, name, entry) number,
    FLAT_EACH_TABLE(FLAT_NUMBER)
#undef FLAT_NUMBER
    FLAT_TABLES
};

struct flat_table {
    uint64_t offset; /* from the start of the block */
    uint32_t count;  /* number of entries; in tables of char, number of bytes */
    uint32_t entry_bytes;
};

struct flat_header {
    char magic[8];
    uint32_t version;
    uint32_t header_bytes; /* of this structure */
    uint64_t total_bytes;  /* of the whole block */
    uint8_t digest[32];    /* SHA-256 of all bytes after this field */
    struct flat_table tables[FLAT_TABLES];
};

struct flat_facts {
    uint32_t name;        /* string: name in messages, "matmul[m=1024]@h100-sxm" */
    uint32_t arch;        /* string: "sm_90a" */
    uint32_t driver;      /* minimum driver API, 13000 for 13.0; 0: not known */
    uint32_t package;     /* string: minimum driver package, "580.65.06"; FLAT_NONE */
    uint32_t sm_count;    /* multiprocessors of the model that it was compiled for */
    uint32_t input_count; /* number of arrays that are inputs */
    uint8_t artifact[32]; /* SHA-256 of the artifact's record */
};

enum { FLAT_INPUT, FLAT_OUTPUT, FLAT_CONSTANT, FLAT_TEMPORARY };

/* Temporaries follow each other in the workspace of a launch, in the order of their numbers, each
 * aligned to 256; the size of the workspace is rounded up to 256. */
struct flat_buffer {
    uint64_t size;
    uint32_t alignment; /* of an array from the caller */
    uint32_t role;
    uint32_t blob; /* of a constant, with the size of the buffer; else FLAT_NONE */
    uint32_t reserved;
};

/* No buffer is twice in FLAT_ARRAYS, and all have the role of an input or output. Every buffer of
 * these roles whose size is not 0 is included. An array has the size of its buffer. */
struct flat_array {
    uint32_t path;    /* string */
    uint32_t dtype;   /* string: a short name, "bf16" */
    uint32_t bits;    /* of an element, 1 to 128 */
    uint32_t rank;
    uint32_t numbers; /* the first of 2 * rank numbers: sizes, then strides in elements */
    uint32_t place;   /* in FLAT_ARRAYS: its number; in FLAT_OUTPUTS: number of its array */
    uint32_t buffer;
    uint32_t flags; /* 1 input, 2 result, 4 updated in place; 0 for outputs */
};

enum { FLAT_FILL, FLAT_COPY, FLAT_LAUNCH };

/* A fill sets `size` bytes to copies of a `value` of `width` bytes, 1 or 4. */
struct flat_step {
    uint32_t kind;
    uint32_t target; /* a buffer; for a launch, its number */
    uint32_t source; /* of a copy: a buffer; else 0 */
    uint32_t width;  /* of a fill; else 0 */
    uint64_t target_offset, source_offset;
    uint64_t size; /* 0 only for launches: steps without bytes are left out */
    uint64_t value;
};

struct flat_launch {
    uint32_t kernel;
    uint32_t grid[3]; /* in blocks, even with a cluster */
    uint32_t cluster[3]; /* 0, 0, 0: no cluster attribute */
    uint32_t block[3];
    uint32_t smem_bytes; /* dynamic */
    uint32_t pdl;        /* 1: programmatic stream serialization */
    uint32_t parameters; /* the first */
    uint32_t parameter_count;
    uint32_t blocks_per_sm; /* maximum resident blocks per SM of the model, at least 1 */
    uint32_t reserved;
};

enum { FLAT_POINTER, FLAT_VALUE, FLAT_ZEROS };

struct flat_parameter {
    uint32_t kind;
    uint32_t buffer; /* of a pointer; else 0 */
    uint64_t offset; /* of a pointer: in the buffer; of a value: in FLAT_VALUES; else 0 */
    uint32_t size;   /* 8 for a pointer; number of bytes for zeros and values */
    uint32_t maps;   /* its first tensor map */
    uint32_t map_count;
    uint32_t reserved;
};

/* The arguments of cuTensorMapEncodeTiled or cuTensorMapEncodeIm2col. `type` to `l2_promotion` are
 * the driver's numbers: CUtensorMapDataType 0 to 9, CUtensorMapSwizzle 0 to 3 (none, 32, 64, 128
 * bytes), CUtensorMapInterleave 0 to 2 (none, 16, 32 bytes), CUtensorMapL2promotion 0 to 3 (none,
 * 64, 128, 256 bytes). Entries beyond the rank are 0. Rules: rank 1 to 5; sizes 1 to 2^32; the
 * offset and byte strides are multiples of 16, with interleave 2 of 32, and strides are below 2^40;
 * element strides 1 to 8. Tiled: box 1 to 256, its inner bytes a multiple of 16 and at most the
 * swizzle. Im2col: rank 3 or higher; bounds of 16, 8, 5 bits for rank 3, 4, 5; 1 to 256 channels,
 * with at most as many bytes as the swizzle, 1 to 1024 pixels. */
struct flat_map {
    uint32_t at; /* offset in its parameter, in ascending order; a map takes 128 bytes */
    uint32_t buffer;
    uint64_t offset;
    uint64_t dims[5];    /* minor first */
    uint64_t strides[4]; /* bytes, without the minor dimension */
    uint32_t box[5];     /* tiled; else 0 */
    uint32_t element_strides[5];
    int32_t lower[3], upper[3]; /* im2col; else 0 */
    uint32_t channels, pixels;  /* im2col; else 0 */
    uint8_t type, rank, swizzle, interleave, l2_promotion, nan_fill, im2col, reserved;
};

struct flat_kernel {
    uint32_t name; /* string */
    uint32_t cubin;
    uint32_t static_smem_bytes;
    uint32_t sizes; /* first of its parameter sizes */
    uint32_t size_count;
    uint32_t reserved;
};

struct flat_cubin {
    uint32_t blob;
    uint32_t toolkit; /* string: version of its CUDA toolkit, "13.0"; FLAT_NONE: not known */
    uint32_t package; /* string: minimum driver package, FLAT_NONE: not known */
    uint32_t reserved;
};

struct flat_blob {
    uint8_t sha256[32];
    uint64_t offset; /* in FLAT_DATA, a multiple of 16 in the order of blobs */
    uint64_t size;
    uint32_t inside; /* 0: found by digest, and the offset is 0 */
    uint32_t reserved;
};

/* Limits. A launch has at most FLAT_MOST_PARAMETERS parameters with FLAT_MOST_PARAMETER_BYTES, the
 * driver's maximum; all launches together pass at most FLAT_MOST_VALUE_BYTES by value. Buffers and
 * the workspace are smaller than 2^62 bytes. */
#define FLAT_MOST_PARAMETER_BYTES 32764u
#define FLAT_MOST_PARAMETERS 4095u
#define FLAT_MOST_ARRAYS 4096u
#define FLAT_MOST_KERNELS 4096u
#define FLAT_MOST_RANK 64u
#define FLAT_MOST_BLOBS 4096u
#define FLAT_MOST_VALUE_BYTES (64u << 20)
#define FLAT_MOST_SIZE (1ull << 62)
#define FLAT_MAP_BYTES 128u

#ifdef __cplusplus
#define FLAT_SIZE(type, bytes) static_assert(sizeof(struct type) == bytes, #type)
#else
#define FLAT_SIZE(type, bytes) _Static_assert(sizeof(struct type) == bytes, #type)
#endif
FLAT_SIZE(flat_table, 16);
FLAT_SIZE(flat_header, 56 + 16 * FLAT_TABLES);
FLAT_SIZE(flat_facts, 56);
FLAT_SIZE(flat_buffer, 24);
FLAT_SIZE(flat_array, 32);
FLAT_SIZE(flat_step, 48);
FLAT_SIZE(flat_launch, 64);
FLAT_SIZE(flat_parameter, 32);
FLAT_SIZE(flat_map, 168);
FLAT_SIZE(flat_kernel, 24);
FLAT_SIZE(flat_cubin, 16);
FLAT_SIZE(flat_blob, 56);

#endif
