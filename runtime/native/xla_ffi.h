/* The interface between XLA and a handler: the part of XLA's C interface that xla.c uses.
 *
 * Source: xla/ffi/api/c_api.h of OpenXLA (Apache License 2.0), which jaxlib ships in
 * jax.ffi.include_dir(). The names differ, so that both can be included together: a test compares
 * sizes, offsets and numbers with the installed JAX's header. With separate definitions, the
 * library is built without JAX, and one binary works with every version of the interface from
 * FFI_MINOR on.
 *
 * The interface guarantees that structures contain their size and only grow at the end; any other
 * change increases the major version. XLA rejects a handler that requests a newer version
 * than XLA's, and accepts older ones (0.1 and later, in JAX 0.10 and 0.12). So a handler requests
 * the oldest version with all that it uses. Versions: 0.3 in JAX 0.10; 0.5 in JAX 0.12, which adds
 * a stage, options of an execution and extensions, all after the fields declared here. */
#ifndef PALLASC_XLA_FFI_H
#define PALLASC_XLA_FFI_H

#include <stddef.h>
#include <stdint.h>

#define FFI_MAJOR 0
#define FFI_MINOR 3

/* The size of a structure up to and including a field. */
#define FFI_SIZE(type, last) (offsetof(type, last) + sizeof(((type *)0)->last))

typedef struct ffi_error ffi_error;
typedef struct ffi_context ffi_context;
typedef struct ffi_api ffi_api;

typedef struct ffi_extension {
    size_t struct_size;
    int type;
    struct ffi_extension *next;
} ffi_extension;

/* The start of all other structures that may grow. */
#define FFI_HEAD size_t struct_size; ffi_extension *extensions;

enum { FFI_METADATA = 1 };

typedef struct ffi_version {
    FFI_HEAD
    int major, minor;
} ffi_version;

typedef struct ffi_type_id {
    int64_t number; /* 0: not known yet */
} ffi_type_id;

typedef struct ffi_metadata {
    size_t struct_size;
    ffi_version version;
    uint32_t traits;
    ffi_type_id state; /* the type of the state that instantiation creates */
} ffi_metadata;

enum { FFI_COMMAND_BUFFER_COMPATIBLE = 1 };

typedef struct ffi_metadata_extension {
    ffi_extension base;
    ffi_metadata *metadata;
} ffi_metadata_extension;

typedef struct ffi_span {
    const char *data;
    size_t size;
} ffi_span;

typedef struct ffi_buffer {
    FFI_HEAD
    int dtype;
    void *data;
    int64_t rank;
    int64_t *dims;
} ffi_buffer;

/* Used for both arguments and results. */
typedef struct ffi_buffers {
    FFI_HEAD
    int64_t size;
    int *types;
    void **values;
} ffi_buffers;

enum { FFI_IS_BUFFER = 1 };

typedef struct ffi_attributes {
    FFI_HEAD
    int64_t size;
    int *types;
    ffi_span **names; /* sorted */
    void **values;
} ffi_attributes;

enum { FFI_IS_DICTIONARY = 2, FFI_IS_STRING = 4 };

typedef struct ffi_call {
    FFI_HEAD
    const ffi_api *api;
    ffi_context *context;
    int stage;
    ffi_buffers arguments, results;
    ffi_attributes attributes;
} ffi_call;

enum { FFI_INSTANTIATE, FFI_PREPARE, FFI_INITIALIZE, FFI_EXECUTE };

typedef ffi_error *ffi_handler(ffi_call *call);

/* The codes of absl::Status. */
enum {
    FFI_INVALID_ARGUMENT = 3,
    FFI_NOT_FOUND = 5,
    FFI_RESOURCE_EXHAUSTED = 8,
    FFI_FAILED_PRECONDITION = 9,
    FFI_INTERNAL = 13,
    FFI_DATA_LOSS = 15
};

typedef struct ffi_error_args {
    FFI_HEAD
    const char *message;
    int code;
} ffi_error_args;

typedef struct ffi_stream_args {
    FFI_HEAD
    ffi_context *context;
    void *stream; /* out */
} ffi_stream_args;

typedef struct ffi_ordinal_args {
    FFI_HEAD
    ffi_context *context;
    int32_t ordinal; /* out */
} ffi_ordinal_args;

typedef struct ffi_type_info {
    FFI_HEAD
    void (*destroy)(void *object);
} ffi_type_info;

typedef struct ffi_type_args {
    FFI_HEAD
    ffi_span name;
    ffi_type_id *id; /* in and out */
    const ffi_type_info *info;
} ffi_type_args;

/* For setting and getting. */
typedef struct ffi_state_args {
    FFI_HEAD
    ffi_context *context;
    int stage;
    ffi_type_id *id;
    void *state;
} ffi_state_args;

struct ffi_api {
    FFI_HEAD
    ffi_version version;
    const void *internal;
    ffi_error *(*create_error)(ffi_error_args *);
    void (*error_details)(void *);
    void (*destroy_error)(void *);
    ffi_error *(*register_handler)(void *);
    ffi_error *(*stream)(ffi_stream_args *);
    ffi_error *(*register_type)(ffi_type_args *);
    ffi_error *(*context_get)(void *);
    ffi_error *(*set_state)(ffi_state_args *);
    ffi_error *(*get_state)(ffi_state_args *);
    void *unused[8];
    ffi_error *(*device_ordinal)(ffi_ordinal_args *);
};

/* Element type numbers: the short dtype names of plans, and their bits. */
#define FFI_DTYPES(X) \
    X(1, "bool", 8) X(30, "i1", 1) X(26, "i2", 2) X(21, "i4", 4) X(2, "i8", 8) X(3, "i16", 16) \
    X(4, "i32", 32) X(5, "i64", 64) X(31, "u1", 1) X(27, "u2", 2) X(22, "u4", 4) X(6, "u8", 8) \
    X(7, "u16", 16) X(8, "u32", 32) X(9, "u64", 64) X(10, "f16", 16) X(11, "f32", 32) \
    X(12, "f64", 64) X(16, "bf16", 16) X(15, "c64", 64) X(18, "c128", 128) X(19, "f8e5m2", 8) \
    X(29, "f8e3m4", 8) X(28, "f8e4m3", 8) X(20, "f8e4m3fn", 8) X(23, "f8e4m3b11fnuz", 8) \
    X(24, "f8e5m2fnuz", 8) X(25, "f8e4m3fnuz", 8) X(32, "f4e2m1fn", 4) X(33, "f8e8m0fnu", 8)

#endif
