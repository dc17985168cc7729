/* A driver without a GPU that does nothing but watch: it reads all that it is passed, so that a
 * sanitizer sees what lies outside, and ends the process where an address on the device lies outside
 * of what a launch may use, or a parameter is not what the plan says. */
#undef dlopen
#undef dlsym
#include <dlfcn.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "plan.h"
#include "mutate.h"

enum { DEVICES = 8, MOST_ALLOCATIONS = 1 << 14, LARGE = 4096 };

static const int sm[DEVICES] = {90, 80, 86, 89, 100, 103, 120, 121};
static struct watched now;
static size_t launches, maps;
static struct range {
    uint64_t start, size;
} allocated[MOST_ALLOCATIONS];
static size_t allocations;
static uint64_t next_address = 1ull << 40;
static volatile unsigned char seen;
static char streams; /* what its address is, the library's own stream is */

void *__asan_region_is_poisoned(void *start, size_t size);

void wrong(const char *format, ...)
{
    va_list values;
    va_start(values, format);
    fputs("WRONG: ", stderr);
    vfprintf(stderr, format, values);
    fputs("\n", stderr);
    va_end(values);
    abort();
}

void watch(const struct watched *what)
{
    now = *what;
    launches = 0;
}

size_t watched_launches(void)
{
    return launches;
}

size_t watched_maps(void)
{
    return maps;
}

void forget_memory(void)
{
    allocations = 0;
}

/* ---- the plan that is launched; it was opened, so its numbers can be believed */

static const void *table(int number)
{
    return now.plan + ((const struct flat_header *)now.plan)->tables[number].offset;
}

static uint32_t count_of(int number)
{
    return ((const struct flat_header *)now.plan)->tables[number].count;
}

/* Where a buffer lies, by the rules of flat_plan.h; the start of a constant only the driver knows. */
static struct range range_of(uint32_t number)
{
    const struct flat_buffer *buffers = table(FLAT_BUFFERS);
    const struct flat_array *arrays = table(FLAT_ARRAYS);
    struct range range = {0, buffers[number].size};
    for (uint32_t i = 0; i < count_of(FLAT_ARRAYS); i++)
        if (arrays[i].buffer == number)
            range.start = (uint64_t)(uintptr_t)now.buffers[i];
    if (buffers[number].role == FLAT_TEMPORARY) {
        range.start = (uint64_t)(uintptr_t)now.workspace;
        for (uint32_t i = 0; i < number; i++)
            if (buffers[i].role == FLAT_TEMPORARY)
                range.start += (buffers[i].size + 255) / 256 * 256;
    }
    return range;
}

static int is_in(uint64_t address, uint64_t size, struct range range)
{
    return address >= range.start && address - range.start <= range.size &&
           size <= range.size - (address - range.start);
}

static int is_allocated(uint64_t address, uint64_t size)
{
    for (size_t i = allocations; i--;)
        if (is_in(address, size, allocated[i]))
            return 1;
    return 0;
}

static void check_place(const char *what, uint32_t buffer, uint64_t offset, uint64_t address)
{
    const struct flat_buffer *buffers = table(FLAT_BUFFERS);
    if (buffers[buffer].role == FLAT_CONSTANT) {
        if (!is_allocated(address, 0))
            wrong("%s: %#llx is not allocated", what, (unsigned long long)address);
    } else if (address != range_of(buffer).start + offset || !is_in(address, 0, range_of(buffer))) {
        wrong("%s: %#llx is not byte %llu of buffer %u", what, (unsigned long long)address,
              (unsigned long long)offset, buffer);
    }
}

static void check_memory(const char *what, uint64_t address, uint64_t size)
{
    struct range workspace = {(uint64_t)(uintptr_t)now.workspace, now.workspace_bytes};
    if (is_allocated(address, size) || is_in(address, size, workspace))
        return;
    const struct flat_array *arrays = table(FLAT_ARRAYS);
    for (uint32_t i = 0; i < count_of(FLAT_ARRAYS); i++)
        if (is_in(address, size, range_of(arrays[i].buffer)))
            return;
    wrong("%s: %llu bytes at %#llx", what, (unsigned long long)size, (unsigned long long)address);
}

int device_for(const char *arch)
{
    for (int device = 0; device < DEVICES; device++)
        if (!strncmp(arch, "sm_", 3) && atoi(arch + 3) == sm[device])
            return device;
    return 0;
}

/* Read bytes as the driver would: the sanitizer is asked for all, the first and the last are read. */
static void touch(const void *data, size_t size)
{
    if (!size)
        return;
    if (__asan_region_is_poisoned((void *)(uintptr_t)data, size))
        wrong("%zu bytes at %p are not all there", size, data);
    seen ^= ((const unsigned char *)data)[0] ^ ((const unsigned char *)data)[size - 1];
}

/* ---- digests: sha256.c is compiled for speed and without sanitizers, so what it reads is asked here */

void plain_sha256(const void *data, size_t size, uint8_t digest[32]);

/* With the instructions for it, where OpenSSL is at hand: most of the time goes into digests. */
static void digest_of(const void *data, size_t size, uint8_t digest[32])
{
    static int is_known, (*begin)(void *), (*add)(void *, const void *, size_t);
    static int (*end)(uint8_t *, void *);
    _Alignas(16) unsigned char context[256]; /* a SHA256_CTX has 112 bytes */
    if (!is_known) {
        is_known = 1;
        void *library = dlopen("libcrypto.so.3", RTLD_NOW);
        *(void **)&begin = library ? dlsym(library, "SHA256_Init") : NULL;
        *(void **)&add = library ? dlsym(library, "SHA256_Update") : NULL;
        *(void **)&end = library ? dlsym(library, "SHA256_Final") : NULL;
    }
    if (!begin || !add || !end)
        plain_sha256(data, size, digest);
    else if (!begin(context) || !add(context, data, size) || !end(digest, context))
        wrong("OpenSSL refuses a digest");
}

/* Cubins are the same again and again: their digests are kept by a sum of their bytes. */
static struct known {
    uint64_t sum;
    size_t size;
    uint8_t digest[32];
} digests[4096];

static struct known *known_digest(const void *data, size_t size)
{
    uint64_t sum = size, word;
    for (size_t i = 0; i + 8 <= size; i += 8) {
        memcpy(&word, (const char *)data + i, 8);
        sum = (sum ^ word) * 0x9e3779b97f4a7c15;
        sum ^= sum >> 29;
    }
    for (size_t i = size / 8 * 8; i < size; i++)
        sum = (sum ^ ((const unsigned char *)data)[i]) * 0x9e3779b97f4a7c15;
    struct known *known = &digests[sum >> 52];
    if (known->sum != sum)
        known->size = 0;
    known->sum = sum;
    return known;
}

void sha256(const void *data, size_t size, uint8_t digest[32])
{
    if (size && __asan_region_is_poisoned((void *)(uintptr_t)data, size))
        wrong("a digest of %zu bytes that are not all there", size);
    struct known *known = size < LARGE ? NULL : known_digest(data, size);
    if (!known) {
        digest_of(data, size, digest);
        return;
    }
    if (known->size != size)
        digest_of(data, known->size = size, known->digest);
    memcpy(digest, known->digest, sizeof known->digest);
}


/* ---- functions of the driver */

static int cuDriverGetVersion(int *version) { *version = 13000; return 0; }
static int cuInit(unsigned flags) { return (int)flags; }
static int cuGetErrorName(int result, const char **text) { *text = result ? "CUDA_ERROR" : "CUDA_SUCCESS"; return 0; }
static int cuGetErrorString(int result, const char **text) { *text = result ? "an error" : "no error"; return 0; }
static int cuDeviceGetCount(int *count) { *count = DEVICES; return 0; }
static int cuDeviceGet(int *device, int ordinal) { *device = ordinal; return 0; }
static int cuDeviceGetName(char *name, int length, int device) { snprintf(name, (size_t)length, "GPU %d", device); return 0; }
static int cuDevicePrimaryCtxGetState(int device, unsigned *flags, int *active) { *flags = 0; *active = device == now.device; return 0; }
static int cuDevicePrimaryCtxRetain(cuda_context *context, int device) { *context = (cuda_context)(uintptr_t)(device + 1); return 0; }
static int cuCtxGetCurrent(cuda_context *context) { *context = NULL; return 0; }
static int cuCtxPushCurrent(cuda_context context) { return context == NULL; }
static int cuCtxPopCurrent(cuda_context *context) { *context = NULL; return 0; }
static int cuThreadExchangeStreamCaptureMode(int *mode) { *mode = 0; return 0; }
static int cuStreamCreate(cuda_stream *stream, unsigned flags) { *stream = (cuda_stream)&streams; return flags > 1; }
static int cuEventRecord(void *event, cuda_stream stream) { (void)event; (void)stream; return 0; }
static int cuStreamSynchronize(cuda_stream stream) { return stream == NULL; }
static int cuKernelGetAttribute(int *value, int attribute, cuda_kernel kernel, int device) { *value = attribute * device; return kernel == NULL; }
static int cuKernelSetAttribute(int attribute, int value, cuda_kernel kernel, int device) { return !kernel || !attribute || value < 0 || device < 0; }
static int cuKernelGetFunction(cuda_function *function, cuda_kernel kernel) { *function = (cuda_function)kernel; return 0; }
static int cuFuncLoad(cuda_function function) { return function == NULL; }

static int cuFuncGetAttribute(int *value, int attribute, cuda_function function)
{
    wrong("only drivers older than cuFuncLoad are asked for %d of %p, into %p", attribute,
          (void *)function, (void *)value);
    return 1;
}

static int cuDeviceGetAttribute(int *value, int attribute, int device)
{
    *value = attribute == DEVICE_MAJOR             ? sm[device] / 10
             : attribute == DEVICE_MINOR           ? sm[device] % 10
             : attribute == DEVICE_MULTIPROCESSORS ? 132
                                                   : 232448;
    return 0;
}

/* The driver is not told how long a cubin is: it reads as far as the headers say. */
static int cuLibraryLoadData(cuda_library *library, const void *image, int *options,
                             void **option_values, unsigned option_count, int *library_options,
                             void **library_values, unsigned library_count)
{
    const unsigned char *data = image;
    uint64_t programs, sections;
    uint16_t numbers[5];
    touch(data, 64);
    memcpy(&programs, data + 32, 8);
    memcpy(&sections, data + 40, 8);
    memcpy(numbers, data + 54, sizeof numbers);
    touch(data + programs, (size_t)numbers[0] * numbers[1]);
    for (size_t i = 0; i < numbers[3]; i++) {
        uint32_t kind;
        uint64_t place[2];
        memcpy(&kind, data + sections + i * numbers[2] + 4, 4);
        memcpy(place, data + sections + i * numbers[2] + 24, 16);
        if (kind != 8)
            touch(data + place[0], place[1]);
    }
    *library = (cuda_library)&allocated;
    return options || option_values || option_count || library_options || library_values ||
           library_count;
}

static int cuLibraryGetKernel(cuda_kernel *kernel, cuda_library library, const char *name)
{
    const struct flat_kernel *kernels = table(FLAT_KERNELS);
    const char *strings = table(FLAT_STRINGS);
    for (uint32_t i = 0; i < count_of(FLAT_KERNELS); i++)
        if (!strcmp(strings + kernels[i].name, name)) {
            *kernel = (cuda_kernel)&kernels[i];
            return library == NULL;
        }
    wrong("the plan has no kernel %s", name);
}

static int cuKernelGetParamInfo(cuda_kernel kernel, size_t index, size_t *offset, size_t *size)
{
    const struct flat_kernel *own = (const struct flat_kernel *)kernel;
    const uint32_t *sizes = table(FLAT_SIZES);
    if (index >= own->size_count)
        return CUDA_INVALID_VALUE;
    *offset = 0;
    *size = sizes[own->sizes + index];
    return 0;
}

static int cuOccupancyMaxActiveClusters(int *count, cuda_function function,
                                        const struct cuda_launch_config *config)
{
    touch(config->attributes, config->attribute_count * sizeof *config->attributes);
    *count = 1;
    return function == NULL;
}

static int encode(void *map, void *address, uint32_t rank, const uint64_t *dims,
                  const uint64_t *strides, const uint32_t *element_strides)
{
    if ((uintptr_t)map % 64)
        wrong("a tensor map is encoded at %p", map);
    touch(dims, rank * sizeof *dims);
    touch(strides, (rank - 1) * sizeof *strides);
    touch(element_strides, rank * sizeof *element_strides);
    memset(map, 0xa5, FLAT_MAP_BYTES);
    memcpy(map, &address, sizeof address);
    maps++;
    return 0;
}

static int cuTensorMapEncodeTiled(void *map, int type, uint32_t rank, void *address,
                                  const uint64_t *dims, const uint64_t *strides,
                                  const uint32_t *box, const uint32_t *element_strides,
                                  int interleave, int swizzle, int promotion, int fill)
{
    touch(box, rank * sizeof *box);
    return encode(map, address, rank, dims, strides, element_strides) || type > 9 ||
           interleave > 2 || swizzle > 3 || promotion > 3 || fill > 1;
}

static int cuTensorMapEncodeIm2col(void *map, int type, uint32_t rank, void *address,
                                   const uint64_t *dims, const uint64_t *strides, const int *lower,
                                   const int *upper, uint32_t channels, uint32_t pixels,
                                   const uint32_t *element_strides, int interleave, int swizzle,
                                   int promotion, int fill)
{
    touch(lower, (rank - 2) * sizeof *lower);
    touch(upper, (rank - 2) * sizeof *upper);
    return encode(map, address, rank, dims, strides, element_strides) || type > 9 || !channels ||
           !pixels || interleave > 2 || swizzle > 3 || promotion > 3 || fill > 1;
}

static int cuMemAlloc(cuda_address *address, size_t bytes)
{
    if (allocations == MOST_ALLOCATIONS)
        return CUDA_OUT_OF_MEMORY;
    allocated[allocations++] = (struct range){next_address, bytes};
    *address = next_address;
    next_address += (bytes / 256 + 2) * 256;
    return 0;
}

static int cuMemFree(cuda_address address) { return !address; }

static int cuMemcpyHtoDAsync(cuda_address target, const void *source, size_t bytes, cuda_stream stream)
{
    if (!is_allocated(target, bytes))
        wrong("a constant of %zu bytes does not fit", bytes);
    touch(source, bytes);
    return stream == NULL;
}

static int is_expected(cuda_stream stream)
{
    return stream == (cuda_stream)now.stream;
}

static int cuMemcpyDtoDAsync(cuda_address target, cuda_address source, size_t bytes, cuda_stream stream)
{
    check_memory("a copy", target, bytes);
    check_memory("a copy", source, bytes);
    return !is_expected(stream);
}

static int cuMemsetD8Async(cuda_address target, unsigned char value, size_t count, cuda_stream stream)
{
    check_memory("a fill", target, count);
    return (value & 0) || !is_expected(stream);
}

static int cuMemsetD32Async(cuda_address target, unsigned value, size_t count, cuda_stream stream)
{
    check_memory("a fill", target, 4 * count);
    return (value & 0) || !is_expected(stream);
}

static void check_values(const struct flat_parameter *parameter, const unsigned char *passed)
{
    const struct flat_map *all = table(FLAT_MAPS);
    const unsigned char *values = table(FLAT_VALUES);
    size_t map_bytes = 0, same = 0;
    for (uint32_t i = parameter->maps; i < parameter->maps + parameter->map_count; i++) {
        uint64_t address;
        memcpy(&address, passed + all[i].at, sizeof address);
        check_place("a tensor map", all[i].buffer, all[i].offset, address);
        if (passed[all[i].at + FLAT_MAP_BYTES - 1] != 0xa5)
            wrong("tensor map %u is not there", i);
        map_bytes += FLAT_MAP_BYTES;
    }
    for (uint32_t i = 0; i < parameter->size; i++)
        same += passed[i] == (parameter->kind == FLAT_VALUE ? values[parameter->offset + i] : 0);
    if (same + map_bytes < parameter->size)
        wrong("%u bytes are passed, of which %zu are the plan's", parameter->size, same);
}

static int cuLaunchKernelEx(const struct cuda_launch_config *config, cuda_function function,
                            void **parameters, void **extra)
{
    const struct flat_launch *launch = (const struct flat_launch *)table(FLAT_LAUNCHES) + launches++;
    const struct flat_parameter *own = (const struct flat_parameter *)table(FLAT_PARAMETERS) + launch->parameters;
    touch(config->attributes, config->attribute_count * sizeof *config->attributes);
    if (!is_expected((cuda_stream)config->stream))
        wrong("launch %zu is in another stream", launches - 1);
    if (memcmp(config->grid, launch->grid, sizeof launch->grid) || !function || extra)
        wrong("launch %zu is another one", launches - 1);
    for (uint32_t i = 0; i < launch->parameter_count; i++, own++) {
        touch(parameters[i], own->size);
        if (own->kind != FLAT_POINTER) {
            check_values(own, parameters[i]);
            continue;
        }
        uint64_t address;
        memcpy(&address, parameters[i], sizeof address);
        check_place("a pointer", own->buffer, own->offset, address);
    }
    return 0;
}

static int cuGetProcAddress_v2(const char *name, void **found, int version, uint64_t flags, int *status)
{
    *found = NULL;
    *status = 0;
#define FUNCTION(function, since, arguments)   \
    if (!strcmp(name, #function)) {            \
        int(*own) arguments = function;        \
        memcpy(found, &own, sizeof own);       \
        return version > 13000 || flags != 0;  \
    }
#include "driver_functions.h"
#undef FUNCTION
    return 1;
}

/* driver.c of the library is compiled with these in place of dlopen and dlsym. */
void *watching_dlopen(const char *name, int mode);
void *watching_dlsym(void *library, const char *name);

void *watching_dlopen(const char *name, int mode)
{
    return mode && strcmp(name, "libcuda.so.1") == 0 ? &now : NULL;
}

void *watching_dlsym(void *library, const char *name)
{
    void *found = NULL;
#define ANSWER(function)                                 \
    if (library && !strcmp(name, #function)) {           \
        __typeof__(&function) own = &function;           \
        memcpy(&found, &own, sizeof own);                \
    }
    ANSWER(cuDriverGetVersion)
    ANSWER(cuInit)
    ANSWER(cuGetProcAddress_v2)
    return found;
}
