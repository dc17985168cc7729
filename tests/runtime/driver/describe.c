/* What the stand-in read from a cubin, as lines of text, to compare with another reader. */
#include "control.h"
#include "cubin.h"

#include <stdarg.h>
#include <stdio.h>

struct text {
    char *at;
    size_t left;
    int full;
};

static void add(struct text *text, const char *format, ...)
{
    va_list values;
    va_start(values, format);
    int length = vsnprintf(text->at, text->left, format, values);
    va_end(values);
    if (length < 0 || (size_t)length >= text->left) {
        text->full = 1;
        return;
    }
    text->at += length;
    text->left -= (size_t)length;
}

static void add_kernel(struct text *text, const struct cubin_kernel *kernel)
{
    add(text, "kernel %s registers %d stack %d smem %d barriers %d\n", kernel->name,
        kernel->registers, kernel->stack_bytes, kernel->static_smem_bytes, kernel->barriers);
    for (uint32_t i = 0; i < kernel->parameter_count; i++)
        add(text, "parameter %u %u\n", kernel->offsets[i], kernel->sizes[i]);
    add(text, "maxntid %u %u %u\n", kernel->max_threads[0], kernel->max_threads[1], kernel->max_threads[2]);
    add(text, "reqntid %u %u %u\n", kernel->required_threads[0], kernel->required_threads[1],
        kernel->required_threads[2]);
    add(text, "cluster %u %u %u rank %u explicit %d\n", kernel->cluster[0], kernel->cluster[1],
        kernel->cluster[2], kernel->max_cluster_rank, kernel->explicit_cluster);
}

int standin_cubin(const void *image, char *buffer, size_t capacity)
{
    struct text text = {buffer, capacity, 0};
    struct cubin *cubin = parse_cubin(image);
    if (!cubin)
        return INVALID_IMAGE;
    add(&text, "sm %d suffix %s toolkit %d.%d\n", cubin->sm,
        cubin->suffix == 'a' ? "a" : cubin->suffix == 'f' ? "f" : "-", cubin->toolkit_major,
        cubin->toolkit_minor);
    for (uint32_t i = 0; i < cubin->kernel_count; i++)
        add_kernel(&text, &cubin->kernels[i]);
    for (uint32_t i = 0; i < cubin->global_count; i++)
        add(&text, "global %s %llu\n", cubin->globals[i].name,
            (unsigned long long)cubin->globals[i].bytes);
    free_cubin(cubin);
    return text.full ? OUT_OF_MEMORY : CUDA_SUCCESS;
}
