/* Launches a plan again and again, and counts what the library allocates and locks meanwhile:
 * quiet_launches PLAN. It is linked with -Wl,--wrap for each function below, so that only calls from
 * the library and from here are seen, and none of the driver. Prints the counts before the first
 * launch, which are not 0, and those of the launches. */
#include <pallasc.h>

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>

enum { LAUNCHES = 100, MOST_BUFFERS = 16, MEGABYTE = 1 << 20 };

static unsigned allocated, locked;

void *__real_malloc(size_t size);
void *__real_calloc(size_t count, size_t size);
void *__real_realloc(void *old, size_t size);
void *__real_aligned_alloc(size_t alignment, size_t size);
int __real_pthread_mutex_lock(pthread_mutex_t *mutex);

void *__wrap_malloc(size_t size)
{
    allocated++;
    return __real_malloc(size);
}

void *__wrap_calloc(size_t count, size_t size)
{
    allocated++;
    return __real_calloc(count, size);
}

void *__wrap_realloc(void *old, size_t size)
{
    allocated++;
    return __real_realloc(old, size);
}

void *__wrap_aligned_alloc(size_t alignment, size_t size)
{
    allocated++;
    return __real_aligned_alloc(alignment, size);
}

int __wrap_pthread_mutex_lock(pthread_mutex_t *mutex)
{
    locked++;
    return __real_pthread_mutex_lock(mutex);
}

static int failed(int status)
{
    if (status)
        fprintf(stderr, "%s\n", pallasc_last_error());
    return status;
}

int main(int count, char **arguments)
{
    static unsigned char data[MEGABYTE];
    FILE *file = count == 2 ? fopen(arguments[1], "rb") : NULL;
    size_t size = file ? fread(data, 1, sizeof data, file) : 0;
    pallasc_plan *plan = NULL;
    if (failed(pallasc_open(data, size, NULL, NULL, &plan)) || failed(pallasc_prepare(plan, 0)) ||
        pallasc_buffer_count(plan) > MOST_BUFFERS)
        return 1;
    printf("%u %u\n", allocated, locked);
    allocated = locked = 0;
    for (int launch = 0; launch < LAUNCHES; launch++) {
        char *address = (char *)(uintptr_t)0x700000000000 + 4096 * (launch % 3);
        void *buffers[MOST_BUFFERS];
        for (size_t n = 0; n < pallasc_buffer_count(plan); n++)
            buffers[n] = address += MEGABYTE;
        if (failed(pallasc_launch(plan, 0, buffers, pallasc_buffer_count(plan), address + MEGABYTE,
                                  NULL)))
            return 1;
    }
    printf("%u %u\n", allocated, locked);
    return 0;
}
