/* NVML as far as XLA's CUDA client asks it: the driver's version, and nothing about links. The
 * version is that of STANDIN_NVML_DRIVER. Signatures as in the NVML API reference. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NVML __attribute__((visibility("default"))) int

enum { SUCCESS = 0, NOT_SUPPORTED = 3 };

__attribute__((visibility("default"))) const char *nvmlErrorString(int code)
{
    return code ? "not supported by the stand-in for NVML" : "success";
}

NVML nvmlInit_v2(void) { return SUCCESS; }
NVML nvmlShutdown(void) { return SUCCESS; }

NVML nvmlSystemGetDriverVersion(char *text, unsigned bytes)
{
    const char *version = getenv("STANDIN_NVML_DRIVER");
    snprintf(text, bytes, "%s", version ? version : "580.82.07");
    return SUCCESS;
}

NVML nvmlSystemGetConfComputeState(void *state)
{
    memset(state, 0, 12); /* environment, feature, and developer tools: none */
    return SUCCESS;
}

NVML nvmlDeviceGetHandleByPciBusId_v2(const char *id, void **device)
{
    (void)id;
    *device = (void *)1;
    return SUCCESS;
}

NVML nvmlDeviceGetMigMode(void *device, unsigned *current, unsigned *pending)
{
    (void)device;
    *current = *pending = 0;
    return SUCCESS;
}

NVML nvmlDeviceGetCurrPcieLinkWidth(void *device, unsigned *width)
{
    (void)device;
    *width = 16;
    return SUCCESS;
}

NVML nvmlDeviceGetCurrPcieLinkGeneration(void *device, unsigned *generation)
{
    (void)device;
    *generation = 5;
    return SUCCESS;
}

NVML nvmlDeviceGetFieldValues(void *device, int count, void *values)
{
    (void)device, (void)count, (void)values;
    return NOT_SUPPORTED;
}

NVML nvmlDeviceGetGpuFabricInfoV(void *device, void *info)
{
    (void)device, (void)info;
    return NOT_SUPPORTED;
}
