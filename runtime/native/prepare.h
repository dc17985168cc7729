/* A plan on a device: its functions, its constants, and its encoded tensor maps. */
#ifndef PALLASC_PREPARE_H
#define PALLASC_PREPARE_H

#include "driver.h"
#include "plan.h"

enum { NOT_ENCODED, BEING_ENCODED, ENCODED };

struct device_state {
    unsigned epoch; /* the epoch in which it was created */
    int ordinal;
    cuda_context context;
    cuda_function *functions; /* of each launch */
    cuda_address *constants;  /* of each buffer */

    /* The plan's template with its maps encoded for the addresses below. Only the first launch
     * writes it, and it may be read only if `encoding` is ENCODED. */
    atomic_int encoding;
    unsigned char *encoded;
    cuda_address *map_addresses;
};

/* The CUlaunchConfig of a launch; `attributes` gets at most two. */
void set_config(struct cuda_launch_config *config, struct cuda_launch_attribute attributes[2],
                const struct flat_launch *launch, cuda_stream stream);

#endif
