/* Launching on arrays of the host: they are copied to a GPU and back, and waited for. */
#ifndef PALLASC_HOST_H
#define PALLASC_HOST_H

#include "include/pallasc.h"

/* Lists the GPUs whose primary context something in the process has made active, `most` at most;
 * returns how many. None where there is no driver. */
int host_devices_in_use(int *ordinals, int most);

/* The device of the thread's current context; 0 where it has none. */
int host_current_device(void);

/* Launches a prepared plan on copies of these arrays of the host, in the order of pallasc_buffer. */
int host_launch(pallasc_plan *plan, int device, void *const *buffers);

#endif
