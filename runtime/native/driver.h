/* The CUDA driver, opened on first use; its GPUs and their contexts. */
#ifndef PALLASC_DRIVER_H
#define PALLASC_DRIVER_H

#include "cuda_abi.h"
#include "errors.h"

/* The driver's functions; those newer than the driver are NULL. Written once, under the lock. */
struct driver {
    int version; /* 13020 for 13.2 */
#define FUNCTION(name, since, arguments) int (*name) arguments;
#include "driver_functions.h"
#undef FUNCTION
};

struct device {
    int ordinal;
    int major, minor, sm_count, smem_optin_bytes;
    cuda_context context; /* its primary one, retained */
    cuda_stream stream;   /* our own, for work that is waited for; NULL until created */
    char label[320];      /* "GPU 0 (NVIDIA H100, sm_90)" */
};

extern struct driver driver;

/* Held while anything is created that exists once per process; not held by launches. */
void lock_process(void);
void unlock_process(void);

/* Incremented whenever everything loaded is lost: in a forked child, or by pallasc_forget. */
unsigned current_epoch(void);

/* Call these with the lock held. */
int open_driver(void);
int get_device(int ordinal, struct device **device);
int own_stream(struct device *device);

/* Opens the driver and finds a device; call it without the lock. */
int use_device(int ordinal, struct device **device);

/* The version as text: "13.2". */
const char *version_text(char text[16], int version);

/* Call a driver function; `what` is the start of the error message. */
#define CALL(what, name, ...) answer(driver.name(__VA_ARGS__), #name, what)
int answer(int result, const char *function, const char *what);

/* Make a device's context current, if it is not, and keep captures valid; undo both. */
struct entered {
    int has_pushed, has_exchanged, mode;
};
int enter_context(struct entered *entered, cuda_context context, int ordinal);
int leave_captures_alone(struct entered *entered);
int enter_quietly(struct entered *entered, const struct device *device); /* both */
void leave(struct entered *entered);

#endif
