/* Argument type of exported kernels' functions. Written by `pallasc bundle export --c`. */
#ifndef PALLASC_TENSOR_H
#define PALLASC_TENSOR_H

#include <stddef.h>
#include <stdint.h>

/* An array on a device. */
typedef struct pallasc_tensor {
    void *data;             /* its device address */
    const char *dtype;      /* "f32", "bf16", "i4", "f8e4m3fn" */
    const int64_t *shape;   /* `rank` sizes */
    const int64_t *strides; /* `rank` steps between elements, in elements; NULL: row-major */
    size_t rank;
} pallasc_tensor;

#endif
