/* The frame of every call: initialisation, forks, sticky errors, faults, the mutex. */
#include "state.h"

#include <pthread.h>
#include <stdlib.h>
#include <string.h>

static const char *const names[] = {
#define FUNCTION(symbol, name, since, needs) #symbol,
#include "functions.h"
#undef FUNCTION
};

static const unsigned char needs_of[] = {
#define FUNCTION(symbol, name, since, needs) needs,
#include "functions.h"
#undef FUNCTION
};

struct fault {
    int active, nth, code, sticky;
};

struct options options;
static pthread_mutex_t mutex = PTHREAD_MUTEX_INITIALIZER;
static int initialized, forked;
static uint64_t counts[FUNCTION_COUNT];
static struct fault faults[FUNCTION_COUNT];

/* As with the real driver, a process that forks after cuInit leaves its child without one. */
static void in_child(void)
{
    pthread_mutex_init(&mutex, NULL);
    forked = initialized;
}

__attribute__((constructor)) static void start(void)
{
    pthread_atfork(NULL, NULL, in_child);
    standin_reset();
    read_environment();
}

void lock_all(void)
{
    pthread_mutex_lock(&mutex);
}

void unlock_all(void)
{
    pthread_mutex_unlock(&mutex);
}

static int injected(enum function function)
{
    struct fault *fault = &faults[function];
    if (!fault->active || (fault->nth && counts[function] != (uint64_t)fault->nth))
        return CUDA_SUCCESS;
    struct context *context = current_context();
    if (fault->sticky && context)
        context->sticky = fault->code;
    return fault->code;
}

static int refused(enum function function)
{
    enum needs needs = needs_of[function];
    struct context *context = current_context();
    if (needs == NOTHING)
        return CUDA_SUCCESS;
    if (forked || !initialized)
        return NOT_INITIALIZED;
    if (needs == INIT)
        return CUDA_SUCCESS;
    if (needs == WAITS) {
        if (!thread_captures())
            return CUDA_SUCCESS;
        invalidate_captures();
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    if (!context)
        return missing_context();
    if (context->sticky)
        return context->sticky;
    if (needs == UNSAFE && thread_captures()) {
        invalidate_captures();
        return STREAM_CAPTURE_UNSUPPORTED;
    }
    return CUDA_SUCCESS;
}

/* Begin a call; what it returns is not 0 where the call must not go on. */
int enter(enum function function)
{
    lock_all();
    counts[function]++;
    int code = refused(function);
    return code ? code : injected(function);
}

int leave_with(enum function function, int code, CUhandle stream, const uint64_t *values, int count)
{
    if (options.log)
        log_call(function, code, stream, values, count);
    unlock_all();
    return code;
}

int leave(enum function function, int code)
{
    return leave_with(function, code, 0, NULL, 0);
}

/* Note that the device failed: the next call that waits for it says so, and all after that. */
void fail_context(struct context *context, int code, int sticky)
{
    if (sticky)
        context->sticky = code;
    else if (!context->pending)
        context->pending = code;
}

/* What a call returns that waits for the device. */
int surface(struct context *context)
{
    if (!context->sticky)
        context->sticky = context->pending;
    return context->sticky;
}

const char *function_name(int function)
{
    return function >= 0 && function < FUNCTION_COUNT ? names[function] : "";
}

int function_number(const char *name)
{
    for (int i = 0; i < FUNCTION_COUNT; i++)
        if (!strcmp(names[i], name))
            return i;
    return -1;
}

API cuInit(unsigned flags)
{
    int code = enter(ID_cuInit);
    if (!code && flags)
        code = INVALID_VALUE;
    if (!code && forked)
        code = NOT_INITIALIZED;
    if (!code)
        code = options.init_code ? options.init_code : device_count ? CUDA_SUCCESS : NO_DEVICE;
    if (!code)
        initialized = 1;
    return leave(ID_cuInit, code);
}

API cuDriverGetVersion(int *version)
{
    int code = enter(ID_cuDriverGetVersion);
    if (!code && !version)
        code = INVALID_VALUE;
    if (!code)
        *version = options.driver_version;
    return leave(ID_cuDriverGetVersion, code);
}

static void default_options(void)
{
    memset(&options, 0, sizeof options);
    options.driver_version = 13000;
    options.log = options.check_pointers = 1;
}

void standin_reset(void)
{
    lock_all();
    clear_log();
    reset_libraries();
    reset_memory();
    unhide_symbols();
    reset_contexts();
    drop_all_handles();
    forget_expectations();
    memset(counts, 0, sizeof counts);
    memset(faults, 0, sizeof faults);
    initialized = 0;
    default_options();
    default_devices();
    unlock_all();
    standin_callback(NULL);
}

struct options *standin_options(void)
{
    return &options;
}

/* Let the `nth` call from now on (0: every one) of a function answer `code`. */
int standin_fault(const char *function, int nth, int code, int sticky)
{
    int number = function_number(function);
    if (number < 0)
        return NOT_FOUND;
    lock_all();
    faults[number] = (struct fault){1, nth ? (int)counts[number] + nth : 0, code, sticky};
    unlock_all();
    return CUDA_SUCCESS;
}

void standin_clear_faults(void)
{
    lock_all();
    memset(faults, 0, sizeof faults);
    unlock_all();
}

uint64_t standin_count(const char *function)
{
    int number = function_number(function);
    return number < 0 ? 0 : counts[number];
}

const char *standin_function_name(int function)
{
    return function_name(function);
}
