/* What the stand-in reads from a cubin. */
#ifndef STANDIN_CUBIN_H
#define STANDIN_CUBIN_H

#include <stddef.h>
#include <stdint.h>

#define MAX_PARAMETERS 256

struct cubin_kernel {
    char *name;
    uint32_t parameter_count;
    uint32_t offsets[MAX_PARAMETERS], sizes[MAX_PARAMETERS];
    int registers, stack_bytes, static_smem_bytes;
    uint32_t max_threads[3];      /* .maxntid, 0: none */
    uint32_t required_threads[3]; /* .reqntid */
    uint32_t cluster[3];          /* .reqnctapercluster */
    uint32_t max_cluster_rank;
    int explicit_cluster;
};

struct cubin_global {
    char *name;
    int constant; /* lies in constant memory */
    uint64_t offset, bytes;
};

struct cubin {
    int sm;      /* 10 * major + minor */
    char suffix; /* 'a', 'f' or 0 */
    int toolkit_major, toolkit_minor;
    uint32_t kernel_count, global_count;
    struct cubin_kernel *kernels;
    struct cubin_global *globals;
    unsigned char *data; /* the initial values of all global variables */
    uint64_t data_bytes;
    unsigned char *image; /* a copy of the whole file */
    uint64_t image_bytes;
};

/* Return the parsed cubin, or NULL where `image` is none. */
struct cubin *parse_cubin(const void *image);
void free_cubin(struct cubin *cubin);

#endif
