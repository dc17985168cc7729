/* Launch on host arrays: copy them to a GPU and back, and wait. */
#ifndef PALLASC_HOST_H
#define PALLASC_HOST_H

#include "include/pallasc.h"

/* Lists up to `most` GPUs whose primary context is active in this process; returns their number.
 * 0 if there is no driver. */
int host_devices_in_use(int *ordinals, int most);

/* The device of the thread's current context; 0 if there is none. */
int host_current_device(void);

/* Launches a prepared plan on copies of these host arrays, in the order of pallasc_buffer. */
int host_launch(pallasc_plan *plan, int device, void *const *buffers);

#endif
