/* What XLA does with a handler, without XLA: one call site, whose stages Python runs one by one. */
#include "xla_ffi.h"

#include <stdlib.h>
#include <string.h>

#define SHOWN __attribute__((visibility("default")))

enum { MOST = 512 };

struct ffi_error {
    int code;
    char *message;
};

struct ffi_context {
    int ordinal;
    void *stream, *state;
    int64_t type;
    int has_no_stream;
};

struct fake_buffer {
    int dtype;
    void *data;
    int64_t rank, dims[8];
};

static struct ffi_context context;
static const ffi_type_info *type_info;
static int types, errors;
static struct ffi_error last;

static ffi_error *create_error(ffi_error_args *args)
{
    ffi_error *error = malloc(sizeof *error);
    error->code = args->code;
    error->message = strdup(args->message);
    errors++;
    return error;
}

static void free_error(ffi_error *error)
{
    free(error->message);
    free(error);
    errors--;
}

static ffi_error *stream(ffi_stream_args *args)
{
    args->stream = args->context->stream;
    return NULL;
}

static ffi_error *device_ordinal(ffi_ordinal_args *args)
{
    args->ordinal = args->context->ordinal;
    return NULL;
}

static ffi_error *register_type(ffi_type_args *args)
{
    args->id->number = ++types;
    type_info = args->info;
    return NULL;
}

static ffi_error *set_state(ffi_state_args *args)
{
    args->context->state = args->state;
    args->context->type = args->id->number;
    return NULL;
}

static ffi_error *get_state(ffi_state_args *args)
{
    if (!args->context->state || args->context->type != args->id->number)
        return create_error(&(ffi_error_args){sizeof(ffi_error_args), NULL, "no state", 13});
    args->state = args->context->state;
    return NULL;
}

static ffi_api api = {
    .struct_size = sizeof api,
    .version = {sizeof(ffi_version), NULL, 0, 9},
    .create_error = create_error,
    .stream = stream,
    .register_type = register_type,
    .set_state = set_state,
    .get_state = get_state,
    .device_ordinal = device_ordinal,
};

/* Returns the message of an error, kept until the next; NULL where there is none. */
static const char *told(ffi_error *error, int *code)
{
    *code = error ? error->code : 0;
    if (!error)
        return NULL;
    free(last.message);
    last.message = strdup(error->message);
    free_error(error);
    return last.message;
}

static ffi_call new_call(int stage)
{
    ffi_call call = {.struct_size = sizeof call, .api = &api, .context = &context, .stage = stage};
    return call;
}

SHOWN const char *fake_describe(ffi_handler *handler, int api_major, int *version, int *traits,
                                int *code)
{
    ffi_metadata metadata = {.struct_size = sizeof metadata};
    ffi_metadata_extension extension = {{sizeof extension, FFI_METADATA, NULL}, &metadata};
    ffi_call call = new_call(FFI_EXECUTE);
    call.extensions = &extension.base;
    api.version.major = api_major;
    const char *message = told(handler(&call), code);
    api.version.major = 0;
    version[0] = metadata.version.major;
    version[1] = metadata.version.minor;
    *traits = (int)metadata.traits;
    return message;
}

SHOWN const char *fake_instantiate(ffi_handler *handler, const char *kernel, const char *origin,
                                   int count, const char **keys, const char **data,
                                   const size_t *sizes, int *code)
{
    ffi_span names[MOST], values[MOST], *name[MOST];
    void *value[MOST];
    int kinds[MOST];
    for (int n = 0; n < count; n++) {
        names[n] = (ffi_span){keys[n], strlen(keys[n])};
        values[n] = (ffi_span){data[n], sizes[n]};
        name[n] = &names[n];
        value[n] = &values[n];
        kinds[n] = FFI_IS_STRING;
    }
    ffi_attributes plans = {sizeof plans, NULL, count, kinds, name, value};
    ffi_span own[] = {{"kernel", 6}, {"origin", 6}, {"plans", 5}};
    ffi_span texts[] = {{kernel, strlen(kernel)}, {origin, strlen(origin)}};
    ffi_span *own_names[] = {&own[0], &own[1], &own[2]};
    void *own_values[] = {&texts[0], &texts[1], &plans};
    int own_kinds[] = {FFI_IS_STRING, FFI_IS_STRING, FFI_IS_DICTIONARY};
    ffi_call call = new_call(FFI_INSTANTIATE);
    call.attributes =
        (ffi_attributes){sizeof plans, NULL, count ? 3 : 2, own_kinds, own_names, own_values};
    return told(handler(&call), code);
}

static void fill(ffi_buffers *buffers, int count, struct fake_buffer *from, ffi_buffer *made,
                 int *kinds, void **values)
{
    for (int n = 0; n < count; n++) {
        made[n] = (ffi_buffer){sizeof *made, NULL, from[n].dtype, from[n].data, from[n].rank,
                               from[n].dims};
        kinds[n] = FFI_IS_BUFFER;
        values[n] = &made[n];
    }
    *buffers = (ffi_buffers){sizeof *buffers, NULL, count, kinds, values};
}

SHOWN const char *fake_run(ffi_handler *handler, int stage, int ordinal, void *stream_of_xla,
                           int arguments, struct fake_buffer *argument, int results,
                           struct fake_buffer *result, int *code)
{
    ffi_buffer made[2][MOST];
    int kinds[2][MOST];
    void *values[2][MOST];
    ffi_call call = new_call(stage);
    context.ordinal = ordinal;
    context.stream = stream_of_xla;
    fill(&call.arguments, arguments, argument, made[0], kinds[0], values[0]);
    fill(&call.results, results, result, made[1], kinds[1], values[1]);
    return told(handler(&call), code);
}

/* Lets go of the call site; returns how many errors nobody has destroyed. */
SHOWN int fake_end(void)
{
    if (context.state)
        type_info->destroy(context.state);
    memset(&context, 0, sizeof context);
    return errors;
}
