/* The CUDA driver, opened on first use; its GPUs and their contexts. */
#ifndef PALLASC_DRIVER_H
#define PALLASC_DRIVER_H

#include "cuda_abi.h"
#include "errors.h"

/* What the driver offers; a function that it has not is NULL. Written once, under the lock. */
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
    cuda_stream stream;   /* of our own, for work that is waited for; NULL: not made yet */
    char label[320];      /* "GPU 0 (NVIDIA H100, sm_90)" */
};

extern struct driver driver;

/* Taken while something is made that there is once in a process; not by launches. */
void lock_process(void);
void unlock_process(void);

/* Counts up whenever what was loaded is no longer there: in the child of a fork, or where it shall be
 * forgotten. */
unsigned current_epoch(void);

/* These are called with the lock. */
int open_driver(void);
int get_device(int ordinal, struct device **device);
int own_stream(struct device *device);

/* The version as text: "13.2". */
const char *version_text(char text[16], int version);

/* Call a function of the driver; `what` says first in a message what failed. */
#define CALL(what, name, ...) \
    (driver.name ? answer(driver.name(__VA_ARGS__), #name, what) : no_function(#name, what))
int answer(int result, const char *function, const char *what);
int no_function(const char *function, const char *what);

/* Make a device's context current, where it is not, and leave captures alone; undo both. */
struct entered {
    int has_pushed, has_exchanged, mode;
};
int enter_device(struct entered *entered, const struct device *device);
int enter_context(struct entered *entered, cuda_context context, int ordinal);
int leave_captures_alone(struct entered *entered);
void leave(struct entered *entered);

#endif
