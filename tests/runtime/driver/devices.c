/* The devices: what the test made of them, and what the driver tells about them. */
#include "state.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct device devices[MAX_DEVICES];
int device_count;

#define GIB (1ull << 30)
#define KIB 1024

/* One chip for each compute capability: SMs, shared memory, clocks and bus as in its data sheet. */
static const struct device chips[] = {
    {"Stand-in A100", 8, 0, 108, 166912, 167936, 1, 1410000, 1215000, 5120, 40960 * KIB, 0, 80 * GIB, 0, 0},
    {"Stand-in A6000", 8, 6, 84, 101376, 102400, 1, 1800000, 8001000, 384, 6144 * KIB, 0, 48 * GIB, 0, 0},
    {"Stand-in L40S", 8, 9, 142, 101376, 102400, 1, 2520000, 9001000, 384, 98304 * KIB, 0, 48 * GIB, 0, 0},
    {"Stand-in H100", 9, 0, 132, 232448, 233472, 16, 1980000, 2619000, 5120, 51200 * KIB, 0, 80 * GIB, 0, 0},
    {"Stand-in B200", 10, 0, 148, 232448, 233472, 16, 1965000, 3996000, 8192, 129024 * KIB, 0, 180 * GIB, 0, 0},
    {"Stand-in B300", 10, 3, 158, 232448, 233472, 16, 1920000, 3996000, 8192, 129024 * KIB, 0, 268 * GIB, 0, 0},
    {"Stand-in Thor", 11, 0, 20, 232448, 233472, 16, 1575000, 4266000, 256, 32768 * KIB, 0, 122 * GIB, 0, 0},
    {"Stand-in RTX PRO 6000", 12, 0, 188, 101376, 102400, 8, 2430000, 14001000, 512, 131072 * KIB, 0, 96 * GIB, 0, 0},
};

/* Take the chip with this compute capability, or the one nearest below under a name of its own. */
static struct device chip(int major, int minor)
{
    struct device found = chips[0];
    for (size_t i = 0; i < sizeof chips / sizeof *chips; i++)
        if (10 * chips[i].major + chips[i].minor <= 10 * major + minor)
            found = chips[i];
    if (found.major != major || found.minor != minor)
        snprintf(found.name, sizeof found.name, "Stand-in %d.%d", major, minor);
    found.major = major;
    found.minor = minor;
    return found;
}

void default_devices(void)
{
    memset(devices, 0, sizeof devices);
    devices[0] = chip(9, 0);
    device_count = 1;
}

/* Read "9.0,10.3": one device for each compute capability, "" for none. */
static void parse_devices(const char *text)
{
    device_count = 0;
    while (*text && device_count < MAX_DEVICES) {
        char *end;
        int major = (int)strtol(text, &end, 10);
        int minor = *end == '.' ? (int)strtol(end + 1, &end, 10) : 0;
        if (end == text)
            break;
        devices[device_count++] = chip(major, minor);
        text = *end == ',' ? end + 1 : end;
    }
}

/* CUDA_VISIBLE_DEVICES="1,0": these and in this order; the first that is not there ends the list. */
static void choose_devices(const char *text)
{
    struct device all[MAX_DEVICES];
    int count = device_count, taken = 0;
    memcpy(all, devices, sizeof all);
    while (*text && taken < MAX_DEVICES) {
        char *end;
        long number = strtol(text, &end, 10);
        if (end == text || number < 0 || number >= count)
            break;
        devices[taken++] = all[number];
        text = *end == ',' ? end + 1 : end;
    }
    device_count = taken;
}

static int environment_number(const char *name, int missing)
{
    const char *text = getenv(name);
    return text && *text ? atoi(text) : missing;
}

/* STANDIN_FAULTS="cuMemAlloc_v2:3:2,cuInit:0:100": function, which call (0: all), code. */
static void parse_faults(const char *text)
{
    char function[96];
    int nth, code, length;
    while (text && sscanf(text, "%95[^:]:%d:%d%n", function, &nth, &code, &length) == 3) {
        if (standin_fault(function, nth, code, 0))
            fprintf(stderr, "stand-in driver: STANDIN_FAULTS names no function %s\n", function);
        text += length;
        text = *text == ',' ? text + 1 : NULL;
    }
}

static void parse_hidden(const char *text)
{
    char symbol[96];
    int length;
    while (text && sscanf(text, "%95[^,]%n", symbol, &length) == 1) {
        standin_hide(symbol);
        text = text[length] == ',' ? text + length + 1 : NULL;
    }
}

/* For processes that only get an environment. */
void read_environment(void)
{
    const char *list = getenv("STANDIN_DEVICES");
    if (list)
        parse_devices(list);
    const char *visible = getenv("CUDA_VISIBLE_DEVICES"), *loading = getenv("CUDA_MODULE_LOADING");
    if (visible)
        choose_devices(visible);
    options.eager_loading = loading && !strcmp(loading, "EAGER");
    options.driver_version = environment_number("STANDIN_DRIVER", options.driver_version);
    symbols_version = environment_number("STANDIN_DRIVER", symbols_version);
    options.init_code = environment_number("STANDIN_INIT", 0);
    options.raw_speed = environment_number("STANDIN_RAW_SPEED", 0);
    options.log = environment_number("STANDIN_LOG", options.log);
    options.check_pointers = environment_number("STANDIN_CHECK_POINTERS", options.check_pointers);
    log_to(getenv("STANDIN_LOG_FILE"));
    parse_faults(getenv("STANDIN_FAULTS"));
    parse_hidden(getenv("STANDIN_HIDE"));
}

void standin_set_devices(const struct device *list, int count)
{
    lock_all();
    device_count = count < MAX_DEVICES ? count : MAX_DEVICES;
    for (int i = 0; i < device_count; i++) {
        struct device known = chip(list[i].major, list[i].minor);
        const struct device *asked = &list[i];
        devices[i] = known;
        if (asked->name[0])
            memcpy(devices[i].name, asked->name, sizeof devices[i].name);
        devices[i].sms = asked->sms ? asked->sms : known.sms;
        devices[i].max_cluster = asked->max_cluster ? asked->max_cluster : known.max_cluster;
        devices[i].memory_bytes = asked->memory_bytes ? asked->memory_bytes : known.memory_bytes;
        if (asked->smem_optin_bytes) {
            devices[i].smem_optin_bytes = asked->smem_optin_bytes;
            devices[i].smem_sm_bytes = asked->smem_optin_bytes + KIB;
        }
    }
    unlock_all();
}

int standin_get_device(int number, struct device *device)
{
    if (number < 0 || number >= device_count)
        return INVALID_DEVICE;
    *device = devices[number];
    return CUDA_SUCCESS;
}

static int known_device(CUdevice device)
{
    return device >= 0 && device < device_count;
}

API cuDeviceGet(CUdevice *device, int ordinal)
{
    int code = enter(ID_cuDeviceGet);
    if (!code)
        code = !device ? INVALID_VALUE : known_device(ordinal) ? CUDA_SUCCESS : INVALID_DEVICE;
    if (!code)
        *device = ordinal;
    return leave(ID_cuDeviceGet, code);
}

API cuDeviceGetCount(int *count)
{
    int code = enter(ID_cuDeviceGetCount);
    if (!code && !count)
        code = INVALID_VALUE;
    if (!code)
        *count = device_count;
    return leave(ID_cuDeviceGetCount, code);
}

API cuDeviceGetName(char *name, int length, CUdevice device)
{
    int code = enter(ID_cuDeviceGetName);
    if (!code)
        code = !name || length <= 0 ? INVALID_VALUE : known_device(device) ? CUDA_SUCCESS : INVALID_DEVICE;
    if (!code)
        snprintf(name, (size_t)length, "%s", devices[device].name);
    return leave(ID_cuDeviceGetName, code);
}

API cuDeviceTotalMem_v2(size_t *bytes, CUdevice device)
{
    int code = enter(ID_cuDeviceTotalMem_v2);
    if (!code)
        code = !bytes ? INVALID_VALUE : known_device(device) ? CUDA_SUCCESS : INVALID_DEVICE;
    if (!code)
        *bytes = devices[device].memory_bytes;
    return leave(ID_cuDeviceTotalMem_v2, code);
}
