/* `_native`: the way of a call in Python to `pallasc_launch_from`.
 *
 * A front is the entry point of one kernel: a builtin method that inspects the arguments of a call,
 * finds the route with the same dtypes, shapes and layouts, and launches its plan in the stream.
 * For anything it does not handle, it calls the fallback before doing anything else: Python code
 * that handles every call, and is the only one to write messages about arguments.
 * runtime/calls/native_path.py creates fronts and routes.
 *
 * Arrays are inspected through DLPack's C exchange API where their type has it, and otherwise through
 * a function of Python that describes them.
 *
 * Routes of a front, programs of a route and streams of a program are only ever added, and each is
 * complete when published: a call needs no lock, even on a free-threaded Python.
 */
#ifndef Py_GIL_DISABLED
#define Py_LIMITED_API 0x030b0000
#endif
#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#ifndef PALLASC_EXTENSION_SOURCES
#define PALLASC_EXTENSION_SOURCES ""
#endif

enum {
    MOST_ARRAYS = 32, /* in one call, including results and workspace */
    MOST_DEVICES = 32,
    MOST_STREAMS = 64,
    MOST_KINDS = 4,
    DEFAULT_STREAMS = 2 /* handles up to this are default streams */
};

/* ---- DLPack (dlpack.h, version 1.x) */

enum { DLPACK_CUDA = 2 };

enum { PALLASC_ERROR_ARGUMENT = 1 }; /* of include/pallasc.h */

typedef struct dl_tensor {
    void *data;
    int32_t device_type, device_id;
    int32_t ndim;
    uint8_t code, bits;
    uint16_t lanes;
    int64_t *shape;
    int64_t *strides;
    uint64_t byte_offset;
} dl_tensor;

typedef struct exchange_header {
    uint32_t major, minor;
    struct exchange_header *previous;
} exchange_header;

typedef struct exchange_api {
    exchange_header header;
    void *allocate, *from_object, *to_object;
    int (*view)(void *object, dl_tensor *out);
    int (*current_stream)(int32_t device_type, int32_t device_id, void **stream);
} exchange_api;

/* ---- program: a plan of the C library, prepared on one device */

/* pallasc_launch_from of include/pallasc.h. */
typedef int (*launch_function)(const void *plan, int device, void *const *buffers, size_t count,
                               void *workspace, void *stream, size_t first_step,
                               size_t *failed_step);

typedef struct program {
    PyObject_HEAD
    PyObject *owner; /* keeps the plan open */
    launch_function launch;
    const void *plan;
    int device;
    void *context; /* the device's primary context */
    int (*current_context)(void **context);
    int (*current_device)(int *device);
    _Atomic(unsigned) stream_count;
    _Atomic(void *) streams[MOST_STREAMS];
} program;

static PyTypeObject *program_type, *front_type;
static PyObject *name_stream, *name_out, *name_cuda_stream;

static void program_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((program *)self)->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

static bool knows_stream(program *self, void *stream)
{
    unsigned count = atomic_load_explicit(&self->stream_count, memory_order_acquire);
    for (unsigned n = 0; n < count && n < MOST_STREAMS; n++)
        if (atomic_load_explicit(&self->streams[n], memory_order_relaxed) == stream)
            return true;
    return false;
}

static void add_stream(program *self, void *stream)
{
    /* Two threads may take slots at the same time, so a slot only counts once filled; until then
     * its handle is NULL, which is never looked up. When all are full, the oldest are overwritten.
     * When the count wraps around, streams are admitted again. */
    unsigned place = atomic_fetch_add(&self->stream_count, 1);
    atomic_store_explicit(&self->streams[place % MOST_STREAMS], stream, memory_order_release);
}

/* This function and those that create fronts and routes trust their arguments, which only
 * runtime/calls/native_path.py passes: it checks the number of arrays, and plans are checked when they
 * are read. */

/* program(owner, launch, plan, device, context, cuCtxGetCurrent, cuCtxGetDevice) */
static PyObject *make_program(PyObject *module, PyObject *args)
{
    PyObject *owner;
    unsigned long long launch, plan, context, current, ask_device;
    int device;
    (void)module;
    if (!PyArg_ParseTuple(args, "OKKiKKK:program", &owner, &launch, &plan, &device, &context,
                          &current, &ask_device))
        return NULL;
    program *self = PyObject_New(program, program_type);
    if (!self)
        return NULL;
    self->owner = Py_NewRef(owner);
    self->launch = (launch_function)(uintptr_t)launch;
    self->plan = (const void *)(uintptr_t)plan;
    self->device = device;
    self->context = (void *)(uintptr_t)context;
    self->current_context = (int (*)(void **))(uintptr_t)current;
    self->current_device = (int (*)(int *))(uintptr_t)ask_device;
    atomic_init(&self->stream_count, 0);
    for (int n = 0; n < MOST_STREAMS; n++)
        atomic_init(&self->streams[n], NULL);
    return (PyObject *)self;
}

/* ---- routes */

/* The checks of an array; unchecked arrays may have any dtype, shape or strides. */
enum { ASK_DTYPE = 1, ASK_SHAPE = 2, ASK_STRIDES = 4, ASK_PLAIN = 8 };

typedef struct array_type {
    PyObject *dtype; /* short name, interned */
    int64_t code, bits, asks;
    int64_t ndim;
    const int64_t *shape, *strides;
    bool is_row_major;
} array_type;

enum { RETURN_LEAF = 0, RETURN_TUPLE = 1, RETURN_LIST = 2, RETURN_NONE = 3 };

typedef struct leaf {
    bool is_result;
    int number; /* of the input or of the result */
} leaf;

/* Functions of Python that a route calls: they return a program, check a stream before its first
 * use, order a launch after uses of its arrays, and raise the library's error. */
enum { READY, ADMIT, ORDER, REFUSE, ROUTE_CALLS };

typedef struct route {
    struct route *next;
    int input_count, result_count, leaf_count;
    array_type arrays[MOST_ARRAYS]; /* inputs, then results */
    bool is_updated[MOST_ARRAYS];
    int slots[MOST_ARRAYS]; /* the array of each parameter, -1 if it must be None */
    int returns;
    leaf leaves[MOST_ARRAYS];
    int updated_count;
    bool any_plain;
    _Atomic(bool) is_slow_on[MOST_DEVICES];
    int64_t *words;                    /* memory of shapes and strides */
    PyObject *new_results[MOST_ARRAYS]; /* arguments of the allocation function */
    PyObject *new_workspace;           /* the same, NULL if the kernel needs none */
    PyObject *all_new;                 /* a tuple of everything a call allocates */
    PyObject *calls[ROUTE_CALLS];
    _Atomic(program *) programs[MOST_DEVICES];
} route;

enum { FRONT_CALL = 0, FRONT_INTO = 1, FRONT_OPERATOR = 2 };

/* Functions of Python that a front calls; see `Access` in runtime/matching/arrays.py. */
enum {
    FALLBACK,
    DESCRIBE,
    DESCRIBE_IN_ORDER,
    MARK_WRITTEN,
    NEW_HERE,
    NEW_IN,
    STREAM_HANDLE,
    IS_PLAIN,
    STREAM_OF,
    FRONT_CALLS
};

typedef struct front {
    PyObject_HEAD
    int what;
    int slot_count, kind_count;
    PyObject *names[MOST_ARRAYS]; /* interned; NULL for parameters without a name */
    PyObject *kinds[MOST_KINDS];
    PyObject *missing, *capsule;
    PyObject *calls[FRONT_CALLS]; /* NULL for those that are None */
    const exchange_api *api; /* NULL if `describe` inspects the arrays */
    int (*current_stream)(int32_t device, void **stream); /* NULL to use the API's function */
    _Atomic(route *) first;
    _Atomic(route *) last; /* the route of the last call */
} front;

static void route_free(route *self)
{
    for (int n = 0; n < MOST_ARRAYS; n++)
        Py_XDECREF(self->arrays[n].dtype);
    for (int n = 0; n < self->result_count; n++)
        Py_XDECREF(self->new_results[n]);
    Py_XDECREF(self->new_workspace);
    Py_XDECREF(self->all_new);
    for (int n = 0; n < ROUTE_CALLS; n++)
        Py_XDECREF(self->calls[n]);
    for (int n = 0; n < MOST_DEVICES; n++)
        Py_XDECREF((PyObject *)atomic_load(&self->programs[n]));
    free(self->words);
    free(self);
}

static int front_traverse(PyObject *object, visitproc visit, void *arg)
{
    front *self = (front *)object;
    Py_VISIT(Py_TYPE(object));
    for (int n = 0; n < FRONT_CALLS; n++)
        Py_VISIT(self->calls[n]);
    for (route *own = atomic_load(&self->first); own; own = own->next) {
        for (int n = 0; n < ROUTE_CALLS; n++)
            Py_VISIT(own->calls[n]);
    }
    return 0;
}

static int front_clear(PyObject *object)
{
    front *self = (front *)object;
    atomic_store(&self->last, NULL);
    route *own = atomic_exchange(&self->first, NULL);
    while (own) {
        route *next = own->next;
        route_free(own);
        own = next;
    }
    for (int n = 0; n < FRONT_CALLS; n++)
        Py_CLEAR(self->calls[n]);
    return 0;
}

static void front_dealloc(PyObject *object)
{
    front *self = (front *)object;
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    front_clear(object);
    for (int n = 0; n < self->slot_count; n++)
        Py_XDECREF(self->names[n]);
    for (int n = 0; n < self->kind_count; n++)
        Py_XDECREF(self->kinds[n]);
    Py_XDECREF(self->missing);
    Py_XDECREF(self->capsule);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- one call */

/* Clears the error, since Python will find it again; but not an interrupt. */
static void forget_error(void)
{
    if (PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
}

/* The same, and returns false. */
static bool failed(void)
{
    forget_error();
    return false;
}

/* An array, as far as it has been inspected: through the exchange API, or described by Python. */
typedef struct seen {
    PyObject *described; /* an `ArrayView` of runtime/matching/arrays.py, owned; or NULL */
    dl_tensor tensor;    /* else this */
    uint64_t address;
    int device;
} seen;

/* A call, as far as it has been inspected. */
typedef struct call {
    front *self;
    PyObject *slots[MOST_ARRAYS]; /* by parameter, NULL if not given */
    bool is_viewed[MOST_ARRAYS];
    seen views[MOST_ARRAYS]; /* by parameter */
    PyObject *out, *stream;
    PyObject *items;               /* of an `out` that is a list, which may change meanwhile */
    PyObject *arrays[MOST_ARRAYS]; /* inputs, results, workspace */
    const seen *inputs[MOST_ARRAYS];
    seen placed[MOST_ARRAYS]; /* of results and workspace, by array: */
    int first_placed, end_placed;
    uint64_t addresses[MOST_ARRAYS];
} call;

/* Fields of an `ArrayView`. */
enum { POINTER, DTYPE, SHAPE, IS_CONTIGUOUS, DEVICE, IS_WRITABLE, STREAM, STRIDES, USES, FIELDS };

static PyObject *field(const seen *array, int number)
{
    return PyTuple_GetItem(array->described, number);
}

/* Lets Python describe an array; false if it cannot, or if the array is not on a GPU. */
static bool describe(const call *own, PyObject *array, seen *out)
{
    const front *self = own->self;
    out->described = PyObject_CallFunctionObjArgs(
        own->stream ? self->calls[DESCRIBE] : self->calls[DESCRIBE_IN_ORDER], array, NULL);
    if (!out->described)
        return failed();
    if (!PyTuple_Check(out->described) || PyTuple_Size(out->described) != FIELDS ||
        field(out, DEVICE) == Py_None)
        return false;
    out->device = (int)PyLong_AsLong(field(out, DEVICE));
    out->address = PyLong_AsUnsignedLongLong(field(out, POINTER));
    if (PyErr_Occurred())
        return failed();
    return true;
}

/* Reads an array; false if it is not an array, or not on a GPU. */
static bool view(const call *own, PyObject *array, seen *out)
{
    const front *self = own->self;
    PyObject *kind = (PyObject *)Py_TYPE(array);
    int n = 0;
    out->described = NULL;
    while (n < self->kind_count && self->kinds[n] != kind)
        n++;
    if (n == self->kind_count)
        return false;
    if (!self->api)
        return describe(own, array, out);
    if (self->api->view(array, &out->tensor))
        return failed();
    out->device = out->tensor.device_id;
    out->address = (uint64_t)(uintptr_t)out->tensor.data + out->tensor.byte_offset;
    return out->tensor.device_type == DLPACK_CUDA;
}

/* Returns whether a tuple of Python holds these numbers. */
static bool are_numbers(PyObject *tuple, const int64_t *numbers, int64_t count)
{
    if (!PyTuple_Check(tuple) || PyTuple_Size(tuple) != count)
        return false;
    for (int64_t n = 0; n < count; n++) {
        long long own = PyLong_AsLongLong(PyTuple_GetItem(tuple, n));
        if (own == -1 && PyErr_Occurred())
            forget_error();
        if (own != numbers[n])
            return false;
    }
    return true;
}

static bool is_described_as(const array_type *type, const seen *array)
{
    PyObject *dtype = field(array, DTYPE);
    if (type->asks & ASK_DTYPE && dtype != type->dtype &&
        (!PyUnicode_Check(dtype) || PyUnicode_Compare(dtype, type->dtype)))
        return false;
    if (!(type->asks & ASK_SHAPE))
        return true;
    if (!are_numbers(field(array, SHAPE), type->shape, type->ndim))
        return false;
    if (!(type->asks & ASK_STRIDES))
        return true;
    bool is_contiguous = field(array, IS_CONTIGUOUS) == Py_True;
    if (type->is_row_major || is_contiguous)
        return type->is_row_major && is_contiguous;
    return are_numbers(field(array, STRIDES), type->strides, type->ndim);
}

static bool is_of_type(const array_type *type, const seen *own)
{
    if (own->described)
        return is_described_as(type, own);
    const dl_tensor *array = &own->tensor;
    if (type->asks & ASK_DTYPE &&
        (array->code != type->code || array->bits != type->bits || array->lanes != 1))
        return false;
    if (!(type->asks & ASK_SHAPE))
        return true;
    if (array->ndim != type->ndim)
        return false;
    bool is_empty = false;
    for (int64_t n = 0; n < type->ndim; n++) {
        if (array->shape[n] != type->shape[n])
            return false;
        is_empty |= array->shape[n] == 0;
    }
    if (!(type->asks & ASK_STRIDES) || is_empty)
        return true;
    if (array->strides) {
        for (int64_t n = 0; n < type->ndim; n++)
            if (array->strides[n] != type->strides[n] && type->shape[n] != 1)
                return false;
        return true;
    }
    return type->is_row_major; /* as an array without strides is */
}

/* Assigns the arguments to parameters; false if some do not match. */
static bool take_arguments(call *own, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    const front *self = own->self;
    own->out = own->stream = own->items = NULL;
    own->first_placed = own->end_placed = 0;
    for (int n = 0; n < self->slot_count; n++)
        own->is_viewed[n] = false;
    if (count > self->slot_count)
        return false;
    for (int n = 0; n < self->slot_count; n++) {
        own->slots[n] = n < count && args[n] != self->missing ? args[n] : NULL;
    }
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t n = 0; n < named; n++) {
        PyObject *name = PyTuple_GetItem(names, n), *value = args[count + n];
        if (name == name_stream) {
            own->stream = value == Py_None ? NULL : value;
        } else if (name == name_out && self->what == FRONT_INTO) {
            own->out = value == self->missing ? NULL : value;
        } else {
            int slot = (int)count; /* those passed by position may not be passed again */
            while (slot < self->slot_count && self->names[slot] != name)
                slot++;
            if (slot >= self->slot_count)
                return false;
            own->slots[slot] = value == self->missing ? NULL : value;
        }
    }
    return true;
}

enum { FITS, DIFFERS, UNUSUAL };

/* Returns whether the inputs of a call match a route. */
static int match_inputs(call *own, const route *way)
{
    front *self = own->self;
    for (int n = 0; n < self->slot_count; n++) {
        PyObject *array = own->slots[n];
        int number = way->slots[n];
        if (number < 0) {
            if (array && array != Py_None)
                return DIFFERS;
            continue;
        }
        if (!array || array == Py_None)
            return DIFFERS; /* another route may do without it */
        if (!own->is_viewed[n]) {
            own->is_viewed[n] = true;
            if (!view(own, array, &own->views[n]))
                return UNUSUAL;
        }
        if (!is_of_type(&way->arrays[number], &own->views[n]))
            return DIFFERS;
        own->arrays[number] = array;
        own->inputs[number] = &own->views[n];
        own->addresses[number] = own->views[n].address;
    }
    return FITS;
}

static int device_of_inputs(const call *own, const route *way)
{
    int device = -1;
    for (int n = 0; n < own->self->slot_count; n++) {
        if (way->slots[n] < 0)
            continue;
        if (device >= 0 && own->views[n].device != device)
            return -1;
        device = own->views[n].device;
    }
    return device;
}

/* Records one given output; false if it is not the required array. */
static bool give(call *own, const route *way, const leaf *where, PyObject *array)
{
    int number = where->is_result ? way->input_count + where->number : where->number;
    if (where->is_result && !own->arrays[number])
        own->arrays[number] = array;
    return own->arrays[number] == array;
}

/* Unpacks `out`; false if it does not have the structure of a route's outputs. */
static bool take_out(call *own, const route *way)
{
    for (int n = 0; n < way->result_count; n++)
        own->arrays[way->input_count + n] = NULL;
    if (way->returns == RETURN_LEAF) {
        if (!own->out)
            return !way->leaves[0].is_result;
        return give(own, way, &way->leaves[0], own->out);
    }
    if (!own->out)
        return false;
    if (PyList_CheckExact(own->out) && !own->items) {
        own->items = PyList_AsTuple(own->out);
        if (!own->items)
            forget_error();
    }
    PyObject *items = PyTuple_CheckExact(own->out) ? own->out : own->items;
    if (!items || PyTuple_Size(items) != way->leaf_count)
        return false;
    for (int n = 0; n < way->leaf_count; n++)
        if (!give(own, way, &way->leaves[n], PyTuple_GetItem(items, n)))
            return false;
    return true;
}

/* Inspects an array that was given for a result, or allocated. */
static bool place_array(call *own, int number, int device)
{
    seen *placed = &own->placed[number];
    if (!own->end_placed)
        own->first_placed = number;
    own->end_placed = number + 1;
    if (!view(own, own->arrays[number], placed) || placed->device != device)
        return false;
    own->addresses[number] = placed->address;
    return true;
}

static bool take_results(call *own, const route *way, int device)
{
    if (!take_out(own, way))
        return false;
    for (int n = way->input_count; n < way->input_count + way->result_count; n++)
        if (!place_array(own, n, device) || !is_of_type(&way->arrays[n], &own->placed[n]))
            return false;
    return true;
}

/* Selects the route; NULL if none takes the arrays. */
static route *choose(call *own)
{
    front *self = own->self;
    route *last = atomic_load_explicit(&self->last, memory_order_acquire);
    int found = last ? match_inputs(own, last) : DIFFERS;
    if (found == FITS)
        return last;
    for (route *way = atomic_load_explicit(&self->first, memory_order_acquire);
         way && found == DIFFERS; way = way->next) {
        if (way == last)
            continue;
        found = match_inputs(own, way);
        if (found == FITS) {
            atomic_store_explicit(&self->last, way, memory_order_release);
            return way;
        }
    }
    return NULL;
}

/* The program for a device, as a new reference, since a fork within the call makes fronts drop
 * theirs; NULL if Python must handle the call. Python creates it on first use. */
static program *program_on(route *way, int device)
{
    if (device < 0 || device >= MOST_DEVICES || way->is_slow_on[device])
        return NULL;
    program *own = atomic_load_explicit(&way->programs[device], memory_order_acquire);
    if (own)
        return (program *)Py_NewRef((PyObject *)own);
    PyObject *made = PyObject_CallFunction(way->calls[READY], "i", device);
    if (!made) {
        forget_error();
        return NULL;
    }
    if (Py_TYPE(made) != program_type) {
        way->is_slow_on[device] = made == Py_False;
        Py_DECREF(made);
        return NULL;
    }
    program *none = NULL;
    if (!atomic_compare_exchange_strong(&way->programs[device], &none, (program *)made)) {
        Py_DECREF(made); /* another thread was faster */
        return (program *)Py_NewRef((PyObject *)none);
    }
    return (program *)Py_NewRef(made);
}

/* Reads a stream's handle, a new reference, and drops it; NULL: there was an error. */
static bool read_handle(PyObject *handle, void **stream)
{
    if (handle) {
        *stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(handle);
        Py_DECREF(handle);
    }
    return PyErr_Occurred() ? failed() : true;
}

/* The handle of a given stream. */
static bool given_stream(const front *self, PyObject *given, void **stream)
{
    PyObject *handle = PyLong_CheckExact(given) ? Py_NewRef(given)
                                                : PyObject_GetAttr(given, name_cuda_stream);
    if (!handle || !PyLong_CheckExact(handle)) {
        Py_XDECREF(handle);
        forget_error();
        if (PyErr_Occurred())
            return false;
        handle = PyObject_CallFunctionObjArgs(self->calls[STREAM_HANDLE], given, NULL);
    }
    return read_handle(handle, stream);
}

/* The framework's current stream; false if it does not report one. */
static bool current_stream(const front *self, int device, void **stream)
{
    PyObject *ask = self->calls[STREAM_OF];
    *stream = NULL;
    if (!self->current_stream && !self->api)
        return !ask || read_handle(PyObject_CallFunction(ask, "i", device), stream);
    if (self->current_stream ? self->current_stream(device, stream)
                             : self->api->current_stream(DLPACK_CUDA, device, stream))
        return failed();
    return true;
}

static bool find_stream(call *own, route *way, program *ready, int device, void **stream)
{
    const front *self = own->self;
    if (!(own->stream ? given_stream(self, own->stream, stream)
                      : current_stream(self, device, stream)))
        return false;
    if ((uintptr_t)*stream <= DEFAULT_STREAMS || knows_stream(ready, *stream))
        return true;
    PyObject *done = PyObject_CallFunction(way->calls[ADMIT], "iK", device,
                                           (unsigned long long)(uintptr_t)*stream);
    if (!done)
        return failed();
    Py_DECREF(done);
    add_stream(ready, *stream);
    return true;
}

/* Returns whether memory has the arrays' actual values, which some frameworks defer. */
static bool are_plain(const call *own, const route *way)
{
    int count = way->input_count + (own->self->what == FRONT_INTO ? way->result_count : 0);
    for (int n = 0; n < count; n++) {
        if (!(way->arrays[n].asks & ASK_PLAIN))
            continue;
        PyObject *found = PyObject_CallFunctionObjArgs(own->self->calls[IS_PLAIN], own->arrays[n], NULL);
        if (!found)
            return failed();
        bool is_plain = found == Py_True;
        Py_DECREF(found);
        if (!is_plain)
            return false;
    }
    return true;
}

/* Allocates one array on the current device. */
static bool allocate(call *own, int number, PyObject *arguments, int device)
{
    own->arrays[number] = PyObject_CallObject(own->self->calls[NEW_HERE], arguments);
    if (!own->arrays[number])
        return failed();
    return place_array(own, number, device);
}

/* Allocates all arrays of a call, from index `first` on, in a stream other than the current one;
 * returns the number of arrays afterwards. */
static int allocate_in(call *own, const route *way, void *stream, int device, int first)
{
    PyObject *made = PyObject_CallFunction(own->self->calls[NEW_IN], "KiO",
                                           (unsigned long long)(uintptr_t)stream, device,
                                           way->all_new);
    int count = (int)PyTuple_Size(way->all_new), end = first;
    while (made && end < first + count) {
        own->arrays[end] = PySequence_GetItem(made, end - first);
        if (!own->arrays[end])
            break;
        end++;
    }
    Py_XDECREF(made);
    if (PyErr_Occurred())
        forget_error();
    return end;
}

/* Allocates results and workspace of a call, from index `first` on, for work in a stream; on another
 * device than the current one if `is_elsewhere`. Returns the end index; sets `is_placed` to false if
 * not all could be allocated. */
static int allocate_all(call *own, const route *way, void *stream, int device, int first,
                        bool is_elsewhere, bool *is_placed)
{
    int results = way->input_count + way->result_count, end = first;
    int last = results + (way->new_workspace != NULL);
    void *current = NULL;
    *is_placed = true;
    if (last > first &&
        (is_elsewhere || (own->stream && !(current_stream(own->self, device, &current) &&
                                           current == stream)))) {
        if (!own->self->calls[NEW_IN]) {
            *is_placed = false;
            return end;
        }
        end = allocate_in(own, way, stream, device, first);
        *is_placed = end == last;
        for (int n = first; *is_placed && n < end; n++)
            *is_placed = place_array(own, n, device);
        return end;
    }
    for (; *is_placed && end < last; end++)
        *is_placed = allocate(own, end,
                              end < results ? way->new_results[end - way->input_count]
                                            : way->new_workspace,
                              device);
    return end;
}

/* Reports written arrays to the framework; -1 with an exception set on failure. */
static int mark_written(const call *own, const route *way)
{
    const front *self = own->self;
    int given = self->what == FRONT_INTO ? way->result_count : 0;
    if (!self->calls[MARK_WRITTEN] || !(way->updated_count + given))
        return 0;
    PyObject *written = PyTuple_New(way->updated_count + given);
    if (!written)
        return -1;
    Py_ssize_t place = 0;
    for (int n = 0; n < way->input_count + given; n++) {
        if (n < way->input_count && !way->is_updated[n])
            continue;
        PyTuple_SetItem(written, place++, Py_NewRef(own->arrays[n]));
    }
    PyObject *done = PyObject_CallFunctionObjArgs(self->calls[MARK_WRITTEN], written, NULL);
    Py_DECREF(written);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *leaf_array(const call *own, const route *way, int n)
{
    const leaf *where = &way->leaves[n];
    PyObject *array = own->arrays[where->is_result ? way->input_count + where->number
                                                   : where->number];
    return Py_NewRef(array);
}

static PyObject *returned(const call *own, const route *way)
{
    if (own->self->what == FRONT_INTO && own->out)
        return Py_NewRef(own->out);
    if (way->returns == RETURN_LEAF)
        return leaf_array(own, way, 0);
    if (way->returns == RETURN_NONE)
        return Py_NewRef(Py_None);
    bool is_list = way->returns == RETURN_LIST;
    PyObject *made = is_list ? PyList_New(way->leaf_count) : PyTuple_New(way->leaf_count);
    for (int n = 0; made && n < way->leaf_count; n++) {
        PyObject *array = leaf_array(own, way, n);
        if (is_list)
            PyList_SetItem(made, n, array);
        else
            PyTuple_SetItem(made, n, array);
    }
    return made;
}

/* The view of an array of the call. */
static const seen *seen_of(const call *own, const route *way, int number)
{
    return number < way->input_count ? own->inputs[number] : &own->placed[number];
}

/* Returns whether arrays from `first` to before `end`, if described, may be used: written ones are
 * writable, and no producer used another stream than the default stream that the launch then takes,
 * too. */
static bool may_use(const call *own, const route *way, int first, int end)
{
    for (int n = first; n < end; n++) {
        const seen *array = seen_of(own, way, n);
        bool is_written = n >= way->input_count || way->is_updated[n];
        if (!array->described)
            continue;
        if (is_written && field(array, IS_WRITABLE) != Py_True)
            return false;
        if (field(array, STREAM) == Py_None)
            continue;
        long long producer = PyLong_AsLongLong(field(array, STREAM));
        if (PyErr_Occurred())
            forget_error();
        if (own->stream || own->self->calls[STREAM_OF] || producer < 0 || producer > 1)
            return false;
    }
    return true;
}

/* Lets Python order the launch after earlier uses of the arrays, if they track them. Sets `after` to
 * the function to call after the launch; returns -1 with an exception set on failure. */
static int order(const call *own, const route *way, int device, void *stream, PyObject **after)
{
    PyObject *uses = NULL;
    *after = NULL;
    for (int n = 0; n < way->input_count + way->result_count; n++) {
        const seen *array = seen_of(own, way, n);
        if (!array->described || field(array, USES) == Py_None)
            continue;
        bool is_written = n >= way->input_count || way->is_updated[n];
        PyObject *pair = Py_BuildValue("(OO)", field(array, USES),
                                       is_written ? Py_True : Py_False);
        if (!uses)
            uses = PyList_New(0);
        int code = pair && uses ? PyList_Append(uses, pair) : -1;
        Py_XDECREF(pair);
        if (code) {
            Py_XDECREF(uses);
            return -1;
        }
    }
    if (!uses)
        return 0;
    *after = PyObject_CallFunction(way->calls[ORDER], "iKOO", device,
                                   (unsigned long long)(uintptr_t)stream, uses,
                                   own->stream ? Py_True : Py_False);
    Py_DECREF(uses);
    return *after ? 0 : -1;
}

/* Launches in a stream; returns what the call returns. */
static PyObject *enqueue(call *own, route *way, program *ready, void *stream)
{
    PyObject *after = NULL;
    if (order(own, way, ready->device, stream, &after))
        return NULL;
    int status, results = way->input_count + way->result_count;
    void *buffers[MOST_ARRAYS];
    for (int n = 0; n < results; n++)
        buffers[n] = (void *)(uintptr_t)own->addresses[n];
    void *workspace = way->new_workspace ? (void *)(uintptr_t)own->addresses[results] : NULL;
    Py_BEGIN_ALLOW_THREADS
    status = ready->launch(ready->plan, ready->device, buffers, (size_t)results, workspace, stream,
                           0, NULL);
    Py_END_ALLOW_THREADS
    bool is_noted = true;
    if (after) {
        PyObject *done = PyObject_CallNoArgs(after); /* some of several steps may be enqueued */
        is_noted = done != NULL;
        Py_XDECREF(done);
        Py_DECREF(after);
    }
    /* Wrong addresses are found before anything is enqueued. */
    if (is_noted && status != PALLASC_ERROR_ARGUMENT)
        is_noted = !mark_written(own, way);
    if (!status)
        return is_noted ? returned(own, way) : NULL;
    if (!is_noted) {
        forget_error(); /* the launch's failure is reported, unless an interrupt ends the program */
        if (PyErr_Occurred())
            return NULL;
    }
    /* `refuse` raises the exception for the failure, which the library keeps for each thread. */
    return PyObject_CallFunction(way->calls[REFUSE], "i", status);
}

/* Outcome of a call: done, with a result or an exception; or nothing was done. */
enum { DONE, NOT_DONE };

/* Launches on a device that has a program. */
static int launch_on(call *own, route *way, program *ready, int device, PyObject **result)
{
    front *self = own->self;
    bool allocates = self->what != FRONT_INTO;
    void *context = NULL, *stream = NULL;
    int current = -1;
    if (ready->current_context(&context))
        return NOT_DONE;
    /* Python orders launches beside contexts that the program created on this device. */
    bool is_elsewhere = context && context != ready->context;
    if (is_elsewhere && (ready->current_device(&current) || current == device))
        return NOT_DONE;
    if (!allocates && !take_results(own, way, device))
        return NOT_DONE;
    int results = way->input_count + way->result_count;
    int first_new = allocates ? way->input_count : results;
    if (!may_use(own, way, 0, first_new) || (way->any_plain && !are_plain(own, way)))
        return NOT_DONE;
    if (!find_stream(own, way, ready, device, &stream))
        return NOT_DONE;
    bool is_placed;
    int end = allocate_all(own, way, stream, device, first_new, is_elsewhere, &is_placed);
    int status = NOT_DONE;
    if (is_placed && may_use(own, way, first_new, results)) {
        status = DONE;
        *result = enqueue(own, way, ready, stream);
    }
    for (int n = first_new; n < end; n++)
        Py_XDECREF(own->arrays[n]);
    return status;
}

static int launch(call *own, PyObject **result)
{
    front *self = own->self;
    bool allocates = self->what != FRONT_INTO;
    route *way = choose(own);
    if (!way || (own->stream && !self->calls[NEW_IN] && (allocates || way->new_workspace)))
        return NOT_DONE;
    int device = device_of_inputs(own, way);
    program *ready = program_on(way, device);
    if (!ready)
        return NOT_DONE;
    int status = launch_on(own, way, ready, device, result);
    Py_DECREF((PyObject *)ready);
    return status;
}

static PyObject *fall_back(front *self, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    PyObject *passed = PyTuple_New(count), *keywords = named ? PyDict_New() : NULL, *done = NULL;
    if (!passed || (named && !keywords))
        goto end;
    for (Py_ssize_t n = 0; n < count; n++) {
        PyTuple_SetItem(passed, n, Py_NewRef(args[n]));
    }
    for (Py_ssize_t n = 0; n < named; n++)
        if (PyDict_SetItem(keywords, PyTuple_GetItem(names, n), args[count + n]))
            goto end;
    done = PyObject_Call(self->calls[FALLBACK], passed, keywords);
end:
    Py_XDECREF(passed);
    Py_XDECREF(keywords);
    return done;
}

/* Drops what the inspection of a call has created. */
static void forget_call(call *own)
{
    Py_XDECREF(own->items);
    if (own->self->api)
        return;
    for (int n = 0; n < own->self->slot_count; n++)
        if (own->is_viewed[n])
            Py_XDECREF(own->views[n].described);
    for (int n = own->first_placed; n < own->end_placed; n++)
        Py_XDECREF(own->placed[n].described);
}

static PyObject *front_enter(PyObject *object, PyObject *const *args, Py_ssize_t count,
                             PyObject *names)
{
    call own;
    PyObject *result = NULL;
    own.self = (front *)object;
    int status = take_arguments(&own, args, count, names) ? launch(&own, &result) : NOT_DONE;
    forget_call(&own);
    if (status == DONE)
        return result;
    if (PyErr_Occurred())
        return NULL;
    return fall_back(own.self, args, count, names);
}

static PyMethodDef entrances[] = {
    {"call", (PyCFunction)(void (*)(void))front_enter, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"into", (PyCFunction)(void (*)(void))front_enter, METH_FASTCALL | METH_KEYWORDS, NULL},
    {"operator", (PyCFunction)(void (*)(void))front_enter, METH_FASTCALL | METH_KEYWORDS, NULL},
};

/* ---- creating fronts and routes */

/* The newest API of major version 1 that can view an array and supports streams, else NULL. */
static const exchange_api *find_api(PyObject *capsule)
{
    const exchange_header *header = PyCapsule_GetPointer(capsule, "dlpack_exchange_api");
    while (header && header->major != 1)
        header = header->previous;
    const exchange_api *api = (const exchange_api *)header;
    PyErr_Clear(); /* not such a capsule */
    return api && api->view && api->current_stream ? api : NULL;
}

static PyObject *optional(PyObject *value)
{
    return value == Py_None ? NULL : Py_NewRef(value);
}

/* front(what, names, missing, kinds, capsule, calls, stream_address): returns a builtin method whose
 * __self__ is the front. */
static PyObject *make_front(PyObject *module, PyObject *args)
{
    int what;
    PyObject *names, *missing, *kinds, *capsule, *calls;
    unsigned long long current;
    (void)module;
    if (!PyArg_ParseTuple(args, "iO!OO!OO!K:front", &what, &PyTuple_Type, &names, &missing,
                          &PyTuple_Type, &kinds, &capsule, &PyTuple_Type, &calls, &current))
        return NULL;
    allocfunc allocate_front = (allocfunc)PyType_GetSlot(front_type, Py_tp_alloc);
    front *self = (front *)allocate_front(front_type, 0);
    if (!self)
        return NULL;
    /* All fields are zero. */
    self->what = what;
    self->api = capsule == Py_None ? NULL : find_api(capsule);
    for (Py_ssize_t n = 0; n < PyTuple_Size(kinds); n++)
        self->kinds[self->kind_count++] = optional(PyTuple_GetItem(kinds, n));
    for (Py_ssize_t n = 0; n < PyTuple_Size(names); n++) {
        PyObject *name = optional(PyTuple_GetItem(names, n));
        if (name)
            PyUnicode_InternInPlace(&name);
        self->names[self->slot_count++] = name;
    }
    self->current_stream = (int (*)(int32_t, void **))(uintptr_t)current;
    self->missing = optional(missing);
    self->capsule = optional(capsule);
    for (int n = 0; n < FRONT_CALLS; n++)
        self->calls[n] = optional(PyTuple_GetItem(calls, n));
    PyObject *made = PyCFunction_NewEx(&entrances[what], (PyObject *)self, NULL);
    Py_DECREF(self);
    return made;
}

/* The allocations of a front's call, as a tuple. */
static PyObject *all_new(const route *made, int what)
{
    int results = what == FRONT_INTO ? 0 : made->result_count;
    PyObject *all = PyTuple_New(results + (made->new_workspace != NULL));
    for (int n = 0; all && n < results; n++) {
        PyTuple_SetItem(all, n, Py_NewRef(made->new_results[n]));
    }
    if (all && made->new_workspace) {
        PyTuple_SetItem(all, results, Py_NewRef(made->new_workspace));
    }
    return all;
}

static bool is_row_major(const array_type *own)
{
    uint64_t step = 1;
    bool is_same = true;
    for (int64_t n = own->ndim - 1; n >= 0; n--) {
        if (!own->shape[n])
            return true;
        is_same = is_same && ((uint64_t)own->strides[n] == step || own->shape[n] == 1);
        step *= (uint64_t)own->shape[n];
    }
    return is_same;
}

enum { HEAD = 4 }; /* words of an array before its shape */

static bool read_arrays(route *made, const char *words, size_t bytes, PyObject *dtypes)
{
    made->words = malloc(bytes + 1);
    if (!made->words)
        return false;
    memcpy(made->words, words, bytes);
    const int64_t *at = made->words;
    for (int n = 0; n < PyTuple_Size(dtypes); n++, at += HEAD + 2 * at[3]) {
        array_type *own = &made->arrays[n];
        own->dtype = Py_NewRef(PyTuple_GetItem(dtypes, n));
        own->code = at[0];
        own->bits = at[1];
        own->asks = at[2];
        own->ndim = at[3];
        own->shape = at + HEAD;
        own->strides = at + HEAD + own->ndim;
        own->is_row_major = is_row_major(own);
        made->any_plain |= (own->asks & ASK_PLAIN) != 0;
    }
    return true;
}

static int number_at(PyObject *tuple, Py_ssize_t n)
{
    return (int)PyLong_AsLong(PyTuple_GetItem(tuple, n));
}

/* Reads a route's slots (input numbers), updated inputs and leaves. Each input is a parameter, and
 * each result is returned. */
static void read_structure(route *made, PyObject *slots, PyObject *updated, PyObject *leaves)
{
    for (Py_ssize_t n = 0; n < PyTuple_Size(slots); n++)
        made->slots[n] = number_at(slots, n);
    for (Py_ssize_t n = 0; n < PyTuple_Size(updated); n++) {
        made->is_updated[number_at(updated, n)] = true;
        made->updated_count++;
    }
    for (Py_ssize_t n = 0; n < PyTuple_Size(leaves); n++) {
        PyObject *pair = PyTuple_GetItem(leaves, n);
        bool is_result = PyTuple_GetItem(pair, 0) == Py_True;
        made->leaves[made->leaf_count++] = (leaf){is_result, number_at(pair, 1)};
    }
}

/* add(inputs, arrays, dtypes, slots, updated, returns, leaves, new_results, new_workspace, calls) */
static PyObject *front_add(PyObject *object, PyObject *args)
{
    front *self = (front *)object;
    const char *words;
    Py_ssize_t word_bytes;
    int inputs, returns;
    PyObject *dtypes, *slots, *updated, *leaves, *results, *workspace, *calls;
    if (!PyArg_ParseTuple(args, "iy#O!O!O!iO!O!OO!:add", &inputs, &words, &word_bytes,
                          &PyTuple_Type, &dtypes, &PyTuple_Type, &slots, &PyTuple_Type, &updated,
                          &returns, &PyTuple_Type, &leaves, &PyTuple_Type, &results, &workspace,
                          &PyTuple_Type, &calls))
        return NULL;
    route *made = calloc(1, sizeof *made);
    if (!made)
        return PyErr_NoMemory();
    made->input_count = inputs;
    made->result_count = (int)PyTuple_Size(results);
    made->returns = returns;
    for (int n = 0; n < made->result_count; n++)
        made->new_results[n] = Py_NewRef(PyTuple_GetItem(results, n));
    made->new_workspace = optional(workspace);
    for (int n = 0; n < ROUTE_CALLS; n++)
        made->calls[n] = Py_NewRef(PyTuple_GetItem(calls, n));
    made->all_new = all_new(made, self->what);
    read_structure(made, slots, updated, leaves);
    if (!made->all_new || !read_arrays(made, words, (size_t)word_bytes, dtypes)) {
        route_free(made);
        return PyErr_NoMemory();
    }
    /* The caller holds a lock, so nothing else adds to this front at the same time. */
    made->next = atomic_load(&self->first);
    atomic_store_explicit(&self->first, made, memory_order_release);
    return Py_NewRef(Py_None);
}

/* forget(): drop the programs, in the child of a fork. */
static PyObject *front_forget(PyObject *object, PyObject *unused)
{
    (void)unused;
    for (route *own = atomic_load(&((front *)object)->first); own; own = own->next)
        for (int n = 0; n < MOST_DEVICES; n++)
            Py_XDECREF((PyObject *)atomic_exchange(&own->programs[n], NULL));
    return Py_NewRef(Py_None);
}

static PyMethodDef front_methods[] = {
    {"add", front_add, METH_VARARGS, "Add a route."},
    {"forget", front_forget, METH_NOARGS, "Drop the programs, in the child of a fork."},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot front_slots[] = {
    {Py_tp_traverse, (void *)front_traverse},
    {Py_tp_clear, (void *)front_clear},
    {Py_tp_dealloc, (void *)front_dealloc},
    {Py_tp_methods, front_methods},
    {0, NULL},
};

static PyType_Spec front_spec = {
    .name = "pallasc.runtime.native._native.Front",
    .basicsize = sizeof(front),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = front_slots,
};

static PyType_Slot program_slots[] = {
    {Py_tp_dealloc, (void *)program_dealloc},
    {0, NULL},
};

static PyType_Spec program_spec = {
    .name = "pallasc.runtime.native._native.Program",
    .basicsize = sizeof(program),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = program_slots,
};

static PyMethodDef functions[] = {
    {"front", make_front, METH_VARARGS, "Return the entrance of a kernel."},
    {"program", make_program, METH_VARARGS, "Return a prepared plan for fronts."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    PyModuleDef_HEAD_INIT,
    .m_name = "_native",
    .m_doc = "What repeated calls of kernels go through.",
    .m_size = -1,
    .m_methods = functions,
};

PyMODINIT_FUNC PyInit__native(void)
{
    PyObject *module = PyModule_Create(&definition);
    if (!module)
        return NULL;
    front_type = (PyTypeObject *)PyType_FromSpec(&front_spec);
    program_type = (PyTypeObject *)PyType_FromSpec(&program_spec);
    name_stream = PyUnicode_InternFromString("stream");
    name_out = PyUnicode_InternFromString("out");
    name_cuda_stream = PyUnicode_InternFromString("cuda_stream");
    if (!front_type || !program_type || !name_stream || !name_out || !name_cuda_stream ||
        PyModule_AddStringConstant(module, "SOURCES", PALLASC_EXTENSION_SOURCES) ||
        PyModule_AddIntConstant(module, "MOST_ARRAYS", MOST_ARRAYS)) {
        Py_DECREF(module);
        return NULL;
    }
#ifdef Py_GIL_DISABLED
    PyUnstable_Module_SetGIL(module, Py_MOD_GIL_NOT_USED);
#endif
    return module;
}
