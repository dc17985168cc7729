/* `_native`: the path of a call from Python to `pallasc_launch`.
 *
 * A front is the entry point of one kernel: a builtin method that inspects the arguments of a call,
 * finds the route with the same dtypes, shapes and layouts, and launches its plan in the stream.
 * A call that the front does not handle goes to its fallback before anything is enqueued. The last
 * fallback is the Python code that handles every call; only this code reports wrong arguments.
 * runtime/calls/native_path.py creates fronts and routes.
 *
 * Arrays are inspected through DLPack's C exchange API where their type has it, and otherwise through
 * a function of Python that describes them.
 *
 * Routes of a front and programs of a route are only ever added, and each is complete when published.
 * So a call needs no lock, even on a free-threaded Python.
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
    LEGACY_STREAM = 1,  /* a handle of the context's default stream, as 0 is */
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

/* pallasc_launch_recorded of launch.c. */
typedef int (*launch_function)(const void *plan, int device, void *const *buffers, size_t count,
                               void *workspace, void *stream, void *event);

typedef struct program {
    PyObject_HEAD
    PyObject *owner; /* keeps the plan open */
    launch_function launch;
    const void *plan;
    int device;
    void *context; /* the device's primary context */
    int (*current_context)(void **context);
    int (*current_device)(int *device);
    int (*stream_context)(void *stream, void **context);
    void *event; /* recorded after launches with arrays that track their uses */
} program;

static PyTypeObject *program_type, *front_type;
static PyObject *name_stream, *name_out, *name_default_order;

static void program_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    Py_XDECREF(((program *)self)->owner);
    PyObject_Free(self);
    Py_DECREF(type);
}

/* make_program, make_front and front_add trust their arguments: only runtime/calls/native_path.py
 * calls them, and it checks the number of arrays. Plans are verified when they are opened. */

/* program(owner, launch, plan, device, context, cuCtxGetCurrent, cuCtxGetDevice, cuStreamGetCtx,
 * event) */
static PyObject *make_program(PyObject *module, PyObject *args)
{
    PyObject *owner;
    unsigned long long launch, plan, context, current, ask_device, ask_stream, event;
    int device;
    (void)module;
    if (!PyArg_ParseTuple(args, "OKKiKKKKK:program", &owner, &launch, &plan, &device, &context,
                          &current, &ask_device, &ask_stream, &event))
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
    self->stream_context = (int (*)(void *, void **))(uintptr_t)ask_stream;
    self->event = (void *)(uintptr_t)event;
    return (PyObject *)self;
}

/* ---- routes */

/* Bits of an array's `asks`. Unchecked arrays may have any dtype, shape or strides. */
enum {
    ASK_DTYPE = 1,
    ASK_SHAPE = 2,
    ASK_STRIDES = 4,
    ASK_PLAIN = 8,
    IS_ROW_MAJOR = 16,
    IS_WRITTEN = 32 /* the kernel writes into the caller's array */
};

/* runtime/calls/native_path.py packs the words of array_type and route_head. */
typedef struct array_type {
    int64_t code, bits, asks, ndim;
    int64_t shape[]; /* then the strides */
} array_type;

enum { RETURN_LEAF = 0, RETURN_TUPLE = 1, RETURN_LIST = 2, RETURN_NONE = 3 };

typedef struct route_head {
    int64_t input_count, result_count, has_workspace, returns, leaf_count;
    int64_t slots[]; /* the array of each parameter, -1 if it must be None; then of each leaf */
} route_head;

/* Python functions that a route calls: READY returns a program, REFUSE raises an error. */
enum { READY, REFUSE, ROUTE_CALLS };

typedef struct route {
    struct route *next;
    PyObject *owned; /* the arguments of front_add, which keep the following alive */
    const route_head *head;
    const int64_t *leaves;
    const array_type *arrays[MOST_ARRAYS]; /* inputs, then results */
    PyObject *types; /* a tuple with dtype, shape and strides of each array */
    PyObject *new;   /* a tuple with the arguments of each allocation: results, then workspace */
    PyObject *calls[ROUTE_CALLS];
    int array_count;
    _Atomic(program *) programs[MOST_DEVICES];
} route;

enum { FRONT_CALL = 0, FRONT_INTO = 1, FRONT_OPERATOR = 2 };

/* Python functions that a front calls; see `Access` in runtime/matching/arrays.py. */
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
    PyObject *owned; /* the arguments of make_front, which keep the following alive */
    int what;
    int slot_count, kind_count;
    PyObject *names; /* a tuple of interned names; None for parameters without a name */
    PyObject *kinds; /* a tuple of types */
    PyObject *missing;
    PyObject *calls[FRONT_CALLS]; /* NULL in place of None */
    const exchange_api *api; /* NULL if `describe` inspects the arrays */
    int (*current_stream)(int32_t device, void **stream); /* NULL to use the API's function */
    _Atomic(route *) first;
    _Atomic(route *) last; /* the route of the last call */
} front;

static void forget_programs(route *self)
{
    for (int n = 0; n < MOST_DEVICES; n++)
        Py_XDECREF((PyObject *)atomic_exchange(&self->programs[n], NULL));
}

static int front_traverse(PyObject *object, visitproc visit, void *arg)
{
    front *self = (front *)object;
    Py_VISIT(Py_TYPE(object));
    Py_VISIT(self->owned);
    for (route *own = atomic_load(&self->first); own; own = own->next)
        Py_VISIT(own->owned);
    return 0;
}

static int front_clear(PyObject *object)
{
    front *self = (front *)object;
    atomic_store(&self->last, NULL);
    route *own = atomic_exchange(&self->first, NULL);
    while (own) {
        route *next = own->next;
        forget_programs(own);
        Py_DECREF(own->owned);
        free(own);
        own = next;
    }
    self->slot_count = self->kind_count = 0;
    memset(self->calls, 0, sizeof self->calls);
    Py_CLEAR(self->owned);
    return 0;
}

static void front_dealloc(PyObject *object)
{
    PyTypeObject *type = Py_TYPE(object);
    PyObject_GC_UnTrack(object);
    front_clear(object);
    PyObject_GC_Del(object);
    Py_DECREF(type);
}

/* ---- one call */

/* Clears an exception, which Python's path will raise again; but not an interrupt. */
static void forget_error(void)
{
    if (PyErr_ExceptionMatches(PyExc_Exception))
        PyErr_Clear();
}

/* Clears an exception like forget_error, and returns false. */
static bool failed(void)
{
    forget_error();
    return false;
}

/* An array, as far as it has been inspected: through the exchange API, or described by Python. */
typedef struct seen {
    PyObject *described; /* an `ArrayView` of runtime/matching/arrays.py, owned; or NULL */
    dl_tensor tensor;    /* valid if `described` is NULL */
    uint64_t address;
    int device;
} seen;

/* A call, as far as it has been inspected. */
typedef struct call {
    front *self;
    PyObject *slots[MOST_ARRAYS];    /* by parameter, NULL if not given */
    const seen *views[MOST_ARRAYS];  /* by parameter, NULL if not inspected yet */
    PyObject *out, *stream;
    PyObject *items;                 /* copy of an `out` that is a list and may change meanwhile */
    PyObject *arrays[MOST_ARRAYS];   /* inputs, results, workspace */
    const seen *seen[MOST_ARRAYS];   /* the inspected `arrays` */
    int first_new, end_new;          /* the arrays that the call has allocated */
    bool is_tracked;                 /* an array tracks its uses */
    seen inspected[2 * MOST_ARRAYS]; /* memory of the views */
    int inspected_count;
} call;

/* Fields of an `ArrayView`. */
enum { POINTER, DTYPE, SHAPE, IS_CONTIGUOUS, DEVICE, IS_WRITABLE, STREAM, STRIDES, USES, FIELDS };

static PyObject *field(const seen *array, int number)
{
    return PyTuple_GetItem(array->described, number);
}

/* Lets Python describe an array; false if Python cannot, or if the array is not on a GPU. */
static bool describe(call *own, PyObject *array, seen *out)
{
    const front *self = own->self;
    out->described = PyObject_CallFunctionObjArgs(
        own->stream ? self->calls[DESCRIBE] : self->calls[DESCRIBE_IN_ORDER], array, NULL);
    if (!out->described)
        return failed();
    if (!PyTuple_Check(out->described) || PyTuple_Size(out->described) != FIELDS ||
        field(out, DEVICE) == Py_None)
        return false;
    own->is_tracked |= field(out, USES) != Py_None;
    out->device = (int)PyLong_AsLong(field(out, DEVICE));
    out->address = PyLong_AsUnsignedLongLong(field(out, POINTER));
    return PyErr_Occurred() ? failed() : true;
}

/* Inspects an argument; NULL if it is not an array of the front's framework on a GPU. */
static const seen *view(call *own, PyObject *array)
{
    const front *self = own->self;
    PyObject *kind = (PyObject *)Py_TYPE(array);
    int n = 0;
    while (n < self->kind_count && PyTuple_GetItem(self->kinds, n) != kind)
        n++;
    if (n == self->kind_count)
        return NULL;
    seen *out = &own->inspected[own->inspected_count++];
    out->described = NULL;
    if (!self->api)
        return describe(own, array, out) ? out : NULL;
    if (self->api->view(array, &out->tensor)) {
        forget_error();
        return NULL;
    }
    out->device = out->tensor.device_id;
    out->address = (uint64_t)(uintptr_t)out->tensor.data + out->tensor.byte_offset;
    return out->tensor.device_type == DLPACK_CUDA ? out : NULL;
}

static bool equals(PyObject *one, PyObject *other)
{
    int is_equal = PyObject_RichCompareBool(one, other, Py_EQ);
    return is_equal < 0 ? failed() : is_equal;
}

/* Compares a described array with dtype, shape and strides of a type. */
static bool is_described_as(const array_type *type, PyObject *own, const seen *array)
{
    if (type->asks & ASK_DTYPE && !equals(field(array, DTYPE), PyTuple_GetItem(own, 0)))
        return false;
    if (type->asks & ASK_SHAPE && !equals(field(array, SHAPE), PyTuple_GetItem(own, 1)))
        return false;
    if (!(type->asks & ASK_STRIDES))
        return true;
    bool is_row_major = type->asks & IS_ROW_MAJOR;
    bool is_contiguous = field(array, IS_CONTIGUOUS) == Py_True;
    if (is_row_major || is_contiguous)
        return is_row_major && is_contiguous;
    return equals(field(array, STRIDES), PyTuple_GetItem(own, 2));
}

static bool is_of_type(const array_type *type, const dl_tensor *array)
{
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
    if (!array->strides)
        return type->asks & IS_ROW_MAJOR;
    const int64_t *strides = type->shape + type->ndim;
    for (int64_t n = 0; n < type->ndim; n++)
        if (array->strides[n] != strides[n] && type->shape[n] != 1)
            return false;
    return true;
}

enum { FITS, DIFFERS, UNUSUAL };

/* Returns whether an array's memory has its actual values; see `is_plain` in matching/arrays.py. */
static int is_plain(const front *self, PyObject *array)
{
    PyObject *found = PyObject_CallFunctionObjArgs(self->calls[IS_PLAIN], array, NULL);
    if (!found)
        forget_error();
    Py_XDECREF(found);
    return found == Py_True ? FITS : UNUSUAL;
}

/* Adds an array to the call; returns whether the route takes it. */
static int take(call *own, const route *way, int64_t number, PyObject *array, const seen *viewed)
{
    const array_type *type = way->arrays[number];
    bool fits = viewed->described
                    ? is_described_as(type, PyTuple_GetItem(way->types, number), viewed)
                    : is_of_type(type, &viewed->tensor);
    own->arrays[number] = array;
    own->seen[number] = viewed;
    return !fits ? DIFFERS : type->asks & ASK_PLAIN ? is_plain(own->self, array) : FITS;
}

/* Assigns the arguments to parameters; false if some do not match. */
static bool take_arguments(call *own, PyObject *const *args, Py_ssize_t count, PyObject *names)
{
    const front *self = own->self;
    own->out = own->stream = own->items = NULL;
    own->first_new = own->end_new = own->inspected_count = 0;
    own->is_tracked = false;
    if (count > self->slot_count)
        return false;
    for (int n = 0; n < self->slot_count; n++) {
        own->slots[n] = n < count && args[n] != self->missing ? args[n] : NULL;
        own->views[n] = NULL;
    }
    Py_ssize_t named = names ? PyTuple_Size(names) : 0;
    for (Py_ssize_t n = 0; n < named; n++) {
        PyObject *name = PyTuple_GetItem(names, n), *value = args[count + n];
        if (name == name_stream) {
            own->stream = value == Py_None ? NULL : value;
        } else if (name == name_out && self->what == FRONT_INTO) {
            own->out = value == self->missing ? NULL : value;
        } else {
            int slot = (int)count; /* parameters passed by position may not be passed again */
            while (slot < self->slot_count && PyTuple_GetItem(self->names, slot) != name)
                slot++;
            if (slot >= self->slot_count)
                return false;
            own->slots[slot] = value == self->missing ? NULL : value;
        }
    }
    return true;
}

/* Returns whether the inputs of a call match a route. */
static int match_inputs(call *own, const route *way)
{
    for (int n = 0; n < own->self->slot_count; n++) {
        PyObject *array = own->slots[n];
        int64_t number = way->head->slots[n];
        bool is_given = array && array != Py_None;
        if (is_given != (number >= 0))
            return DIFFERS; /* another route may match */
        if (!is_given)
            continue;
        if (!own->views[n] && !(own->views[n] = view(own, array)))
            return UNUSUAL;
        int found = take(own, way, number, array, own->views[n]);
        if (found != FITS)
            return found;
    }
    return FITS;
}

static int device_of_inputs(const call *own, const route *way)
{
    int device = way->head->input_count ? own->seen[0]->device : -1;
    for (int64_t n = 1; n < way->head->input_count; n++)
        if (own->seen[n]->device != device)
            return -1;
    return device;
}

/* Unpacks `out`; false if it does not have the structure of a route's outputs. */
static bool take_out(call *own, const route *way)
{
    PyObject *items = own->out;
    if (way->head->returns != RETURN_LEAF) {
        if (own->out && PyList_CheckExact(own->out))
            items = own->items = PyList_AsTuple(own->out);
        if (own->out && !items)
            return failed();
        if (!items || !PyTuple_CheckExact(items) || PyTuple_Size(items) != way->head->leaf_count)
            return false;
    }
    for (int n = (int)way->head->input_count; n < way->array_count; n++)
        own->arrays[n] = NULL;
    for (int64_t n = 0; n < way->head->leaf_count; n++) {
        PyObject **array = &own->arrays[way->leaves[n]];
        if (!items) /* `out` may be omitted if the result is an input */
            return *array != NULL;
        PyObject *item = way->head->returns == RETURN_LEAF ? items : PyTuple_GetItem(items, n);
        if (!*array)
            *array = item;
        if (*array != item)
            return false;
    }
    return true;
}

/* Inspects an array that was given for a result, or allocated; NULL if it is not on the device. */
static const seen *view_on(call *own, PyObject *array, int device)
{
    const seen *viewed = view(own, array);
    return viewed && viewed->device == device ? viewed : NULL;
}

static bool take_results(call *own, const route *way, int device)
{
    if (!take_out(own, way))
        return false;
    for (int n = (int)way->head->input_count; n < way->array_count; n++) {
        const seen *viewed = view_on(own, own->arrays[n], device);
        if (!viewed || take(own, way, n, own->arrays[n], viewed) != FITS)
            return false;
    }
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

/* Returns the program for a device, which Python creates on first use; NULL if Python must handle
 * the call. A new reference, because a fork during the call makes fronts drop their programs. */
static program *program_on(route *way, int device)
{
    if (device < 0 || device >= MOST_DEVICES)
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

/* Reads a stream's handle and drops the reference; `handle` is NULL if getting it failed. */
static bool read_handle(PyObject *handle, void **stream)
{
    if (handle) {
        *stream = (void *)(uintptr_t)PyLong_AsUnsignedLongLong(handle);
        Py_DECREF(handle);
    }
    return PyErr_Occurred() ? failed() : true;
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

/* Returns false for a stream of another context, which Python reports. */
static bool find_stream(const call *own, const program *ready, void **stream)
{
    const front *self = own->self;
    void *context = NULL;
    if (own->stream) {
        PyObject *handle = PyObject_CallFunctionObjArgs(self->calls[STREAM_HANDLE], own->stream, NULL);
        if (!read_handle(handle, stream))
            return false;
    } else if (!current_stream(self, ready->device, stream)) {
        return false;
    }
    return (uintptr_t)*stream <= DEFAULT_STREAMS ||
           (!ready->stream_context(*stream, &context) && context == ready->context);
}

/* Allocates results and workspace for work in a stream. */
static bool allocate(call *own, const route *way, void *stream, int device, bool is_elsewhere)
{
    const front *self = own->self;
    Py_ssize_t count = PyTuple_Size(way->new);
    void *current = NULL;
    PyObject *made = NULL;
    if (!count)
        return true;
    if (is_elsewhere ||
        (own->stream && !(current_stream(self, device, &current) && current == stream))) {
        if (!self->calls[NEW_IN] || PyErr_Occurred())
            return false;
        made = PyObject_CallFunction(self->calls[NEW_IN], "KiO",
                                     (unsigned long long)(uintptr_t)stream, device, way->new);
        if (!made)
            return failed();
    }
    bool is_placed = true;
    for (Py_ssize_t n = 0; is_placed && n < count; n++) {
        int number = own->first_new + (int)n;
        own->arrays[number] =
            made ? PySequence_GetItem(made, n)
                 : PyObject_CallObject(self->calls[NEW_HERE], PyTuple_GetItem(way->new, n));
        if (!own->arrays[number]) {
            is_placed = failed();
            break;
        }
        own->end_new = number + 1;
        own->seen[number] = view_on(own, own->arrays[number], device);
        is_placed = own->seen[number] != NULL;
    }
    Py_XDECREF(made);
    return is_placed;
}

/* Reports written arrays to the framework; -1 with an exception set on failure. */
static int mark_written(const call *own, const route *way)
{
    const front *self = own->self;
    Py_ssize_t count = 0;
    for (int n = 0; self->calls[MARK_WRITTEN] && n < way->array_count; n++)
        count += (way->arrays[n]->asks & IS_WRITTEN) != 0;
    if (!count)
        return 0;
    PyObject *written = PyTuple_New(count);
    if (!written)
        return -1;
    for (int n = way->array_count; n--;)
        if (way->arrays[n]->asks & IS_WRITTEN)
            PyTuple_SetItem(written, --count, Py_NewRef(own->arrays[n]));
    PyObject *done = PyObject_CallFunctionObjArgs(self->calls[MARK_WRITTEN], written, NULL);
    Py_DECREF(written);
    Py_XDECREF(done);
    return done ? 0 : -1;
}

static PyObject *returned(const call *own, const route *way)
{
    Py_ssize_t count = way->head->leaf_count;
    if (own->self->what == FRONT_INTO && own->out)
        return Py_NewRef(own->out);
    if (way->head->returns == RETURN_NONE)
        return Py_NewRef(Py_None);
    if (way->head->returns == RETURN_LEAF)
        return Py_NewRef(own->arrays[way->leaves[0]]);
    bool is_list = way->head->returns == RETURN_LIST;
    PyObject *made = is_list ? PyList_New(count) : PyTuple_New(count);
    for (Py_ssize_t n = 0; made && n < count; n++) {
        PyObject *array = Py_NewRef(own->arrays[way->leaves[n]]);
        if (is_list)
            PyList_SetItem(made, n, array);
        else
            PyTuple_SetItem(made, n, array);
    }
    return made;
}

/* Outcome of a call: DONE, with a result or an exception; or NOT_DONE, Python must handle the call. */
enum { DONE, NOT_DONE };

/* Returns whether an array's earlier uses are in order with a launch in the default stream. */
static bool is_in_order(PyObject *uses, bool is_written)
{
    PyObject *order = PyObject_GetAttr(uses, name_default_order);
    long found = order ? PyLong_AsLong(order) : 0;
    Py_XDECREF(order);
    return PyErr_Occurred() ? failed() : found > is_written;
}

/* Returns whether the caller's arrays may be written, and whether a launch in the stream needs no
 * order with other work: the arrays name only the default stream, and are in order with it. If not,
 * Python launches, so call this before anything is allocated. */
static bool can_launch(const call *own, const route *way, void *stream)
{
    bool has_stream = own->stream || own->self->calls[STREAM_OF];
    for (int n = 0; !own->self->api && n < own->first_new; n++) {
        PyObject *producer = field(own->seen[n], STREAM), *uses = field(own->seen[n], USES);
        bool is_written = way->arrays[n]->asks & IS_WRITTEN;
        if (is_written && field(own->seen[n], IS_WRITABLE) != Py_True)
            return false;
        if (uses != Py_None &&
            ((uintptr_t)stream > LEGACY_STREAM || !is_in_order(uses, is_written)))
            return false;
        if (producer == Py_None)
            continue;
        if (has_stream || PyLong_AsUnsignedLongLong(producer) > LEGACY_STREAM)
            return PyErr_Occurred() ? failed() : false;
    }
    return true;
}

/* Launches in a stream; sets `result` to the call's result, or to NULL with an exception set. */
static int enqueue(call *own, route *way, program *ready, void *stream, PyObject **result)
{
    int status;
    void *buffers[MOST_ARRAYS];
    for (int n = 0; n < way->array_count; n++)
        buffers[n] = (void *)(uintptr_t)own->seen[n]->address;
    void *workspace = way->head->has_workspace
                          ? (void *)(uintptr_t)own->seen[way->array_count]->address
                          : NULL;
    Py_BEGIN_ALLOW_THREADS
    status = ready->launch(ready->plan, ready->device, buffers, (size_t)way->array_count, workspace,
                           stream, own->is_tracked ? ready->event : NULL);
    Py_END_ALLOW_THREADS
    /* Wrong addresses are found before anything is enqueued. */
    bool is_noted = status == PALLASC_ERROR_ARGUMENT || !mark_written(own, way);
    if (!status) {
        *result = is_noted ? returned(own, way) : NULL;
        return DONE;
    }
    if (!is_noted)
        forget_error(); /* the launch's failure is reported, unless an interrupt ends the program */
    /* `refuse` raises the exception for the failure, which the library keeps for each thread. */
    if (!PyErr_Occurred())
        *result = PyObject_CallFunction(way->calls[REFUSE], "i", status);
    return DONE;
}

/* Launches on a device that has a program. */
static int launch_on(call *own, route *way, program *ready, int device, PyObject **result)
{
    bool takes_out = own->self->what == FRONT_INTO;
    void *context = NULL, *stream = NULL;
    int current = -1;
    if (ready->current_context(&context))
        return NOT_DONE;
    /* Python rejects launches if another context on this device is current. */
    bool is_elsewhere = context && context != ready->context;
    if (is_elsewhere && (ready->current_device(&current) || current == device))
        return NOT_DONE;
    if (takes_out && !take_results(own, way, device))
        return NOT_DONE;
    own->first_new = own->end_new = takes_out ? way->array_count : (int)way->head->input_count;
    if (!find_stream(own, ready, &stream) || !can_launch(own, way, stream) ||
        !allocate(own, way, stream, device, is_elsewhere))
        return NOT_DONE;
    return enqueue(own, way, ready, stream, result);
}

static int launch(call *own, PyObject **result)
{
    route *way = choose(own);
    if (!way)
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
    for (Py_ssize_t n = 0; n < count; n++)
        PyTuple_SetItem(passed, n, Py_NewRef(args[n]));
    for (Py_ssize_t n = 0; n < named; n++)
        if (PyDict_SetItem(keywords, PyTuple_GetItem(names, n), args[count + n]))
            goto end;
    done = PyObject_Call(self->calls[FALLBACK], passed, keywords);
end:
    Py_XDECREF(passed);
    Py_XDECREF(keywords);
    return done;
}

/* Drops the references that a call has created. */
static void forget_call(call *own)
{
    Py_XDECREF(own->items);
    for (int n = own->first_new; n < own->end_new; n++)
        Py_XDECREF(own->arrays[n]);
    for (int n = 0; !own->self->api && n < own->inspected_count; n++)
        Py_XDECREF(own->inspected[n].described);
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
    PyErr_Clear(); /* set if it is another kind of capsule */
    return api && api->view && api->current_stream ? api : NULL;
}

/* front(what, names, missing, kinds, capsule, calls, stream_address): returns a builtin method whose
 * __self__ is the front. */
static PyObject *make_front(PyObject *module, PyObject *args)
{
    PyObject *capsule, *calls;
    unsigned long long current;
    (void)module;
    allocfunc allocate_front = (allocfunc)PyType_GetSlot(front_type, Py_tp_alloc);
    front *self = (front *)allocate_front(front_type, 0); /* all fields are zero */
    if (!self)
        return NULL;
    if (!PyArg_ParseTuple(args, "iO!OO!OO!K:front", &self->what, &PyTuple_Type, &self->names,
                          &self->missing, &PyTuple_Type, &self->kinds, &capsule, &PyTuple_Type,
                          &calls, &current)) {
        Py_DECREF(self);
        return NULL;
    }
    self->owned = Py_NewRef(args);
    self->slot_count = (int)PyTuple_Size(self->names);
    self->kind_count = (int)PyTuple_Size(self->kinds);
    self->api = capsule == Py_None ? NULL : find_api(capsule);
    self->current_stream = (int (*)(int32_t, void **))(uintptr_t)current;
    for (int n = 0; n < FRONT_CALLS; n++) {
        PyObject *function = PyTuple_GetItem(calls, n);
        self->calls[n] = function == Py_None ? NULL : function;
    }
    PyObject *made = PyCFunction_NewEx(&entrances[self->what], (PyObject *)self, NULL);
    Py_DECREF(self);
    return made;
}

/* add(words, types, new, calls). The words are a route_head, then an array_type for each array. */
static PyObject *front_add(PyObject *object, PyObject *args)
{
    front *self = (front *)object;
    PyObject *words, *calls;
    route *made = calloc(1, sizeof *made);
    if (!made)
        return PyErr_NoMemory();
    if (!PyArg_ParseTuple(args, "SO!O!O!:add", &words, &PyTuple_Type, &made->types, &PyTuple_Type,
                          &made->new, &PyTuple_Type, &calls)) {
        free(made);
        return NULL;
    }
    made->owned = Py_NewRef(args);
    made->head = (const void *)PyBytes_AsString(words); /* at a multiple of 8 */
    made->leaves = made->head->slots + self->slot_count;
    made->array_count = (int)(made->head->input_count + made->head->result_count);
    const int64_t *at = made->leaves + made->head->leaf_count;
    for (int n = 0; n < made->array_count; n++) {
        made->arrays[n] = (const array_type *)at;
        at = made->arrays[n]->shape + 2 * made->arrays[n]->ndim;
    }
    for (int n = 0; n < ROUTE_CALLS; n++)
        made->calls[n] = PyTuple_GetItem(calls, n);
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
        forget_programs(own);
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
    .m_doc = "The C code that repeated calls of kernels go through.",
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
    name_default_order = PyUnicode_InternFromString("default_order");
    if (!front_type || !program_type || !name_stream || !name_out || !name_default_order ||
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
