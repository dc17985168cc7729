/* Give the reader changed plans: fuzz COUNT SEED FINDINGS FILE...
 *
 * Files that end in .plan are plans to change; each other file is a cubin or constant whose name is
 * its digest. What is opened is asked everything, prepared and launched twice on driver.c.
 *
 * A sanitizer's finding, an answer that cannot be, and an input that takes more than a minute of the
 * processor end the process; the input is then FINDINGS/finding.plan. Prints one JSON object. */
#define _GNU_SOURCE
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

#include "include/pallasc.h"
#include "mutate.h"

enum { MOST_FILES = 4096, CODES = 7, KEPT = 256, FORGET_AFTER = 512, SMALL = 1 << 13 };

struct file {
    unsigned char *data;
    size_t size;
    char name[65];
};

static struct file plans[MOST_FILES], blobs[MOST_FILES];
static size_t plan_count, blob_count;
static uint64_t opened[CODES], prepared[CODES], launched[CODES], not_placed, inputs;
static const unsigned char *current;
static size_t current_size;
static const char *findings = ".";
static volatile int64_t seen_numbers;

void __sanitizer_set_death_callback(void (*callback)(void));

static void write_file(const char *folder, const char *name, const void *data, size_t size)
{
    char path[4096];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    FILE *file = fopen(path, "wb");
    if (file) {
        fwrite(data, 1, size, file);
        fclose(file);
    }
}

static void keep_finding(void)
{
    if (current)
        write_file(findings, "finding.plan", current, current_size);
}

static __attribute__((unused)) void too_slow(int signal)
{
    (void)signal;
    static const char text[] = "WRONG: it took more than a minute\n";
    if (write(2, text, sizeof text - 1) < 0 || 1)
        keep_finding();
    _exit(70);
}

static __attribute__((unused)) void on_abort(int signal)
{
    (void)signal;
    keep_finding();
    _exit(71);
}

static void read_file(struct file *file, const char *path)
{
    FILE *stream = fopen(path, "rb");
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

static void add_file(const char *path)
{
    size_t length = strlen(path);
    int is_plan = length > 5 && !strcmp(path + length - 5, ".plan");
    if (is_plan ? plan_count < MOST_FILES : blob_count < MOST_FILES)
        read_file(is_plan ? &plans[plan_count++] : &blobs[blob_count++], path);
}

static int find(void *context, const char *sha256, const void **data, size_t *size)
{
    (void)context;
    for (size_t i = 0; i < blob_count; i++)
        if (!strcmp(blobs[i].name, sha256)) {
            *data = blobs[i].data;
            *size = blobs[i].size;
            return 0;
        }
    return 1;
}

/* ---- one input */

static void check_text(const char *text)
{
    const unsigned char *at = (const unsigned char *)text;
    while (*at) {
        int more = *at < 0x80 ? 0 : *at >> 5 == 6 ? 1 : *at >> 4 == 14 ? 2 : *at >> 3 == 30 ? 3 : -1;
        if (more < 0)
            wrong("'%s' is not UTF-8", text);
        for (at++; more; more--, at++)
            if (*at >> 6 != 2)
                wrong("'%s' is not UTF-8", text);
    }
}

static void count(uint64_t counters[CODES], int status)
{
    if (status < 0 || status >= CODES)
        wrong("a function returned %d", status);
    counters[status]++;
    if (!status)
        return;
    if (!*pallasc_last_error())
        wrong("status %d has no words", status);
    check_text(pallasc_last_error());
}

static void ask_array(int status, const pallasc_array *array)
{
    if (status)
        wrong("an array cannot be described");
    check_text(array->path);
    check_text(array->dtype);
    for (size_t i = 0; i < array->rank; i++)
        seen_numbers ^= array->shape[i] ^ array->strides[i];
    if (!array->alignment || !array->flags)
        wrong("an array of alignment %zu and flags %d", array->alignment, array->flags);
}

static void ask(const pallasc_plan *plan)
{
    size_t buffers = pallasc_buffer_count(plan);
    pallasc_array array;
    for (size_t i = 0; i < buffers; i++)
        ask_array(pallasc_buffer(plan, i, &array), &array);
    if (!pallasc_buffer(plan, buffers, &array) || !pallasc_buffer(plan, SIZE_MAX, &array))
        wrong("an array that is not there is described");
    check_text(pallasc_name(plan));
    check_text(pallasc_arch(plan));
}

/* Places arrays one behind the other; 0 where addresses do not suffice. */
static int place(const pallasc_plan *plan, void **buffers, void **workspace, uint64_t start)
{
    uint64_t at = start, end = 1ull << 63;
    size_t count = pallasc_buffer_count(plan);
    for (size_t i = 0; i <= count; i++) {
        pallasc_array array = {.alignment = 256, .bytes = pallasc_workspace_bytes(plan)};
        if (i < count)
            pallasc_buffer(plan, i, &array);
        at = (at + array.alignment - 1) / array.alignment * array.alignment;
        if (array.bytes > end - at - 4096)
            return 0;
        *(i < count ? &buffers[i] : workspace) = (void *)(uintptr_t)at;
        at += array.bytes + 1;
        if (at >= end - (1ull << 33))
            return 0;
    }
    return 1;
}

static void launch(pallasc_plan *plan, const unsigned char *data)
{
    static void *buffers[FLAT_MOST_ARRAYS];
    static unsigned used;
    int device = device_for(pallasc_arch(plan));
    struct watched what = {data, buffers, pallasc_buffer_count(plan), NULL,
                           pallasc_workspace_bytes(plan), 0, NULL};
    watch(&what);
    int status = pallasc_prepare(plan, device);
    count(prepared, status);
    for (int turn = 0; !status && turn < 3; turn++) {
        if (!place(plan, buffers, &what.workspace, turn == 1 ? 1ull << 52 : 1ull << 50)) {
            not_placed++;
            break;
        }
        watch(&what);
        count(launched, pallasc_launch(plan, device, buffers, what.count, what.workspace, NULL));
    }
    if (++used % FORGET_AFTER == 0) {
        pallasc_forget();
        forget_memory();
    }
}

static int try(const unsigned char *data, size_t size)
{
    pallasc_plan *plan = NULL;
    current = data;
    current_size = size;
    int status = pallasc_open(data, size, find, NULL, &plan);
    count(opened, status);
    if (!status != (plan != NULL))
        wrong("status %d with plan %p", status, (void *)plan);
    if (!status) {
        ask(plan);
        launch(plan, data);
    }
    pallasc_close(plan);
    current = NULL;
    inputs++;
    return status;
}

static int by_size(const void *one, const void *other)
{
    size_t a = ((const struct file *)one)->size, b = ((const struct file *)other)->size;
    return (a > b) - (a < b);
}

static double seconds(clockid_t clock)
{
    struct timespec now;
    clock_gettime(clock, &now);
    return (double)now.tv_sec + 1e-9 * (double)now.tv_nsec;
}

static void watchdog(void)
{
    static const struct itimerval minute = {{0, 0}, {60, 0}};
    setitimer(ITIMER_PROF, &minute, NULL);
}

static void print_counts(const char *name, const uint64_t counters[CODES])
{
    printf(", \"%s\": [", name);
    for (int i = 0; i < CODES; i++)
        printf("%s%" PRIu64, i ? ", " : "", counters[i]);
    printf("]");
}

int main(int argument_count, char **arguments)
{
    static unsigned char made[MOST_BYTES];
    static struct file kept[KEPT];
    if (argument_count < 5)
        wrong("usage: fuzz COUNT SEED FINDINGS FILE...");
    uint64_t wanted = strtoull(arguments[1], NULL, 10), seed = strtoull(arguments[2], NULL, 10);
    findings = arguments[3];
    for (int i = 4; i < argument_count; i++)
        add_file(arguments[i]);
    if (!plan_count)
        wrong("there is no plan among the files");
    __sanitizer_set_death_callback(keep_finding);
    signal(SIGPROF, too_slow);
    signal(SIGABRT, on_abort);
    double slowest = 0, began = seconds(CLOCK_MONOTONIC), before = seconds(CLOCK_PROCESS_CPUTIME_ID);
    for (size_t i = 0; i < plan_count; i++)
        if (try(plans[i].data, plans[i].size))
            wrong("%s does not open: %s", plans[i].name, pallasc_last_error());
    uint64_t sound = inputs;
    before = seconds(CLOCK_PROCESS_CPUTIME_ID);
    /* Small ones, which are those without cubins, are changed more often: they take less time. */
    size_t small_count = 1;
    qsort(plans, plan_count, sizeof *plans, by_size);
    while (small_count < plan_count && plans[small_count].size <= SMALL)
        small_count++;
    for (uint64_t i = 0; i < wanted; i++) {
        uint64_t random = (seed * 0x9e3779b97f4a7c15 + i) * 0xd1342543de82ef95 + 1;
        random ^= random >> 31;
        const struct file *parent = &plans[random % (random >> 50 & 15 ? small_count : plan_count)];
        const struct file *old = &kept[random / 7 % KEPT], *other = &plans[random / 3 % plan_count];
        if (old->size && random >> 40 & 1)
            parent = old;
        size_t size = mutate(made, parent->data, parent->size, other->data, other->size, random);
        unsigned char *copy = malloc(size ? size : 1); /* of its own, with what lies around it */
        memcpy(copy, made, size);
        watchdog();
        int status = try(copy, size);
        double now = seconds(CLOCK_PROCESS_CPUTIME_ID);
        slowest = now - before > slowest ? now - before : slowest;
        before = now;
        if (status || (size == parent->size && !memcmp(copy, parent->data, size))) {
            free(copy);
            continue;
        }
        struct file *place = &kept[random / 11 % KEPT]; /* it is changed further, for a while */
        free(place->data);
        place->data = random >> 33 & 3 ? copy : NULL;
        place->size = place->data ? size : 0;
        if (!place->data)
            free(copy);
    }
    struct rusage usage;
    getrusage(RUSAGE_SELF, &usage);
    printf("{\"inputs\": %" PRIu64 ", \"sound\": %" PRIu64 ", \"maps\": %zu, \"not_placed\": %" PRIu64,
           inputs - sound, sound, watched_maps(), not_placed);
    print_counts("opened", opened);
    print_counts("prepared", prepared);
    print_counts("launched", launched);
    printf(", \"slowest_s\": %.6f, \"seconds\": %.1f, \"peak_bytes\": %ld}\n", slowest,
           seconds(CLOCK_MONOTONIC) - began, usage.ru_maxrss * 1024L);
    for (size_t i = 0; i < KEPT; i++)
        free(kept[i].data);
    for (size_t i = 0; i < plan_count; i++)
        free(plans[i].data);
    for (size_t i = 0; i < blob_count; i++)
        free(blobs[i].data);
    return 0;
}
