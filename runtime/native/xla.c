/* Kernels inside XLA programs: handlers for XLA's foreign function interface (xla_ffi.h).
 *
 * A call is an instruction with these attributes:
 *
 *   kernel  text: its name in messages
 *   plans   a dictionary of flat plans (flat_plan.h), one for each GPU it was compiled for. Keys
 *           are sorted: three digits, in the order in which plans are tried, then the variant's id
 *   origin  text: where to find cubins that the plans name by digest; "" if they are included
 *
 * Its arguments are the kernel's inputs, in row-major memory of the layout that the kernel takes.
 * Its results are the inputs that are updated in place, each in the memory of its argument, then
 * the kernel's results, then memory for temporaries if any of the plans needs it.
 *
 * The stages:
 *
 *   instantiate  reads and verifies the plans; no driver is needed
 *   prepare      loads each plan on the matching GPUs of the process whose primary context is in
 *                use. XLA calls it before any kernel of a run is launched: loading later could wait
 *                for kernels that wait for others, and cannot be captured
 *   execute      launches in XLA's stream */
#define _POSIX_C_SOURCE 200809L
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "xla_ffi.h"

enum { MOST_PLANS = 256, KEY_DIGITS = 3, REASON_BYTES = 1536 };

/* One call of a program. */
struct instance {
    char *kernel, *origin;
    size_t count;              /* of plans */
    size_t inputs, updated, results;
    size_t workspace_bytes;    /* the maximum of all plans */
    atomic_int is_checked;     /* the buffers of a call site never change their shapes */
    atomic_uint prepared;      /* the epoch in which it was prepared on all GPUs in use */
    int *places;               /* by buffer: its result's number, or -1 - its argument's number */
    char absent[REASON_BYTES]; /* why plans were left out, one per line */
    pallasc_plan *plans[];
};

/* Finds a blob of a variant, like pallasc_find. If the blob's bundle is damaged, it returns
 * PALLASC_ERROR_CORRUPT, and the data are the message. The data are copied before this thread's
 * next call. Without such a function (NULL), nothing is found. */
typedef int (*find_function)(const char *kernel, const char *variant, const char *sha256,
                             const void **data, size_t *size);

static _Atomic(find_function) find_blob;

PALLASC_API void pallasc_xla_find_with(find_function find)
{
    atomic_store(&find_blob, find);
}

struct search {
    const char *kernel;
    char variant[2048];
    char damage[1024]; /* message if the bundle with the blob is damaged, else "" */
};

static int find_in(void *context, const char *sha256, const void **data, size_t *size)
{
    struct search *search = context;
    find_function find = atomic_load(&find_blob);
    if (!find)
        return PALLASC_ERROR_NOT_FOUND;
    int status = find(search->kernel, search->variant, sha256, data, size);
    if (status == PALLASC_ERROR_CORRUPT && *data)
        snprintf(search->damage, sizeof search->damage, "%.*s", (int)*size, (const char *)*data);
    return status;
}

/* ---- errors ---- */

/* The absl code closest to a pallasc status. */
static int code_of(int status)
{
    switch (status) {
    case PALLASC_ERROR_ARGUMENT: return FFI_INVALID_ARGUMENT;
    case PALLASC_ERROR_CORRUPT: return FFI_DATA_LOSS;
    case PALLASC_ERROR_DEVICE: return FFI_FAILED_PRECONDITION;
    case PALLASC_ERROR_OUT_OF_MEMORY: return FFI_RESOURCE_EXHAUSTED;
    case PALLASC_ERROR_NOT_FOUND: return FFI_NOT_FOUND;
    default: return FFI_INTERNAL;
    }
}

/* The error of this thread's last failure; NULL if nothing failed. */
static ffi_error *error_of(const ffi_call *call, int status)
{
    ffi_error_args args = {FFI_SIZE(ffi_error_args, code), NULL, pallasc_last_error(),
                           code_of(status)};
    return status ? call->api->create_error(&args) : NULL;
}

/* ---- XLA's first queries ---- */

static void destroy(void *object)
{
    struct instance *self = object;
    if (!self)
        return;
    for (size_t n = 0; n < self->count; n++)
        pallasc_close(self->plans[n]);
    free(self->places);
    free(self->kernel);
    free(self->origin);
    free(self);
}

static const char type_name[] = "pallasc_call_cuda";
static const ffi_type_info type_info = {FFI_SIZE(ffi_type_info, destroy), NULL, destroy};
static ffi_type_id type; /* of instances */

/* Answers a query about the handler. True: the call was a query, and `error` is the answer. */
static int described(ffi_call *call, ffi_error **error)
{
    if (!call->extensions)
        return 0;
    *error = NULL;
    if (call->extensions->type != FFI_METADATA)
        return 0;
    ffi_metadata *metadata = ((ffi_metadata_extension *)call->extensions)->metadata;
    if (metadata->struct_size < FFI_SIZE(ffi_metadata, version))
        return 1; /* XLA rejects a handler without a version */
    metadata->version.major = FFI_MAJOR;
    metadata->version.minor = FFI_MINOR;
    if (metadata->struct_size < FFI_SIZE(ffi_metadata, traits))
        return 1;
    metadata->traits = FFI_COMMAND_BUFFER_COMPATIBLE;
    /* Every version from 0.3 on has the field `state`, but reports a size that ends before it. */
    const ffi_api *api = call->api;
    if (api->version.major != FFI_MAJOR || api->version.minor < FFI_MINOR ||
        api->struct_size < FFI_SIZE(ffi_api, device_ordinal))
        return 1; /* XLA reports this itself */
    if (!type.number) {
        ffi_type_args args = {FFI_SIZE(ffi_type_args, info), NULL,
                              {type_name, strlen(type_name)}, &type, &type_info};
        *error = api->register_type(&args);
    }
    metadata->state = type;
    return 1;
}

/* ---- instantiate ---- */

static const void *attribute(const ffi_attributes *attributes, const char *name, int type)
{
    size_t size = strlen(name);
    for (int64_t n = 0; n < attributes->size; n++) {
        const ffi_span *own = attributes->names[n];
        if (own->size == size && !memcmp(own->data, name, size) && attributes->types[n] == type)
            return attributes->values[n];
    }
    return NULL;
}

static char *text_of(const ffi_attributes *attributes, const char *name)
{
    const ffi_span *text = attribute(attributes, name, FFI_IS_STRING);
    return text ? strndup(text->data, text->size) : strdup("");
}

/* Appends the first line of a message, without its remedy. */
static void add_reason(char reasons[REASON_BYTES], const char *message)
{
    append(reasons, REASON_BYTES, "\n  %.*s", (int)strcspn(message, "\n"), message);
}

static int same_arrays(const pallasc_plan *one, const pallasc_plan *other)
{
    if (pallasc_buffer_count(one) != pallasc_buffer_count(other))
        return 0;
    for (size_t n = 0; n < pallasc_buffer_count(one); n++) {
        pallasc_array a, b;
        if (pallasc_buffer(one, n, &a) || pallasc_buffer(other, n, &b) || a.bytes != b.bytes ||
            a.flags != b.flags || strcmp(a.dtype, b.dtype))
            return 0;
    }
    return 1;
}

/* Records a workspace size that is enough for all plans, and the source of each buffer. */
static int measure(struct instance *self)
{
    size_t count = pallasc_buffer_count(self->plans[0]);
    for (size_t n = 0; n < self->count; n++) {
        size_t bytes = pallasc_workspace_bytes(self->plans[n]);
        self->workspace_bytes = bytes > self->workspace_bytes ? bytes : self->workspace_bytes;
        if (n && !same_arrays(self->plans[0], self->plans[n]))
            return fail(PALLASC_ERROR_CORRUPT, NULL,
                        "%s: the plans of the call take different arrays.", self->kernel);
    }
    self->places = calloc(count + 1, sizeof *self->places);
    if (!self->places)
        return fail_host_memory();
    for (size_t n = 0; n < count; n++) {
        pallasc_array array;
        pallasc_buffer(self->plans[0], n, &array);
        /* XLA copies an updated argument into its result's memory if necessary. */
        if (array.flags & PALLASC_UPDATED)
            self->places[n] = (int)self->updated++;
        else if (array.flags & PALLASC_INPUT)
            self->places[n] = -1 - (int)n;
        self->inputs += (array.flags & PALLASC_INPUT) != 0;
    }
    for (size_t n = self->inputs; n < count; n++)
        self->places[n] = (int)(self->updated + self->results++);
    return PALLASC_OK;
}

static int open_plans(struct instance *self, const ffi_attributes *plans)
{
    for (int64_t n = 0; n < plans->size; n++) {
        const ffi_span *data = plans->values[n];
        if (plans->types[n] != FFI_IS_STRING)
            return fail(PALLASC_ERROR_CORRUPT, NULL, "%s: a plan of the call is not text.",
                        self->kernel);
        struct search search = {.kernel = self->kernel};
        const ffi_span *key = plans->names[n];
        if (key->size > KEY_DIGITS)
            snprintf(search.variant, sizeof search.variant, "%.*s", (int)key->size - KEY_DIGITS,
                     key->data + KEY_DIGITS);
        pallasc_plan **plan = &self->plans[self->count];
        int status = pallasc_open(data->data, data->size, find_in, &search, plan);
        if (status == PALLASC_ERROR_NOT_FOUND && *search.damage)
            return fail(PALLASC_ERROR_CORRUPT, "Install or copy that bundle again.",
                        "the program names %s by digest, and the bundle that has its cubins is "
                        "damaged: %s", self->kernel, search.damage);
        if (status == PALLASC_ERROR_NOT_FOUND)
            add_reason(self->absent, pallasc_last_error());
        else if (status)
            return fail(status, NULL, "%s: %s", self->kernel, pallasc_last_error());
        else
            self->count++;
    }
    if (!self->count)
        return fail(PALLASC_ERROR_NOT_FOUND, NULL,
                    "the program names %s by digest, and no open bundle has its cubins:%s\n"
                    "Open %s before, with pallasc.load or pallasc.open_bundle, or export the "
                    "kernel with its bytes.", self->kernel, self->absent,
                    *self->origin ? self->origin : "the bundle that it came from");
    return measure(self);
}

PALLASC_API ffi_error *pallasc_xla_cuda_instantiate(ffi_call *call)
{
    ffi_error *error;
    if (described(call, &error))
        return error;
    const ffi_attributes *plans = attribute(&call->attributes, "plans", FFI_IS_DICTIONARY);
    if (!plans || plans->size < 1 || plans->size > MOST_PLANS)
        return error_of(call, fail(PALLASC_ERROR_CORRUPT, NULL,
                                   "a call of pallasc needs 1 to %d plans.", MOST_PLANS));
    size_t size = sizeof(struct instance) + (size_t)plans->size * sizeof(pallasc_plan *);
    struct instance *self = calloc(1, size);
    if (!self)
        return error_of(call, fail_host_memory());
    self->kernel = text_of(&call->attributes, "kernel");
    self->origin = text_of(&call->attributes, "origin");
    int has_memory = self->kernel && self->origin;
    error = error_of(call, has_memory ? open_plans(self, plans) : fail_host_memory());
    if (!error) {
        ffi_state_args args = {FFI_SIZE(ffi_state_args, state), NULL, call->context,
                               FFI_INSTANTIATE, &type, self};
        error = call->api->set_state(&args);
    }
    if (error)
        destroy(self);
    return error;
}

/* ---- prepare and execute ---- */

static ffi_error *state_of(ffi_call *call, struct instance **self)
{
    ffi_state_args args = {FFI_SIZE(ffi_state_args, state), NULL, call->context, FFI_INSTANTIATE,
                           &type, NULL};
    ffi_error *error = call->api->get_state(&args);
    *self = args.state;
    return error;
}

/* Finds the plan for a device: the first that fits, which is prepared there. */
static int choose(struct instance *self, int device, pallasc_plan **plan)
{
    if (device < 0 || device >= MOST_DEVICES)
        return fail(PALLASC_ERROR_DEVICE, NULL, "%s: GPU %d is beyond the %d that calls inside XLA "
                    "know.", self->kernel, device, MOST_DEVICES);
    for (size_t n = 0; n < self->count; n++)
        if (is_prepared(*plan = self->plans[n], device))
            return PALLASC_OK;
    const char *absence = *self->absent ? "\nNot read from an open bundle:" : "";
    char reasons[REASON_BYTES] = "";
    for (size_t n = 0; n < self->count; n++) {
        int status = pallasc_prepare(*plan = self->plans[n], device);
        if (!status)
            return PALLASC_OK;
        if (status != PALLASC_ERROR_DEVICE || self->count == 1)
            return fail(status, NULL, "%s%s%s", pallasc_last_error(), absence, self->absent);
        add_reason(reasons, pallasc_last_error());
    }
    return fail(PALLASC_ERROR_DEVICE, NULL, "no variant of %s fits GPU %d:%s%s%s", self->kernel,
                device, reasons, absence, self->absent);
}

struct dtype {
    const char *name;
    int bits;
};

static struct dtype dtype_of(int number)
{
    switch (number) {
#define CASE(number, name, bits) case number: return (struct dtype){name, bits};
        FFI_DTYPES(CASE)
#undef CASE
    default: return (struct dtype){"of a dtype that pallasc does not know", 0};
    }
}

/* The number of elements of an array; SIZE_MAX if it overflows or a size is negative. */
static size_t elements(const int64_t *sizes, int64_t rank)
{
    size_t count = 1;
    for (int64_t n = 0; n < rank; n++)
        if (sizes[n] < 0 || __builtin_mul_overflow(count, (size_t)sizes[n], &count))
            return SIZE_MAX;
    return count;
}

static int check_buffer(const struct instance *self, size_t number, const ffi_buffer *buffer)
{
    pallasc_array array;
    pallasc_buffer(self->plans[0], number, &array);
    struct dtype dtype = dtype_of(buffer->dtype);
    size_t count = elements(array.shape, (int64_t)array.rank);
    size_t given = elements(buffer->dims, buffer->rank);
    if (strcmp(dtype.name, array.dtype) || given != count)
        return fail(PALLASC_ERROR_ARGUMENT, NULL,
                    "%s: %s is %zu elements %s in the program, and the kernel takes %zu %s.",
                    self->kernel, array.path, given, dtype.name, count, array.dtype);
    /* The plan may be untrusted, too. */
    if ((size_t)dtype.bits != array.bits)
        return fail(PALLASC_ERROR_CORRUPT, NULL, "%s: %s has elements of %zu bits, and %s has %d.",
                    self->kernel, array.path, array.bits, dtype.name, dtype.bits);
    return PALLASC_OK;
}

/* Checks the buffers of a call site against the kernel's arrays: the program may be untrusted. */
static int check_buffers(const ffi_call *call, const struct instance *self)
{
    size_t results = self->updated + self->results + (self->workspace_bytes != 0);
    if (call->arguments.size != (int64_t)self->inputs || call->results.size != (int64_t)results)
        return fail(PALLASC_ERROR_ARGUMENT, NULL,
                    "%s: the program passes %lld of %zu arrays and has room for %lld of %zu "
                    "results.", self->kernel, (long long)call->arguments.size, self->inputs,
                    (long long)call->results.size, results);
    for (int64_t n = 0; n < call->arguments.size + call->results.size; n++) {
        int is_result = n >= call->arguments.size;
        const ffi_buffers *buffers = is_result ? &call->results : &call->arguments;
        int64_t number = is_result ? n - call->arguments.size : n;
        if (buffers->types[number] != FFI_IS_BUFFER)
            return fail(PALLASC_ERROR_ARGUMENT, NULL, "%s: %s %lld is not an array.", self->kernel,
                        is_result ? "result" : "argument", (long long)number);
    }
    for (size_t n = 0; n < self->inputs + self->results; n++) {
        int status = PALLASC_OK;
        if (n < self->inputs)
            status = check_buffer(self, n, call->arguments.values[n]);
        if (!status && self->places[n] >= 0)
            status = check_buffer(self, n, call->results.values[self->places[n]]);
        if (status)
            return status;
    }
    if (self->workspace_bytes) {
        const ffi_buffer *workspace = call->results.values[results - 1];
        struct dtype dtype = dtype_of(workspace->dtype);
        size_t bytes = elements(workspace->dims, workspace->rank);
        if (dtype.bits != 8 || bytes < self->workspace_bytes || bytes == SIZE_MAX)
            return fail(PALLASC_ERROR_ARGUMENT, NULL, "%s: the program has less than %zu bytes for "
                        "temporaries.", self->kernel, self->workspace_bytes);
    }
    return PALLASC_OK;
}

/* Lists the addresses of a launch, the memory for temporaries last. An input that is updated in place
 * has the memory of its result, as the program's alias promises. Without an alias, the result is
 * uninitialized memory. */
static int list_buffers(const ffi_call *call, const struct instance *self, void **buffers)
{
    size_t count = self->inputs + self->results;
    pallasc_array array;
    for (size_t n = 0; n < count; n++) {
        int place = self->places[n];
        const ffi_buffer *buffer =
            place < 0 ? call->arguments.values[-1 - place] : call->results.values[place];
        const ffi_buffer *argument = n < self->inputs ? call->arguments.values[n] : buffer;
        buffers[n] = buffer->data;
        if (!pallasc_buffer(self->plans[0], n, &array) && array.bytes &&
            argument->data != buffer->data)
            return fail(PALLASC_ERROR_ARGUMENT, NULL,
                        "%s: %s is updated in place, and the program gives its result other "
                        "memory.", self->kernel, array.path);
    }
    buffers[count] = NULL;
    if (self->workspace_bytes)
        buffers[count] = ((ffi_buffer *)call->results.values[self->updated + self->results])->data;
    return PALLASC_OK;
}

static int launch(const ffi_call *call, struct instance *self, int device, void *stream)
{
    pallasc_plan *plan;
    void *buffers[FLAT_MOST_ARRAYS + 1];
    size_t count = self->inputs + self->results;
    int status = PALLASC_OK;
    if (!atomic_load_explicit(&self->is_checked, memory_order_relaxed)) {
        status = check_buffers(call, self);
        atomic_store_explicit(&self->is_checked, !status, memory_order_relaxed);
    }
    if (status || (status = list_buffers(call, self, buffers)) ||
        (status = choose(self, device, &plan)))
        return status;
    return pallasc_launch(plan, device, buffers, count, buffers[count], stream);
}

/* Lists the GPUs whose primary context is active in this process; returns their number, 0 if there
 * is no driver. */
static int devices_in_use(int ordinals[MOST_DEVICES])
{
    int count = 0, found = 0;
    lock_process();
    if (!open_driver() && !driver.cuDeviceGetCount(&count))
        for (int ordinal = 0; ordinal < count && found < MOST_DEVICES; ordinal++) {
            int handle, active = 0;
            unsigned flags;
            if (!driver.cuDeviceGet(&handle, ordinal) &&
                !driver.cuDevicePrimaryCtxGetState(handle, &flags, &active) && active)
                ordinals[found++] = ordinal;
        }
    unlock_process();
    return found;
}

PALLASC_API ffi_error *pallasc_xla_cuda_prepare(ffi_call *call)
{
    ffi_error *error;
    struct instance *self;
    if (described(call, &error) || (error = state_of(call, &self)))
        return error;
    unsigned epoch = current_epoch();
    if (atomic_load_explicit(&self->prepared, memory_order_acquire) == epoch)
        return NULL;
    /* The program may not run on all these devices, so only `execute` reports errors. */
    pallasc_plan *plan;
    int devices[MOST_DEVICES];
    int count = devices_in_use(devices);
    for (int n = 0; n < count; n++)
        choose(self, devices[n], &plan);
    atomic_store_explicit(&self->prepared, epoch, memory_order_release);
    return NULL;
}

PALLASC_API ffi_error *pallasc_xla_cuda_execute(ffi_call *call)
{
    ffi_error *error;
    struct instance *self;
    if (described(call, &error) || (error = state_of(call, &self)))
        return error;
    ffi_ordinal_args device = {FFI_SIZE(ffi_ordinal_args, ordinal), NULL, call->context, 0};
    ffi_stream_args stream = {FFI_SIZE(ffi_stream_args, stream), NULL, call->context, NULL};
    if ((error = call->api->device_ordinal(&device)) || (error = call->api->stream(&stream)))
        return error;
    return error_of(call, launch(call, self, device.ordinal, stream.stream));
}
