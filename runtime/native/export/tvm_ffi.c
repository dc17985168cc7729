/* The calling convention of tvm-ffi, without linking to it or including its headers.
 *
 * The declarations below are from apache/tvm-ffi 0.1, include/tvm/ffi/c_api.h (TVMFFIAny,
 * TVMFFIObject, the type indices, TVMFFISafeCallType), extra/c_env_api.h, and dlpack.h 1.x. The
 * host's functions are looked up in the process, where libtvm_ffi.so is already loaded. */
#define _GNU_SOURCE
#include "kernels.h"

#include <dlfcn.h>
#include <stdio.h>

enum { TVM_NONE = 0, TVM_DLTENSOR = 7, TVM_TENSOR = 70, OBJECT_BYTES = 24 };
enum { DL_CUDA = 2, DL_CUDA_MANAGED = 13 };
enum { DL_INT, DL_UINT, DL_FLOAT, DL_BFLOAT = 4, DL_COMPLEX = 5, DL_BOOL = 6 };

struct dl_tensor {
    void *data;
    struct {
        int32_t type, ordinal;
    } device;
    int32_t rank;
    struct {
        uint8_t code, bits;
        uint16_t lanes;
    } dtype;
    int64_t *shape, *strides; /* strides NULL: row-major */
    uint64_t byte_offset;
};
_Static_assert(sizeof(struct dl_tensor) == 48, "dlpack.h");
_Static_assert(sizeof(struct tvm_any) == 16, "c_api.h");

/* ---- the host's functions ---- */

static void *host_function(const char *name)
{
    void *library = dlopen("libtvm_ffi.so", RTLD_LAZY | RTLD_NOLOAD);
    void *function = dlsym(library ? library : RTLD_DEFAULT, name);
    if (library)
        dlclose(library); /* the caller holds a reference */
    return function;
}

/* Look a function up once; a missing one is looked up again next time. */
static void *known(_Atomic(void *) *function, const char *name)
{
    void *found = atomic_load_explicit(function, memory_order_relaxed);
    if (!found)
        atomic_store_explicit(function, found = host_function(name), memory_order_relaxed);
    return found;
}

static _Atomic(void *) set_raised, get_stream, allocate, release;

static int raise_status(int status)
{
    void (*set)(const char *, const char *) =
        (void (*)(const char *, const char *))known(&set_raised, "TVMFFIErrorSetRaisedFromCStr");
    if (set)
        set(status == PALLASC_ERROR_ARGUMENT ? "ValueError" : "RuntimeError", pallasc_last_error());
    return -1;
}

static void *stream_of(const struct dl_tensor *tensor)
{
    void *(*get)(int32_t, int32_t) =
        (void *(*)(int32_t, int32_t))known(&get_stream, "TVMFFIEnvGetStream");
    return get ? get(DL_CUDA, tensor->device.ordinal) : NULL;
}

/* ---- arguments ---- */

static const struct dl_tensor *tensor_of(const struct tvm_any *argument)
{
    if (argument->type == TVM_DLTENSOR)
        return argument->value.pointer;
    if (argument->type == TVM_TENSOR)
        return (const void *)((const char *)argument->value.pointer + OBJECT_BYTES);
    return NULL;
}

/* The name of an element type; codes from 7 on are in the order of dlpack.h. */
static const char *dtype_name(const struct dl_tensor *tensor, char name[16])
{
    static const char *const small[] = {"f8e3m4",   "f8e4m3",     "f8e4m3b11fnuz", "f8e4m3fn",
                                        "f8e4m3fnuz", "f8e5m2",   "f8e5m2fnuz",    "f8e8m0fnu",
                                        "f6e2m3fn", "f6e3m2fn",   "f4e2m1fn"};
    int code = tensor->dtype.code, bits = tensor->dtype.bits;
    const char *letters[] = {"i", "u", "f", NULL, "bf", "c"};
    if (tensor->dtype.lanes == 1 && code == DL_BOOL && bits == 8)
        return "bool";
    if (tensor->dtype.lanes == 1 && code > DL_BOOL && code <= DL_BOOL + 11)
        return small[code - DL_BOOL - 1];
    if (tensor->dtype.lanes == 1 && code <= DL_COMPLEX && letters[code])
        snprintf(name, 16, "%s%d", letters[code], bits);
    else
        snprintf(name, 16, "DLPack %d:%d", code, bits);
    return name;
}

static int check_tensor(const struct kernel *kernel, int32_t number, const struct tvm_any *argument,
                        const struct dl_tensor *tensor, int32_t ordinal)
{
    if (!tensor)
        return fail(PALLASC_ERROR_ARGUMENT, "Pass the inputs, then an array for each result.",
                    "%s: argument %d is not a tensor: tvm-ffi gives it type %d.", kernel->name,
                    number, argument->type);
    if (tensor->device.type != DL_CUDA && tensor->device.type != DL_CUDA_MANAGED)
        return fail(PALLASC_ERROR_ARGUMENT, NULL,
                    "%s: argument %d is not on a CUDA device: its DLPack device type is %d.",
                    kernel->name, number, tensor->device.type);
    if (tensor->device.ordinal != ordinal)
        return fail(PALLASC_ERROR_ARGUMENT, NULL,
                    "%s: argument %d is on device %d, and argument 0 on device %d.", kernel->name,
                    number, tensor->device.ordinal, ordinal);
    return PALLASC_OK;
}

/* ---- temporaries ---- */

/* Ask the host for memory from a stream-ordered allocator, such as torch's. */
static int host_memory(const struct kernel *kernel, const struct dl_tensor *like, size_t bytes,
                       char **object)
{
    int (*make)(struct dl_tensor *, void **) =
        (int (*)(struct dl_tensor *, void **))known(&allocate, "TVMFFIEnvTensorAlloc");
    if (!make || !known(&release, "TVMFFIObjectDecRef"))
        return fail(PALLASC_ERROR_ARGUMENT, "Call it from a process that has loaded tvm-ffi.",
                    "%s: tvm-ffi has no allocator for %zu bytes of temporaries.", kernel->name,
                    bytes);
    int64_t size = (int64_t)bytes;
    struct dl_tensor wanted = {.device = {DL_CUDA, like->device.ordinal},
                               .rank = 1,
                               .dtype = {DL_UINT, 8, 1},
                               .shape = &size};
    return make(&wanted, (void **)object);
}

static int launch_tensors(struct kernel *kernel, const struct dl_tensor *first,
                          const pallasc_tensor *arrays, size_t count)
{
    int device = first->device.ordinal;
    size_t bytes = 0;
    char *object = NULL, *workspace = NULL;
    int status = prepare_kernel(kernel, device, arrays, count, &bytes);
    if (status)
        return raise_status(status);
    if (bytes) {
        status = host_memory(kernel, first, bytes, &object);
        if (status)
            return status > 0 ? raise_status(status) : status; /* the host raised its own error */
        const struct dl_tensor *made = (const void *)(object + OBJECT_BYTES);
        workspace = (char *)made->data + made->byte_offset;
    }
    status = launch_kernel(kernel, device, arrays, count, workspace, bytes, stream_of(first));
    if (object)
        ((int (*)(void *))known(&release, "TVMFFIObjectDecRef"))(object);
    return status ? raise_status(status) : 0;
}

int call_by_tvm(struct kernel *kernel, const struct tvm_any *arguments, int32_t count,
                struct tvm_any *result)
{
    if (count < 1 || count > (int32_t)FLAT_MOST_ARRAYS)
        return raise_status(fail(PALLASC_ERROR_ARGUMENT, NULL, "%s takes 1 to %d arrays, not %d.",
                                 kernel->name, (int)FLAT_MOST_ARRAYS, count));
    const struct dl_tensor *first = tensor_of(&arguments[0]);
    pallasc_tensor arrays[count];
    char names[count][16];
    for (int32_t i = 0; i < count; i++) {
        const struct dl_tensor *own = tensor_of(&arguments[i]);
        int status =
            check_tensor(kernel, i, &arguments[i], own, first ? first->device.ordinal : 0);
        if (status)
            return raise_status(status);
        arrays[i] = (pallasc_tensor){(char *)own->data + own->byte_offset,
                                     dtype_name(own, names[i]), own->shape, own->strides,
                                     (size_t)own->rank};
    }
    *result = (struct tvm_any){.type = TVM_NONE};
    return launch_tensors(kernel, first, arrays, (size_t)count);
}
