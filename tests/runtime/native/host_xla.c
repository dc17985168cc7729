/* pallasc's handlers on XLA's platform of the CPU, for tests of JAX without a GPU.
 *
 * Buffers are copied to memory of the stand-in driver, which lies in this process, and results back.
 * All else is the handlers' for GPUs: they are asked through an interface of XLA whose device is 0,
 * whose stream is the default one, and whose states are of a type for this platform. */
#define _GNU_SOURCE
#include "xla_ffi.h"

#include <dlfcn.h>
#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

enum { MOST = 64, MOST_BITS = 128 };

SHOWN ffi_handler *host_instantiate_by, *host_execute_by;

static const ffi_api *xla;
static ffi_type_id type;

static void leave(void *state)
{
    (void)state; /* the process ends soon */
}

static ffi_error *describe(ffi_metadata *metadata)
{
    static const char name[] = "pallasc_call_host";
    static const ffi_type_info info = {sizeof info, NULL, leave};
    ffi_type_args args = {sizeof args, NULL, {name, sizeof name - 1}, &type, &info};
    ffi_error *error = type.number ? NULL : xla->register_type(&args);
    metadata->version.major = FFI_MAJOR;
    metadata->version.minor = FFI_MINOR;
    metadata->state = type;
    return error;
}

static ffi_error *set_state(ffi_state_args *args)
{
    args->id = &type;
    return xla->set_state(args);
}

static ffi_error *get_state(ffi_state_args *args)
{
    args->id = &type;
    return xla->get_state(args);
}

static ffi_error *device_ordinal(ffi_ordinal_args *args)
{
    args->ordinal = 0;
    return NULL;
}

static ffi_error *stream(ffi_stream_args *args)
{
    args->stream = NULL;
    return NULL;
}

static void *driver(const char *name)
{
    void *found = dlsym(dlopen("libcuda.so.1", RTLD_NOW), name);
    if (!found)
        abort();
    return found;
}

static size_t bytes_of(const ffi_buffer *buffer)
{
    static const struct {
        int number, bits;
    } dtypes[] = {
#define ROW(number, name, bits) {number, bits},
        FFI_DTYPES(ROW)
#undef ROW
    };
    size_t bits = MOST_BITS;
    for (size_t n = 0; n < sizeof dtypes / sizeof *dtypes; n++)
        if (dtypes[n].number == buffer->dtype)
            bits = (size_t)dtypes[n].bits;
    for (int64_t n = 0; n < buffer->rank; n++)
        bits *= (size_t)buffer->dims[n];
    return bits / 8;
}

struct copy {
    void *host;
    uint64_t device;
    size_t bytes;
    int is_result;
};

/* Returns the address of a buffer's copy; an aliased result has that of its argument. */
static uint64_t copied(struct copy *copies, int *count, const ffi_buffer *buffer, int is_result)
{
    size_t bytes = bytes_of(buffer);
    for (int n = 0; n < *count; n++)
        if (bytes && copies[n].host == buffer->data) {
            copies[n].is_result |= is_result;
            return copies[n].device;
        }
    struct copy *own = &copies[(*count)++];
    *own = (struct copy){buffer->data, 0, bytes, is_result};
    int (*allocate)(uint64_t *, size_t) = (int (*)(uint64_t *, size_t))driver("cuMemAlloc_v2");
    if (*count == MOST || allocate(&own->device, bytes ? bytes : 1))
        abort();
    memcpy((void *)(uintptr_t)own->device, buffer->data, bytes);
    return own->device;
}

/* Lets `to` be `from` with buffers in the copies. */
static void take(ffi_buffers *to, const ffi_buffers *from, ffi_buffer *buffers, void **values,
                 struct copy *copies, int *count, int is_result)
{
    *to = *from;
    to->values = values;
    for (int64_t n = 0; n < from->size; n++) {
        buffers[n] = *(ffi_buffer *)from->values[n];
        buffers[n].data = (void *)(uintptr_t)copied(copies, count, &buffers[n], is_result);
        values[n] = &buffers[n];
    }
}

/* Returns true if XLA asked what the handler is. */
static int is_query(ffi_call *call, ffi_error **error)
{
    xla = call->api;
    *error = NULL;
    if (call->extensions && call->extensions->type == FFI_METADATA)
        *error = describe(((ffi_metadata_extension *)call->extensions)->metadata);
    return call->extensions != NULL;
}

static ffi_call passed_on(const ffi_call *call, ffi_api *api)
{
    ffi_call own = *call;
    *api = *xla;
    api->device_ordinal = device_ordinal;
    api->stream = stream;
    api->set_state = set_state;
    api->get_state = get_state;
    own.api = api;
    return own;
}

SHOWN ffi_error *host_instantiate(ffi_call *call)
{
    ffi_error *error;
    ffi_api api;
    if (is_query(call, &error))
        return error;
    ffi_call own = passed_on(call, &api);
    return host_instantiate_by(&own);
}

SHOWN ffi_error *host_execute(ffi_call *call)
{
    struct copy copies[MOST];
    ffi_buffer buffers[2][MOST];
    void *values[2][MOST], *context;
    int count = 0;
    ffi_error *error;
    ffi_api api;
    if (is_query(call, &error))
        return error;
    ((int (*)(unsigned))driver("cuInit"))(0);
    ((int (*)(void **, int))driver("cuDevicePrimaryCtxRetain"))(&context, 0);
    ((int (*)(void *))driver("cuCtxPushCurrent_v2"))(context);
    ffi_call own = passed_on(call, &api);
    take(&own.arguments, &call->arguments, buffers[0], values[0], copies, &count, 0);
    take(&own.results, &call->results, buffers[1], values[1], copies, &count, 1);
    error = host_execute_by(&own);
    for (int n = 0; n < count; n++) {
        if (copies[n].is_result)
            memcpy(copies[n].host, (void *)(uintptr_t)copies[n].device, copies[n].bytes);
        ((int (*)(uint64_t))driver("cuMemFree_v2"))(copies[n].device);
    }
    ((int (*)(void **))driver("cuCtxPopCurrent_v2"))(&context);
    return error;
}
