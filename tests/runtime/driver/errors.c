/* Names and texts of results, as the driver gives them. */
#include "state.h"

struct result {
    int code;
    const char *name, *text;
};

#define R(code, name, text) {code, "CUDA_" name, text},

static const struct result results[] = {
    R(0, "SUCCESS", "no error")
    R(1, "ERROR_INVALID_VALUE", "invalid argument")
    R(2, "ERROR_OUT_OF_MEMORY", "out of memory")
    R(3, "ERROR_NOT_INITIALIZED", "initialization error")
    R(4, "ERROR_DEINITIALIZED", "driver shutting down")
    R(34, "ERROR_STUB_LIBRARY", "CUDA driver is a stub library")
    R(46, "ERROR_DEVICE_UNAVAILABLE", "CUDA-capable device(s) is/are busy or unavailable")
    R(100, "ERROR_NO_DEVICE", "no CUDA-capable device is detected")
    R(101, "ERROR_INVALID_DEVICE", "invalid device ordinal")
    R(200, "ERROR_INVALID_IMAGE", "device kernel image is invalid")
    R(201, "ERROR_INVALID_CONTEXT", "invalid device context")
    R(209, "ERROR_NO_BINARY_FOR_GPU", "no kernel image is available for execution on the device")
    R(214, "ERROR_ECC_UNCORRECTABLE", "uncorrectable ECC error encountered")
    R(215, "ERROR_UNSUPPORTED_LIMIT", "limit is not supported on this architecture")
    R(217, "ERROR_PEER_ACCESS_UNSUPPORTED", "peer access is not supported between these two devices")
    R(218, "ERROR_INVALID_PTX", "a PTX JIT compilation failed")
    R(220, "ERROR_NVLINK_UNCORRECTABLE",
      "uncorrectable NVLink error detected during the execution")
    R(221, "ERROR_JIT_COMPILER_NOT_FOUND", "PTX JIT compiler library not found")
    R(222, "ERROR_UNSUPPORTED_PTX_VERSION", "the provided PTX was compiled with an unsupported toolchain.")
    R(226, "ERROR_CONTAINED", "Invalid access of peer GPU memory over nvlink or a hardware error")
    R(300, "ERROR_INVALID_SOURCE", "device kernel image is invalid")
    R(301, "ERROR_FILE_NOT_FOUND", "file not found")
    R(302, "ERROR_SHARED_OBJECT_SYMBOL_NOT_FOUND", "shared object symbol not found")
    R(303, "ERROR_SHARED_OBJECT_INIT_FAILED", "shared object initialization failed")
    R(304, "ERROR_OPERATING_SYSTEM", "OS call failed or operation not supported on this OS")
    R(400, "ERROR_INVALID_HANDLE", "invalid resource handle")
    R(401, "ERROR_ILLEGAL_STATE", "the operation cannot be performed in the present state")
    R(500, "ERROR_NOT_FOUND", "named symbol not found")
    R(600, "ERROR_NOT_READY", "device not ready")
    R(700, "ERROR_ILLEGAL_ADDRESS", "an illegal memory access was encountered")
    R(701, "ERROR_LAUNCH_OUT_OF_RESOURCES", "too many resources requested for launch")
    R(702, "ERROR_LAUNCH_TIMEOUT", "the launch timed out and was terminated")
    R(704, "ERROR_PEER_ACCESS_ALREADY_ENABLED", "peer access is already enabled")
    R(705, "ERROR_PEER_ACCESS_NOT_ENABLED", "peer access has not been enabled")
    R(708, "ERROR_PRIMARY_CONTEXT_ACTIVE", "cannot set while device is active in this process")
    R(709, "ERROR_CONTEXT_IS_DESTROYED", "context is destroyed")
    R(710, "ERROR_ASSERT", "device-side assert triggered")
    R(712, "ERROR_HOST_MEMORY_ALREADY_REGISTERED",
      "part or all of the requested memory range is already mapped")
    R(713, "ERROR_HOST_MEMORY_NOT_REGISTERED", "pointer does not correspond to a registered memory region")
    R(714, "ERROR_HARDWARE_STACK_ERROR", "hardware stack error")
    R(715, "ERROR_ILLEGAL_INSTRUCTION", "an illegal instruction was encountered")
    R(716, "ERROR_MISALIGNED_ADDRESS", "misaligned address")
    R(717, "ERROR_INVALID_ADDRESS_SPACE",
      "operation not supported on global/shared address space")
    R(718, "ERROR_INVALID_PC", "invalid program counter")
    R(719, "ERROR_LAUNCH_FAILED", "unspecified launch failure")
    R(720, "ERROR_COOPERATIVE_LAUNCH_TOO_LARGE", "too many blocks in cooperative launch")
    R(721, "ERROR_TENSOR_MEMORY_LEAK", "tensor memory not completely freed")
    R(800, "ERROR_NOT_PERMITTED", "operation not permitted")
    R(801, "ERROR_NOT_SUPPORTED", "operation not supported")
    R(802, "ERROR_SYSTEM_NOT_READY", "system not yet initialized")
    R(803, "ERROR_SYSTEM_DRIVER_MISMATCH",
      "system has unsupported display driver / cuda driver combination")
    R(804, "ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE", "forward compatibility was attempted on non supported HW")
    R(810, "ERROR_MPS_CLIENT_TERMINATED", "the MPS client has been terminated")
    R(900, "ERROR_STREAM_CAPTURE_UNSUPPORTED", "operation not permitted when stream is capturing")
    R(901, "ERROR_STREAM_CAPTURE_INVALIDATED",
      "operation failed due to a previous error during capture")
    R(902, "ERROR_STREAM_CAPTURE_MERGE", "operation would result in a merge of separate capture sequences")
    R(903, "ERROR_STREAM_CAPTURE_UNMATCHED", "capture was not ended in the same stream as it began")
    R(905, "ERROR_STREAM_CAPTURE_ISOLATION", "dependency created on uncaptured work in another stream")
    R(906, "ERROR_STREAM_CAPTURE_IMPLICIT",
      "operation would make the legacy stream depend on a capturing blocking stream")
    R(907, "ERROR_CAPTURED_EVENT", "operation not permitted on an event last recorded in a capturing stream")
    R(908, "ERROR_STREAM_CAPTURE_WRONG_THREAD",
      "attempt to terminate a thread-local capture sequence from another thread")
    R(911, "ERROR_EXTERNAL_DEVICE", "external device error")
    R(912, "ERROR_INVALID_CLUSTER_SIZE",
      "a kernel launch error has occurred due to cluster misconfiguration")
    R(999, "ERROR_UNKNOWN", "unknown error")
};

static const struct result *find_result(int code)
{
    for (size_t i = 0; i < sizeof results / sizeof *results; i++)
        if (results[i].code == code)
            return &results[i];
    return NULL;
}

API cuGetErrorName(int error, const char **name)
{
    int code = enter(ID_cuGetErrorName);
    const struct result *result = find_result(error);
    if (!code)
        *name = result ? result->name : NULL;
    return leave(ID_cuGetErrorName, code ? code : result ? CUDA_SUCCESS : INVALID_VALUE);
}

API cuGetErrorString(int error, const char **text)
{
    int code = enter(ID_cuGetErrorString);
    const struct result *result = find_result(error);
    if (!code)
        *text = result ? result->text : NULL;
    return leave(ID_cuGetErrorString, code ? code : result ? CUDA_SUCCESS : INVALID_VALUE);
}
