#define _POSIX_C_SOURCE 200809L
#include "plan.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { OLDEST_DRIVER = 12000, NAME_BYTES = 256, NOT_INITIALIZED = 3 };

static const char install[] =
    "Install the NVIDIA driver: 580.65.06 or newer for every kernel, 525.60.13 or newer for those "
    "built with CUDA 12 for GPUs before Blackwell; in a container, start it with --gpus all.";
static const char unnamed[] = "an error that it does not name";

struct driver driver;

static pthread_mutex_t process_lock = PTHREAD_MUTEX_INITIALIZER;
static atomic_uint epoch = 1;
static int is_open, is_opening, is_forked, hears_forks;
static struct device devices[MOST_DEVICES];
static int known[MOST_DEVICES];

void lock_process(void)
{
    pthread_mutex_lock(&process_lock);
}

void unlock_process(void)
{
    pthread_mutex_unlock(&process_lock);
}

unsigned current_epoch(void)
{
    return atomic_load_explicit(&epoch, memory_order_relaxed);
}

static void forget_devices(void)
{
    atomic_fetch_add(&epoch, 1);
    memset(known, 0, sizeof known);
}

/* CUDA does not work in the child of a process that has opened the driver, and another thread may
 * have held the lock. */
static void in_child(void)
{
    pthread_mutex_init(&process_lock, NULL);
    forget_devices();
    is_forked = is_forked || is_open || is_opening;
    is_open = is_opening = 0;
}

void pallasc_forget(void)
{
    lock_process();
    forget_devices();
    is_open = 0;
    unlock_process();
}

const char *version_text(char text[16], int version)
{
    snprintf(text, 16, "%d.%d", version / 1000, version % 1000 / 10);
    return text;
}

/* ---- results ---- */

struct words {
    int result;
    const char *reason, *hint;
};

static const int sticky[] = {
#define STICKY(...) __VA_ARGS__
#define START(result, reason, hint)
#define RESULT(result, hint)
#include "driver_results.h"
};

/* Only results of cuInit have reasons. */
static const struct words words[] = {
#define STICKY(...)
#define START(result, reason, hint) {result, reason, hint},
#define RESULT(result, hint) {result, NULL, hint},
#include "driver_results.h"
};

static struct words find_words(int result, int is_start)
{
    for (size_t i = 0; i < sizeof words / sizeof *words; i++)
        if (words[i].result == result && !words[i].reason == !is_start)
            return words[i];
    return (struct words){result, NULL, NULL};
}

static const char *hint_of(int result)
{
    for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++)
        if (sticky[i] == result)
            return "It comes from an earlier asynchronous error: this process cannot use the GPU "
                   "any more.";
    return find_words(result, 0).hint;
}

static const char *text_of(int (*ask)(int, const char **), int result)
{
    const char *text = NULL;
    return !ask(result, &text) && text ? text : unnamed;
}

static int refuse(int result, const char *function, const char *what, const char *reason,
                  const char *hint)
{
    int status = result == CUDA_OUT_OF_MEMORY ? PALLASC_ERROR_OUT_OF_MEMORY : PALLASC_ERROR_DRIVER;
    return fail_with_result(status, result, hint, "%s: %s answers %s (%d), %s%s%s.", what, function,
                            text_of(driver.cuGetErrorName, result), result,
                            text_of(driver.cuGetErrorString, result), reason ? ": " : "",
                            reason ? reason : "");
}

int answer(int result, const char *function, const char *what)
{
    return result ? refuse(result, function, what, NULL, hint_of(result)) : PALLASC_OK;
}

static int no_function(const char *function)
{
    char version[16];
    return fail(PALLASC_ERROR_DEVICE, "Install a newer NVIDIA driver.",
                "kernels cannot be launched: the driver for CUDA %s has no %s.",
                version_text(version, driver.version), function);
}

/* ---- opening ---- */

typedef int (*get_address)(const char *name, void **function, int version, uint64_t flags,
                           int *status);

/* ISO C cannot convert an object pointer to a function pointer; POSIX guarantees the same bytes. */
static void find(void *function, void *library, get_address ask, const char *name, int since)
{
    void *found = NULL;
    int status = 0;
    if (!ask)
        found = dlsym(library, name);
    else if (ask(name, &found, since, 0, &status) || status)
        found = NULL;
    memcpy(function, &found, sizeof found);
}

static int start(void)
{
    void *library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library)
        return fail(PALLASC_ERROR_DEVICE, install,
                    "no NVIDIA driver here: libcuda.so.1 cannot be loaded.");
    int (*get_version)(int *) = NULL, (*init)(unsigned) = NULL;
    get_address ask = NULL;
    char text[16];
    find(&get_version, library, NULL, "cuDriverGetVersion", 0);
    find(&init, library, NULL, "cuInit", 0);
    find(&ask, library, NULL, "cuGetProcAddress_v2", 0);
    memset(&driver, 0, sizeof driver);
    if (!get_version || get_version(&driver.version))
        driver.version = 0;
    if (driver.version < OLDEST_DRIVER || !init || !ask)
        return fail(PALLASC_ERROR_DEVICE, install,
                    "the NVIDIA driver is for CUDA %s, and kernels need 12.0.",
                    version_text(text, driver.version));
    /* Callers check the version before they use a newer function. */
#define FUNCTION(name, since, arguments)                  \
    find(&driver.name, library, ask, #name, since);       \
    if (!driver.name && driver.version >= (since))        \
        return no_function(#name);
#include "driver_functions.h"
#undef FUNCTION
    int result = init(0);
    struct words told = find_words(result, 1);
    return result ? refuse(result, "cuInit", "the NVIDIA driver does not start", told.reason,
                           told.hint)
                  : PALLASC_OK;
}

int open_driver(void)
{
    if (is_forked)
        return fail(PALLASC_ERROR_DEVICE, find_words(NOT_INITIALIZED, 1).hint,
                    "this process was forked from one that uses the GPU; CUDA does not work in it.");
    if (is_open)
        return PALLASC_OK;
    if (!hears_forks)
        hears_forks = !pthread_atfork(NULL, NULL, in_child);
    is_opening = 1;
    int status = start();
    is_open = !status;
    is_opening = 0;
    return status;
}

/* ---- GPUs ---- */

static int figure(int *value, int attribute, int handle, const char *what)
{
    return CALL(what, cuDeviceGetAttribute, value, attribute, handle);
}

static int read_device(struct device *device, const char *what)
{
    int handle, count, status;
    char name[NAME_BYTES] = "";
    status = CALL("the GPUs cannot be counted", cuDeviceGetCount, &count);
    if (!status && (device->ordinal < 0 || device->ordinal >= count))
        status = fail(PALLASC_ERROR_ARGUMENT,
                      "nvidia-smi lists them; CUDA_VISIBLE_DEVICES may hide some.",
                      "there is no GPU %d: the driver counts %d.", device->ordinal, count);
    if (status || (status = CALL(what, cuDeviceGet, &handle, device->ordinal)) ||
        (status = CALL(what, cuDeviceGetName, name, NAME_BYTES, handle)) ||
        (status = figure(&device->major, DEVICE_MAJOR, handle, what)) ||
        (status = figure(&device->minor, DEVICE_MINOR, handle, what)) ||
        (status = figure(&device->sm_count, DEVICE_MULTIPROCESSORS, handle, what)) ||
        (status = figure(&device->smem_optin_bytes, DEVICE_SMEM_OPTIN, handle, what)))
        return status;
    name[NAME_BYTES - 1] = 0;
    snprintf(device->label, sizeof device->label, "GPU %d (%s, sm_%d%d)", device->ordinal, name,
             device->major, device->minor);
    return CALL(what, cuDevicePrimaryCtxRetain, &device->context, handle);
}

int get_device(int ordinal, struct device **device)
{
    if (ordinal >= 0 && ordinal < MOST_DEVICES && known[ordinal]) {
        *device = &devices[ordinal];
        return PALLASC_OK;
    }
    struct device made = {.ordinal = ordinal};
    char what[64];
    snprintf(what, sizeof what, "GPU %d cannot be read", ordinal);
    int status = read_device(&made, what);
    if (!status && ordinal >= MOST_DEVICES)
        status = fail(PALLASC_ERROR_ARGUMENT, NULL, "GPU %d is beyond the %d that are supported.",
                      ordinal, MOST_DEVICES);
    if (status)
        return status;
    devices[ordinal] = made;
    known[ordinal] = 1;
    *device = &devices[ordinal];
    return PALLASC_OK;
}

int use_device(int ordinal, struct device **device)
{
    lock_process();
    int status = open_driver();
    if (!status)
        status = get_device(ordinal, device);
    unlock_process();
    return status;
}

int enter_context(struct entered *entered, cuda_context context, int ordinal)
{
    cuda_context current = NULL;
    *entered = (struct entered){0, 0, 0};
    if (!driver.cuCtxGetCurrent(&current) && current == context)
        return PALLASC_OK;
    char what[64];
    snprintf(what, sizeof what, "GPU %d cannot be made current", ordinal);
    int status = CALL(what, cuCtxPushCurrent, context);
    entered->has_pushed = !status;
    return status;
}

int enter_quietly(struct entered *entered, const struct device *device)
{
    int status = enter_context(entered, device->context, device->ordinal);
    return status ? status : leave_captures_alone(entered);
}

int leave_captures_alone(struct entered *entered)
{
    entered->mode = CAPTURE_MODE_RELAXED;
    int status = CALL("stream captures cannot be protected", cuThreadExchangeStreamCaptureMode,
                      &entered->mode);
    entered->has_exchanged = !status;
    return status;
}

void leave(struct entered *entered)
{
    cuda_context popped;
    if (entered->has_exchanged)
        driver.cuThreadExchangeStreamCaptureMode(&entered->mode);
    if (entered->has_pushed)
        driver.cuCtxPopCurrent(&popped);
}

int own_stream(struct device *device)
{
    if (device->stream)
        return PALLASC_OK;
    char what[400];
    struct entered entered;
    snprintf(what, sizeof what, "a stream of %s cannot be created", device->label);
    int status = enter_quietly(&entered, device);
    if (!status)
        status = CALL(what, cuStreamCreate, &device->stream, STREAM_NON_BLOCKING);
    leave(&entered);
    return status;
}
