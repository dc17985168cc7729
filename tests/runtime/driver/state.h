/* What the parts of the stand-in share: its objects, its configuration, the frame of every call.
 *
 * One mutex guards all of it. `enter` takes the mutex and `leave` gives it back, so a function
 * between them may touch everything; kernels that are functions of the test run without it. */
#ifndef STANDIN_STATE_H
#define STANDIN_STATE_H

#include "abi.h"
#include "control.h"
#include "cubin.h"

#define MAX_DEVICES 80

/* Every function of the driver that the stand-in offers: FUNCTION(symbol, name, since, needs). */
enum function {
#define FUNCTION(symbol, name, since, needs) ID_##symbol,
#include "functions.h"
#undef FUNCTION
    FUNCTION_COUNT
};

enum needs {
    NOTHING,  /* works before cuInit */
    INIT,     /* needs cuInit */
    CONTEXT,  /* and a current context without a sticky error */
    UNSAFE,   /* and is forbidden while this thread captures a stream */
    WAITS,    /* needs cuInit, and is forbidden alike: it waits for the device, or asks it */
};

enum kind { KIND_NONE, KIND_CONTEXT, KIND_LIBRARY, KIND_KERNEL, KIND_FUNCTION, KIND_STREAM,
            KIND_EVENT, KIND_GRAPH, KIND_GRAPH_EXEC };

/* CUstreamCaptureStatus */
enum { CAPTURE_NONE, CAPTURE_ACTIVE, CAPTURE_INVALIDATED };

/* Recorded events by number: those that some work comes behind. */
struct past {
    uint64_t *events;
    size_t count, capacity;
};

struct context {
    struct past legacy; /* of its legacy stream */
    CUhandle handle;
    int device;
    int references; /* of a primary context; -1: made by cuCtxCreate */
    unsigned flags;
    int pending; /* an error of the device that no call has returned yet */
    int sticky;  /* and one that every call returns from now on */
};

struct operation {
    enum { RUN_LAUNCH, RUN_COPY, RUN_FILL } what;
    struct launch *launch;
    CUdeviceptr target, source;
    size_t bytes;
    unsigned value, width;
    struct operation *next;
};

struct graph {
    CUhandle handle;
    struct context *context;
    struct operation *first, *last;
    size_t nodes;
};

struct stream {
    CUhandle handle;
    struct context *context;
    unsigned flags;
    int priority;
    uint64_t id; /* never given twice, as a handle may be */
    int capture; /* CAPTURE_… */
    int capture_mode;
    uint64_t capture_id, capture_thread;
    struct graph *graph;
    struct past past;
    CUhandle joined; /* the stream whose capture this one takes part in */
};

struct library {
    CUhandle handle;
    struct cubin *cubin;
    CUhandle *kernels; /* made so far, in the order of the cubin */
    uint64_t globals[MAX_DEVICES]; /* where the global variables lie, 0: not loaded there */
};

struct kernel {
    CUhandle handle;
    struct library *library;
    const struct cubin_kernel *code;
    int max_dynamic[MAX_DEVICES], carveout[MAX_DEVICES], non_portable[MAX_DEVICES];
    int cluster_must_be_set[MAX_DEVICES], policy[MAX_DEVICES];
    int cluster[MAX_DEVICES][3];
    CUhandle functions[MAX_DEVICES];
};

struct function_object {
    CUhandle handle;
    struct kernel *kernel;
    struct context *context;
    int loaded;
};

extern struct options options;
extern struct device devices[MAX_DEVICES];
extern int device_count;

/* process.c */
int enter(enum function function);
int leave(enum function function, int code);
int leave_with(enum function function, int code, CUhandle stream, const uint64_t *values, int count);
void lock_all(void);
void unlock_all(void);
void fail_context(struct context *context, int code, int sticky);
int surface(struct context *context);
const char *function_name(int function);
int function_number(const char *name);

/* past.c */
void come_behind(struct past *past, const struct past *other);
uint64_t note_event(struct past *past);
void end_past(const struct past *past);
void end_everything(void);
int is_over(uint64_t event);
struct past *past_of(struct stream *stream, struct context *context);

/* handles.c */
CUhandle add_handle(enum kind kind, void *object);
CUhandle add_handle_again(enum kind kind, void *object);
void *find_handle(enum kind kind, CUhandle handle);
void *next_handle(enum kind kind, size_t *position);
void drop_handle(CUhandle handle);
void drop_all_handles(void);

/* contexts.c */
struct context *current_context(void);
int missing_context(void);
void reset_contexts(void);

/* streams.c */
int resolve_stream(CUhandle handle, struct stream **stream, struct context **context);
int check_stream(CUhandle handle, struct stream **stream, struct context **context);
int submit(struct stream *stream, struct context *context, struct operation *operation);
int legacy_blocked(struct context *context);
int legacy_conflict(struct context *context);

/* captures.c */
int thread_captures(void);
void invalidate_captures(void);

/* graphs.c */
int perform(struct context *context, const struct operation *operation);
void free_operation(struct operation *operation);

/* memory.c */
struct allocation {
    uint64_t address, bytes;
    int device; /* -1: host memory that all devices may use */
    enum { OWN, OWN_ASYNC, OWN_GRAPH, ADOPTED, PINNED, IMAGE } origin;
    struct context *context;
    uint64_t number;
    struct allocation *next;
};
int allocate(struct context *context, size_t bytes, int origin, uint64_t *address);
void release(struct allocation *allocation);
struct allocation *find_allocation(uint64_t address);
int usable(struct context *context, uint64_t address, uint64_t bytes);
int usable_by_kernel(struct context *context, uint64_t address, uint64_t bytes);
void release_context_memory(struct context *context);
void reset_memory(void);

/* symbols.c */
void unhide_symbols(void);
extern int symbols_version;

/* libraries.c */
int load_kernel(struct kernel *kernel, struct context *context, CUhandle *function);
int loadable(const struct cubin *cubin, int device);
void reset_libraries(void);
int kernel_attribute(const struct kernel *kernel, int attribute, int device, int *value);

/* launches.c */
int run_launch(struct context *context, const struct launch *launch);

/* limits.c */
int check_limits(const CUlaunchConfig *config, const struct kernel *kernel, int device,
                 unsigned cluster[3]);
int resident_blocks(const struct kernel *kernel, int device, unsigned threads, size_t smem_bytes);

/* tensor_maps.c */
int map_extent(const void *map, uint64_t *address, uint64_t *bytes);

/* log.c */
struct launch *copy_launch(const struct launch *launch);
uint64_t thread_number(void);
void log_call(enum function function, int code, CUhandle stream, const uint64_t *values, int count);
void log_launch(struct launch *launch, int code);
uint64_t content_of(const void *bytes, size_t count);
void log_to(const char *file);
void clear_log(void);

/* device_attributes.c */
int blocks_per_sm(const struct device *device);

/* expectations.c */
void compare_launch(const struct launch *launch);
void forget_expectations(void);

/* devices.c */
void default_devices(void);
void read_environment(void);

#endif
