#define _POSIX_C_SOURCE 200809L
#include "driver.h"

#include "plan.h"

#include <dlfcn.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>

enum { OLDEST_DRIVER = 12000, NAME_BYTES = 256 };

static const char install[] =
    "Install the NVIDIA driver: 580.65.06 or newer for every kernel, 525.60.13 or newer for those "
    "built with CUDA 12 for GPUs before Blackwell; in a container, start it with --gpus all.";
static const char in_a_fork[] = "Start processes with multiprocessing.get_context(\"spawn\").";
static const char earlier[] =
    "It comes from an earlier asynchronous error: this process cannot use the GPU any more.";
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

/* Codes after which a process cannot use the GPU again. */
static int is_sticky(int result)
{
    static const short sticky[] = {214, 220, 226, 700, 702, 710, 714, 715,
                                   716, 717, 718, 719, 721, 810, 911};
    for (size_t i = 0; i < sizeof sticky / sizeof *sticky; i++)
        if (sticky[i] == result)
            return 1;
    return 0;
}

/* Remedies of results; reasons and remedies of results of cuInit. As in runtime/device/devices.py. */
static const struct {
    short result;
    const char *hint, *start_reason, *start_hint;
} known_results[] = {
    {1, "An argument is out of the driver's range.", NULL, NULL},
    {2, "Free GPU memory, or use smaller arrays.", NULL, NULL},
    {3, NULL, "it is shutting down, or this process was forked after it was opened", in_a_fork},
    {100, NULL, "it finds no GPU", "Run nvidia-smi; in a container, start it with --gpus all."},
    {101, NULL, "CUDA_VISIBLE_DEVICES names a GPU that does not exist",
     "Set CUDA_VISIBLE_DEVICES to numbers that nvidia-smi lists, or unset it."},
    {201, "Make a device current in this thread, or pass a stream of a device.", NULL, NULL},
    {209, "The cubin is for another GPU: compile for this one.", NULL, NULL},
    {222, "The file was made by a newer toolkit: install a newer driver.", NULL, NULL},
    {400, "The stream does not exist, or belongs to another device.", NULL, NULL},
    {701, "The kernel takes more registers or threads than a block may have here.", NULL, NULL},
    {708, "Set its flags before anything uses the GPU.", NULL, NULL},
    {709, "The context was destroyed or reset: keep it for as long as kernels are called.", NULL,
     NULL},
    {802, NULL, "the GPUs are not ready yet", "Start nvidia-fabricmanager, or wait for it."},
    {803, NULL, "its library does not match the kernel module that is loaded",
     "Restart the machine, or load the kernel module of the installed driver."},
    {804, NULL, "a library for forward compatibility does not support this GPU",
     "Remove the package cuda-compat, or install a newer driver."},
    {900, "This cannot be done while a stream is captured: call preload() before.", NULL, NULL},
    {906, "This cannot be done while a stream is captured: call preload() before.", NULL, NULL},
    {912, "The cluster does not fit this GPU.", NULL, NULL},
    {999, NULL, "it does not say why", "Run nvidia-smi; restarting the machine often helps."},
    {0, NULL, NULL, NULL},
};

/* The index of a result, or of the last entry. */
static int find_result(int result)
{
    int found = 0;
    while (known_results[found].result && known_results[found].result != result)
        found++;
    return found;
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
    if (!result)
        return PALLASC_OK;
    const char *hint = is_sticky(result) ? earlier : known_results[find_result(result)].hint;
    return refuse(result, function, what, NULL, hint);
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
    if (result)
        return refuse(result, "cuInit", "the NVIDIA driver does not start",
                      known_results[find_result(result)].start_reason,
                      known_results[find_result(result)].start_hint);
    return PALLASC_OK;
}

int open_driver(void)
{
    if (is_forked)
        return fail(PALLASC_ERROR_DEVICE, in_a_fork,
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

int enter_device(struct entered *entered, const struct device *device)
{
    return enter_context(entered, device->context, device->ordinal);
}

int enter_quietly(struct entered *entered, const struct device *device)
{
    int status = enter_device(entered, device);
    return status ? status : leave_captures_alone(entered);
}

int leave_captures_alone(struct entered *entered)
{
    entered->mode = CAPTURE_MODE_RELAXED;
    int status = CALL("captures of streams cannot be left alone", cuThreadExchangeStreamCaptureMode,
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
    snprintf(what, sizeof what, "a stream of %s cannot be made", device->label);
    int status = enter_quietly(&entered, device);
    if (!status)
        status = CALL(what, cuStreamCreate, &device->stream, STREAM_NON_BLOCKING);
    leave(&entered);
    return status;
}
