/* Which work comes behind which: with `asynchronous`, an event is over when the host has waited for
 * something that comes behind it, and never before. A driver may be that slow. */
#include "state.h"

#include <stdlib.h>

static uint64_t last_event;
static unsigned char *over; /* by number */
static uint64_t over_capacity;

static int contains(const struct past *past, uint64_t event)
{
    for (size_t i = 0; i < past->count; i++)
        if (past->events[i] == event)
            return 1;
    return 0;
}

static void add(struct past *past, uint64_t event)
{
    if (is_over(event) || contains(past, event))
        return;
    if (past->count == past->capacity) {
        past->capacity = past->capacity ? 2 * past->capacity : 16;
        past->events = realloc(past->events, past->capacity * sizeof *past->events);
        if (!past->events)
            abort();
    }
    past->events[past->count++] = event;
}

void come_behind(struct past *past, const struct past *other)
{
    for (size_t i = 0; i < other->count; i++)
        add(past, other->events[i]);
}

/* Number a recorded event; what is put into the stream from now on comes behind it. */
uint64_t note_event(struct past *past)
{
    uint64_t event = ++last_event;
    if (event >= over_capacity) {
        uint64_t capacity = over_capacity ? 2 * over_capacity : 1024;
        over = realloc(over, capacity);
        if (!over)
            abort();
        for (uint64_t i = over_capacity; i < capacity; i++)
            over[i] = 0;
        over_capacity = capacity;
    }
    add(past, event);
    return event;
}

void end_past(const struct past *past)
{
    for (size_t i = 0; i < past->count; i++)
        over[past->events[i]] = 1;
}

void end_everything(void)
{
    for (uint64_t i = 0; i <= last_event && i < over_capacity; i++)
        over[i] = 1;
}

int is_over(uint64_t event)
{
    return !options.asynchronous || (event < over_capacity && over[event]);
}

/* What a stream comes behind. The legacy one and blocking streams wait for each other. */
struct past *past_of(struct stream *stream, struct context *context)
{
    size_t at = 0;
    struct stream *other;
    if (stream) {
        if (!(stream->flags & 1))
            come_behind(&stream->past, &context->legacy);
        return &stream->past;
    }
    while ((other = next_handle(KIND_STREAM, &at)))
        if (other->context == context && !(other->flags & 1))
            come_behind(&context->legacy, &other->past);
    return &context->legacy;
}
