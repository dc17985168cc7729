/* Give XLA's handlers odd calls: handlers COUNT SEED FIRST FILE...
 *
 * Files are as those of main.c. A call site is instantiated with flat plans as they are, cut, changed
 * or named by digests that are found, not found, or found with other bytes; with attributes that are
 * missing, doubled or of another type. What can be instantiated is prepared and executed with buffers
 * of other counts, kinds, dtypes, ranks and sizes, at odd addresses, on devices that are there or not.
 * driver.c watches what is launched.
 *
 * Call sites are numbered from FIRST on, and a finding tells the number: with COUNT 1 and that number
 * as FIRST it happens again. Prints one JSON object. */
#define _GNU_SOURCE
#include "../fake_xla.c"

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "include/pallasc.h"
#include "mutate.h"

enum { MOST_FILES = 4096, MOST_PLANS = 4, MOST_BUFFERS = 96, FORGET_AFTER = 256 };

typedef int find_function(const char *kernel, const char *variant, const char *sha256,
                          const void **data, size_t *size);
void pallasc_xla_find_with(find_function *find);
ffi_handler pallasc_xla_cuda_instantiate, pallasc_xla_cuda_prepare, pallasc_xla_cuda_execute;
void __sanitizer_set_death_callback(void (*callback)(void));

struct file {
    unsigned char *data;
    size_t size;
    char name[65];
};

static struct file plans[MOST_FILES], blobs[MOST_FILES];
static size_t plan_count, blob_count;
static uint64_t state, number;
static uint64_t instantiated, refused, executed, not_executed, described;
static int finds; /* 0: nothing, 1: what is asked for, 2: other bytes */

static uint64_t any(void)
{
    uint64_t z = state += 0x9e3779b97f4a7c15;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
    z = (z ^ z >> 27) * 0x94d049bb133111eb;
    return z ^ z >> 31;
}

static size_t below(size_t most)
{
    return most ? (size_t)(any() % most) : 0;
}

static int one_in(size_t count)
{
    return !below(count);
}

static void tell_number(void)
{
    fprintf(stderr, "call site %" PRIu64 "\n", number);
}

static void on_signal(int signal)
{
    if (signal == SIGPROF)
        fputs("WRONG: it took more than a minute\n", stderr);
    tell_number();
    _exit(71);
}

static void read_file(const char *path)
{
    size_t length = strlen(path);
    int is_plan = length > 5 && !strcmp(path + length - 5, ".plan");
    size_t *count = is_plan ? &plan_count : &blob_count;
    struct file *file = *count < MOST_FILES ? &(is_plan ? plans : blobs)[(*count)++] : NULL;
    FILE *stream = file ? fopen(path, "rb") : NULL;
    if (!stream)
        wrong("%s cannot be read", path);
    fseek(stream, 0, SEEK_END);
    file->size = (size_t)ftell(stream);
    rewind(stream);
    file->data = malloc(file->size + 1);
    if (fread(file->data, 1, file->size, stream) != file->size)
        wrong("%s cannot be read", path);
    fclose(stream);
    const char *name = strrchr(path, '/');
    snprintf(file->name, sizeof file->name, "%s", name ? name + 1 : path);
}

static int find(const char *kernel, const char *variant, const char *sha256, const void **data,
                size_t *size)
{
    size_t found = 0;
    if (!kernel || !variant || !finds)
        return PALLASC_ERROR_NOT_FOUND;
    while (found < blob_count && strcmp(blobs[found].name, sha256))
        found++;
    if (finds == 2)
        found = below(blob_count);
    if (found >= blob_count)
        return PALLASC_ERROR_NOT_FOUND;
    *data = blobs[found].data;
    *size = finds == 2 ? below(blobs[found].size + 1) : blobs[found].size;
    return PALLASC_OK;
}

static int find_same(void *context, const char *sha256, const void **data, size_t *size)
{
    (void)context;
    return find("", "", sha256, data, size);
}

/* ---- attributes */

/* Bytes of their own, so that a sanitizer sees what is read beside them; without a NUL. */
static ffi_span *span(const void *data, size_t size)
{
    ffi_span *made = malloc(sizeof *made);
    char *copy = malloc(size ? size : 1);
    if (size)
        memcpy(copy, data, size);
    *made = (ffi_span){copy, size};
    return made;
}

static ffi_span *odd_text(void)
{
    static const char *const texts[] = {"", "0", "00", "000", "001made@h100-sxm", "%s%n%d", "\xff\xfe\n", "kernel"};
    const char *text = texts[below(8)];
    char longer[3000];
    if (!one_in(8))
        return span(text, strlen(text));
    memset(longer, 'x', sizeof longer);
    return span(longer, below(sizeof longer));
}

static void free_span(ffi_span *own)
{
    free((void *)(uintptr_t)own->data);
    free(own);
}

struct attributes {
    ffi_attributes made;
    int types[MOST_PLANS + 4];
    ffi_span *names[MOST_PLANS + 4];
    void *values[MOST_PLANS + 4]; /* spans, but for a dictionary */
};

static void add(struct attributes *to, ffi_span *name, int type, void *value)
{
    int64_t place = to->made.size++;
    to->types[place] = type;
    to->names[place] = name;
    to->values[place] = value;
    to->made.struct_size = one_in(8) ? below(200) : sizeof to->made;
    to->made.types = to->types;
    to->made.names = to->names;
    to->made.values = to->values;
}

static void free_attributes(struct attributes *own)
{
    for (int64_t n = 0; n < own->made.size; n++) {
        free_span(own->names[n]);
        if (own->types[n] != FFI_IS_DICTIONARY)
            free_span(own->values[n]);
    }
}

/* A plan of a call: as it is, changed or something else. */
static ffi_span *plan_like(const ffi_span *sound)
{
    static unsigned char made[MOST_BYTES];
    const struct file *other = &plans[below(plan_count)];
    size_t size = sound->size;
    switch (below(8)) {
    case 0:
        size = mutate(made, (const unsigned char *)sound->data, size, other->data, other->size, any());
        return span(made, size < 64 ? size : 64); /* what is left has no kernels */
    case 1: return span(sound->data, below(size));
    case 2: return odd_text();
    default: return span(sound->data, size);
    }
}

/* ---- buffers */

struct frame {
    size_t count;
    ffi_buffer *buffers[MOST_BUFFERS];
    int types[MOST_BUFFERS];
    void *values[MOST_BUFFERS];
};

static void add_buffer(struct frame *to, int dtype, void *data, size_t rank, const int64_t *dims)
{
    ffi_buffer *made = malloc(sizeof *made);
    int64_t *copy = malloc(rank ? rank * sizeof *copy : 1);
    if (rank)
        memcpy(copy, dims, rank * sizeof *copy);
    *made = (ffi_buffer){sizeof *made, NULL, dtype, data, (int64_t)rank, copy};
    to->buffers[to->count] = made;
    to->types[to->count] = FFI_IS_BUFFER;
    to->values[to->count++] = made;
}

static void drop_buffer(struct frame *from)
{
    ffi_buffer *last = from->buffers[--from->count];
    free(last->dims);
    free(last);
}

static int dtype_number(const char *name)
{
#define NUMBER(number, own, bits) if (!strcmp(name, own)) return number;
    FFI_DTYPES(NUMBER)
#undef NUMBER
    return 0;
}

static int has_negative_size(const struct frame *frame)
{
    for (size_t n = 0; n < frame->count; n++)
        for (int64_t k = 0; k < frame->buffers[n]->rank; k++)
            if (frame->buffers[n]->dims[k] < 0)
                return 1;
    return 0;
}

/* Changes something of a frame that a program of a stranger could say. */
static void spoil(struct frame *frame)
{
    static const int64_t sizes[] = {0, 1, -1, 2, -2, 1ll << 32, INT64_MAX, INT64_MIN, 3};
    if (!frame->count || one_in(6)) {
        int64_t dims[] = {sizes[below(9)], sizes[below(9)]};
        if (frame->count && one_in(2))
            drop_buffer(frame);
        else if (frame->count < MOST_BUFFERS)
            add_buffer(frame, (int)below(40), NULL, below(3), dims);
        return;
    }
    size_t place = below(frame->count);
    ffi_buffer *own = frame->buffers[place];
    switch (below(7)) {
    case 0: own->dtype = (int)any(); break;
    case 1: own->dtype = (int)below(40); break;
    case 2: frame->types[place] = (int)below(4); break;
    case 3: own->rank = own->rank > 0 && one_in(2) ? (int64_t)below((size_t)own->rank) : -(int64_t)below(9); break;
    case 4:
        for (int64_t n = 0; n < own->rank; n++)
            if (one_in(2))
                own->dims[n] = one_in(2) || own->dims[n] == INT64_MIN ? sizes[below(9)] : -own->dims[n];
        break;
    case 5: own->data = (char *)own->data + below(300); break;
    default: own->struct_size = below(100); break;
    }
}

/* ---- one call site */

struct site {
    pallasc_plan *plan; /* the same, opened beside */
    size_t count, workspace_bytes;
    int is_sound;
};

/* Places a buffer behind the others. */
static void *place(size_t bytes, size_t alignment, uint64_t *at)
{
    *at = (*at + alignment - 1) / alignment * alignment;
    void *made = (void *)(uintptr_t)*at;
    *at += bytes + 1;
    return made;
}

/* Fills frames as the kernel takes them; false where it takes too much. */
static int fill_frames(struct site *site, struct frame *arguments, struct frame *results, void **buffers)
{
    pallasc_array array;
    uint64_t at = 1ull << 50, total = site->workspace_bytes;
    for (size_t n = 0; n < site->count; n++) {
        pallasc_buffer(site->plan, n, &array);
        total = array.bytes > (1ull << 60) || total > (1ull << 60) ? 1ull << 61 : total + array.bytes;
    }
    if (site->count >= MOST_BUFFERS || total > 1ull << 60)
        return 0;
    for (int is_result = 0; is_result < 2; is_result++)
        for (size_t n = 0; n < site->count; n++) {
            pallasc_buffer(site->plan, n, &array);
            int dtype = dtype_number(array.dtype);
            if (!is_result)
                buffers[n] = place(array.bytes, array.alignment, &at);
            if (!is_result && array.flags & PALLASC_INPUT)
                add_buffer(arguments, dtype, buffers[n], array.rank, array.shape);
            if (is_result && array.flags & PALLASC_UPDATED)
                add_buffer(results, dtype, buffers[n], array.rank, array.shape);
        }
    for (size_t n = 0; n < site->count; n++) {
        pallasc_buffer(site->plan, n, &array);
        if (!(array.flags & PALLASC_INPUT))
            add_buffer(results, dtype_number(array.dtype), buffers[n], array.rank, array.shape);
    }
    if (site->workspace_bytes) {
        int64_t size = (int64_t)site->workspace_bytes;
        buffers[site->count] = place(site->workspace_bytes, 256, &at);
        add_buffer(results, 6, buffers[site->count], 1, &size);
    }
    return 1;
}

/* Notes which address the handlers should pass for each array, as far as there is one. */
static void note_addresses(const struct site *site, struct frame *frames, void **buffers)
{
    pallasc_array array;
    size_t argument = 0, updated = 0, fresh = 0;
    for (size_t n = 0; n < site->count; n++) {
        pallasc_buffer(site->plan, n, &array);
        fresh += (array.flags & PALLASC_UPDATED) != 0;
    }
    for (size_t n = 0; n < site->count; n++) {
        pallasc_buffer(site->plan, n, &array);
        int is_argument = !(array.flags & (PALLASC_UPDATED | PALLASC_RESULT));
        size_t index = is_argument ? argument : array.flags & PALLASC_UPDATED ? updated++ : fresh++;
        argument += (array.flags & PALLASC_INPUT) != 0;
        if (index < frames[!is_argument].count)
            buffers[n] = frames[!is_argument].buffers[index]->data;
    }
}

static int run_stage(ffi_handler *handler, int stage, struct frame *arguments, struct frame *results)
{
    int code;
    ffi_call call = new_call(stage);
    call.struct_size = one_in(4) ? below(300) : sizeof call;
    call.arguments = (ffi_buffers){sizeof call.arguments, NULL, (int64_t)arguments->count,
                                   arguments->types, arguments->values};
    call.results = (ffi_buffers){sizeof call.results, NULL, (int64_t)results->count, results->types,
                                 results->values};
    ffi_extension odd = {sizeof odd, 2 + (int)below(3), NULL};
    if (one_in(8))
        call.extensions = &odd;
    const char *message = told(handler(&call), &code);
    if (message && (!*message || code < 1 || code > 16))
        wrong("a handler refuses with %d and '%s'", code, message);
    return code;
}

static void run_site(struct site *site, const unsigned char *data)
{
    struct frame frames[2] = {{0}, {0}};
    void *buffers[MOST_BUFFERS + 1] = {NULL};
    int device = device_for(pallasc_arch(site->plan));
    struct watched what = {data, buffers, site->count, NULL, site->workspace_bytes, device, NULL};
    if (fill_frames(site, &frames[0], &frames[1], buffers)) {
        int is_odd = one_in(2), is_elsewhere = one_in(8);
        for (int left = is_odd ? 1 + (int)below(3) : 0; left; left--)
            spoil(&frames[below(2)]);
        context.ordinal = is_elsewhere ? (int)any() >> below(31) : device;
        context.stream = one_in(2) ? NULL : (void *)(uintptr_t)(8 + below(64));
        what.stream = context.stream;
        watch(&what);
        note_addresses(site, frames, buffers);
        if (site->workspace_bytes && frames[1].count)
            what.workspace = frames[1].buffers[frames[1].count - 1]->data;
        if (site->is_sound && pallasc_prepare(site->plan, device))
            site->is_sound = 0; /* it is for a GPU that is not here */
        if (!one_in(4))
            run_stage(pallasc_xla_cuda_prepare, FFI_PREPARE, &frames[0], &frames[1]);
        for (int turn = 0; turn < 2; turn++) {
            watch(&what);
            int code = run_stage(pallasc_xla_cuda_execute, FFI_EXECUTE, &frames[0], &frames[1]);
            if (code && site->is_sound && !is_odd && !is_elsewhere)
                wrong("a sound call is refused: %s", last.message);
            if (!code && (has_negative_size(&frames[0]) || has_negative_size(&frames[1])))
                wrong("an array of a negative size is taken");
            *(code ? &not_executed : &executed) += 1;
        }
    }
    for (int n = 0; n < 2; n++)
        while (frames[n].count)
            drop_buffer(&frames[n]);
}

static void describe(void)
{
    int code;
    ffi_handler *all[] = {pallasc_xla_cuda_instantiate, pallasc_xla_cuda_prepare,
                          pallasc_xla_cuda_execute};
    ffi_metadata metadata = {.struct_size = one_in(2) ? sizeof metadata : below(200)};
    ffi_metadata_extension extension = {{sizeof extension, FFI_METADATA, NULL}, &metadata};
    ffi_call call = new_call((int)below(5));
    ffi_api own = api;
    own.version.major = one_in(2) ? 0 : (int)any();
    own.struct_size = one_in(2) ? sizeof own : below(sizeof own);
    call.api = &own;
    call.extensions = &extension.base;
    told(all[below(3)](&call), &code);
    described += !code;
}

static void try_site(void)
{
    static unsigned char made[MOST_BYTES];
    static const char *const names[] = {"kernel", "origin", "plans", "other"};
    const struct file *base = &plans[below(plan_count)], *other = &plans[below(plan_count)];
    struct attributes dictionary = {0}, attributes = {0};
    struct site site = {0};
    size_t size = base->size;
    int code, is_changed = one_in(3);
    if (one_in(16))
        describe();
    memcpy(made, base->data, size);
    if (is_changed)
        size = mutate(made, base->data, size, other->data, other->size, any());
    finds = one_in(4) ? (int)below(3) : 1;
    unsigned char *copy = malloc(size ? size : 1);
    memcpy(copy, made, size);
    ffi_span sound = {(const char *)copy, size};
    size_t count = one_in(2) ? 1 : below(MOST_PLANS + 1);
    for (size_t n = 0; n < count; n++) {
        char key[16];
        snprintf(key, sizeof key, "%03zumade", n);
        add(&dictionary, one_in(8) ? odd_text() : span(key, strlen(key)),
            one_in(16) ? 3 + (int)below(3) : FFI_IS_STRING, count == 1 ? span(copy, size) : plan_like(&sound));
    }
    for (int n = 0; n < 4; n++)
        for (int times = one_in(16) ? (int)below(2) * 2 : 1; n < 3 && times && attributes.made.size < 6; times--) {
            ffi_span *name = span(names[n], strlen(names[n]));
            if (n == 2 && !one_in(16))
                add(&attributes, name, FFI_IS_DICTIONARY, &dictionary.made);
            else
                add(&attributes, name, one_in(16) ? 1 + 2 * (int)below(3) : FFI_IS_STRING, odd_text());
        }
    site.is_sound = !is_changed;
    ffi_call call = new_call(FFI_INSTANTIATE);
    call.attributes = attributes.made;
    struct watched what = {copy, NULL, 0, NULL, 0, 0, NULL};
    watch(&what);
    if (told(pallasc_xla_cuda_instantiate(&call), &code))
        refused++;
    else
        instantiated++;
    finds = 1;
    if (!code && !context.state)
        wrong("a call site without a state is instantiated");
    if (!code && !pallasc_open(copy, size, find_same, NULL, &site.plan)) {
        site.count = pallasc_buffer_count(site.plan);
        site.workspace_bytes = pallasc_workspace_bytes(site.plan);
        run_site(&site, copy);
    }
    if (one_in(64))
        context.type = 99; /* a state of somebody else */
    struct frame none = {0};
    if (one_in(16))
        run_stage(pallasc_xla_cuda_prepare, FFI_PREPARE, &none, &none);
    pallasc_close(site.plan);
    if (fake_end())
        wrong("%d errors are left", errors);
    free_attributes(&attributes);
    free_attributes(&dictionary);
    free(copy);
    if (number % FORGET_AFTER == 0) {
        pallasc_forget();
        forget_memory();
    }
}

int main(int argument_count, char **arguments)
{
    static const struct itimerval minute = {{0, 0}, {60, 0}};
    if (argument_count < 5)
        wrong("usage: handlers COUNT SEED FIRST FILE...");
    uint64_t count = strtoull(arguments[1], NULL, 10), seed = strtoull(arguments[2], NULL, 10);
    uint64_t first = strtoull(arguments[3], NULL, 10);
    for (int i = 4; i < argument_count; i++)
        read_file(arguments[i]);
    if (!plan_count || !blob_count)
        wrong("there are no plans or no cubins among the files");
    __sanitizer_set_death_callback(tell_number);
    signal(SIGPROF, on_signal);
    signal(SIGABRT, on_signal);
    pallasc_xla_find_with(find);
    int version[2], traits, code;
    if (fake_describe(pallasc_xla_cuda_instantiate, 0, version, &traits, &code))
        wrong("a handler cannot be described");
    for (number = first; number < first + count; number++) {
        state = (seed * 0x9e3779b97f4a7c15 + number) * 0xd1342543de82ef95;
        setitimer(ITIMER_PROF, &minute, NULL);
        try_site();
    }
    printf("{\"sites\": %" PRIu64 ", \"instantiated\": %" PRIu64 ", \"refused\": %" PRIu64
           ", \"executed\": %" PRIu64 ", \"not_executed\": %" PRIu64 ", \"described\": %" PRIu64 "}\n",
           count, instantiated, refused, executed, not_executed, described);
    free(last.message);
    for (size_t i = 0; i < plan_count; i++)
        free(plans[i].data);
    for (size_t i = 0; i < blob_count; i++)
        free(blobs[i].data);
    return 0;
}
