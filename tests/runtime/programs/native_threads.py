"""Launch through the extension in many threads of any Python; print what came of it as JSON.

Usage: native_threads.py EXTENSION THREADS LAUNCHES. Neither pallasc nor cuda-bindings has to be
installed: arrays, their exchange API and the launch function are made here, with ctypes.
"""

import ctypes
import importlib.machinery
import importlib.util
import json
import struct
import sys
import threading

FILE, THREADS, LAUNCHES = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
CONTEXT, PLAN, STREAM = 0xC0, 0xF0, 7


class DLTensor(ctypes.Structure):
    _fields_ = (
        *(("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32)),
        *(("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8)),
        *(("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p)),
        ("offset", ctypes.c_uint64),
    )


SHAPE = (ctypes.c_int64 * 2)(4, 64)
STRIDES = (ctypes.c_int64 * 2)(64, 1)


class Array:
    def __init__(self, address):
        self.address = address


def view(array, out):
    seen = out.contents
    seen.data, seen.type, seen.id, seen.ndim, seen.offset = array.address, 2, 0, 2, 0
    seen.code, seen.bits, seen.lanes = 2, 32, 1
    seen.shape, seen.strides = ctypes.addressof(SHAPE), ctypes.addressof(STRIDES)
    return 0


def current_stream(kind, device, out):
    out[0] = STREAM
    return 0


View = ctypes.PYFUNCTYPE(ctypes.c_int, ctypes.py_object, ctypes.POINTER(DLTensor))
Stream = ctypes.PYFUNCTYPE(
    ctypes.c_int, ctypes.c_int32, ctypes.c_int32, ctypes.POINTER(ctypes.c_void_p)
)


class Exchange(ctypes.Structure):
    _fields_ = (
        *(("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)),
        *((name, ctypes.c_void_p) for name in ("previous", "allocate", "take", "give")),
        *(("view", View), ("stream", Stream)),
    )


API = Exchange(1, 3, None, None, None, None, View(view), Stream(current_stream))
NAME = b"dlpack_exchange_api"
CAPSULE = ctypes.PYFUNCTYPE(ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p)(
    ("PyCapsule_New", ctypes.pythonapi)
)(ctypes.addressof(API), NAME, None)

seen = {}


@ctypes.CFUNCTYPE(
    *(ctypes.c_int, ctypes.c_void_p, ctypes.c_int, ctypes.POINTER(ctypes.c_void_p)),
    *(ctypes.c_size_t, ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p),
)
def launch(plan, device, buffers, count, workspace, stream, event):
    passed = tuple(buffers[n] for n in range(count))
    seen.setdefault(threading.get_ident(), []).append((plan, stream, passed))
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_void_p))
def current_context(out):
    out[0] = CONTEXT
    return 0


@ctypes.CFUNCTYPE(ctypes.c_int, ctypes.c_void_p, ctypes.POINTER(ctypes.c_void_p))
def stream_context(stream, out):
    out[0] = CONTEXT
    return 0


def address(function):
    return ctypes.cast(function, ctypes.c_void_p).value


def load():
    loader = importlib.machinery.ExtensionFileLoader("_native", FILE)
    spec = importlib.util.spec_from_loader("_native", loader)
    module = importlib.util.module_from_spec(spec)
    loader.exec_module(module)
    return module


native = load()
missing = object()
left = []


def ready(device):
    return native.program(
        launch,
        address(launch),
        PLAN,
        device,
        CONTEXT,
        address(current_context),
        address(launch),
        address(stream_context),
        0,
    )


def fallback(*arrays, **named):
    left.append(named)


CALLS = (fallback, None, None, None, None, None, int, None, None)
into = native.front(1, ("a", "b"), missing, (Array,), CAPSULE, CALLS, 0)
words = struct.pack("=8q", 2, 1, 0, 0, 1, 0, 1, 2)
words += struct.pack("=8q", 2, 32, 23, 2, 4, 64, 64, 1) * 3
types = (("f32", (4, 64), (64, 1)),) * 3
into.__self__.add(words, types, (), (ready, None))

GATE = threading.Barrier(THREADS)
wrong = []


def work(number):
    base = (number + 1) << 32
    arrays = [Array(base + 1024 * n) for n in range(64)]
    GATE.wait()
    mine = []
    for turn in range(LAUNCHES):
        a, b, out = (arrays[(turn * 3 + n) % 64] for n in range(3))
        if into(a, b, out=out) is not out:
            wrong.append(turn)
        mine.append((PLAN, STREAM, (a.address, b.address, out.address)))
    if seen.get(threading.get_ident()) != mine:
        wrong.append(number)


running = [threading.Thread(target=work, args=(number,)) for number in range(THREADS)]
for one in running:
    one.start()
for one in running:
    one.join()
is_locked = getattr(sys, "_is_gil_enabled", lambda: True)()
done = sum(map(len, seen.values()))
print(json.dumps({"launches": done, "wrong": wrong, "left": len(left), "GIL": is_locked}))
