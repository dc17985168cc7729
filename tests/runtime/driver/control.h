/* How tests steer the stand-in: exported functions, called from tests/runtime/standin.py. */
#ifndef STANDIN_CONTROL_H
#define STANDIN_CONTROL_H

#include "abi.h"

#define CONTROL __attribute__((visibility("default")))

/* Of one device; tests/runtime/standin_records.py has the same fields in the same order. */
struct device {
    char name[64];
    int major, minor;
    int sms;
    int smem_optin_bytes, smem_sm_bytes;
    int max_cluster;
    int clock_khz, memory_clock_khz, bus_bits, l2_bytes;
    int reserved;
    uint64_t memory_bytes;
    uint64_t used_bytes; /* kept by the stand-in, like the next */
    uint64_t clock_ns;
};

struct options {
    int driver_version;   /* 1000 * major + 10 * minor */
    int init_code;        /* what cuInit answers */
    int log;              /* keep calls and launches */
    int raw_speed;        /* cuLaunchKernelEx and cuGraphLaunch return at once, without any check */
    int check_pointers;   /* 8-byte parameters and tensor maps must lie in live memory */
    int eager_loading;    /* a cubin for no device is refused by cuLibraryLoadData */
    int kernel_ns;        /* events tell this time for each launch, 0: real time */
    int strict_context;   /* a launch needs a current context also where the stream has one */
    int asynchronous;     /* no event is over before the host has waited for it, or behind it */
    int reuse_streams;    /* a new stream gets the handle of one that was destroyed */
};

/* One launch as the driver got it. `bytes` holds the parameters one behind the other. */
struct launch {
    uint64_t sequence, thread, context, stream;
    const char *kernel;
    const uint32_t *offsets, *sizes;
    const unsigned char *bytes;
    const CUlaunchAttribute *attributes;
    int device, code;
    uint32_t grid[3], block[3], cluster[3];
    uint32_t smem_bytes;
    uint32_t parameter_count, attribute_count;
    uint32_t byte_count;
    uint32_t replayed; /* 1: by cuGraphLaunch */
    const void *library; /* whose kernel it is */
};

struct call {
    uint64_t sequence, thread, stream;
    int function, code, device, value_count;
    uint64_t values[6];
};

typedef int (*kernel_callback)(const struct launch *launch);

CONTROL void standin_reset(void);
CONTROL void standin_set_devices(const struct device *list, int count);
CONTROL int standin_get_device(int number, struct device *device);
CONTROL struct options *standin_options(void);
CONTROL int standin_fault(const char *function, int nth, int code, int sticky);
CONTROL void standin_clear_faults(void);
CONTROL int standin_hide(const char *symbol);
CONTROL uint64_t standin_count(const char *function);
CONTROL int standin_expect(const unsigned char *bytes, uint32_t count, const uint32_t shape[11],
                           int device);
CONTROL uint64_t standin_seen(uint64_t first);
CONTROL uint64_t standin_unexpected(void);
CONTROL void standin_callback(kernel_callback callback);
CONTROL int standin_break_context(int device, int code, int sticky);
CONTROL int standin_adopt(uint64_t address, uint64_t bytes, int device);
CONTROL int standin_forget(uint64_t address);
CONTROL int standin_allocation(uint64_t address, uint64_t *start, uint64_t *bytes, int *device);
CONTROL uint64_t standin_live(int device, uint64_t *bytes);
CONTROL uint64_t standin_call_count(void);
CONTROL int standin_call(uint64_t index, struct call *call);
CONTROL uint64_t standin_launch_count(void);
CONTROL int standin_launch(uint64_t index, struct launch *launch);
CONTROL void standin_clear_log(void);
CONTROL const unsigned char *standin_image(const void *library, uint64_t *bytes);
CONTROL const char *standin_function_name(int function);

#endif
