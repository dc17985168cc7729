"""Call the extension with odd arrays, streams and callbacks; print what came of it as JSON.

Usage: native_odd_calls.py EXTENSION WATCHER COUNT SEED. WATCHER is `fuzz/extension.c`. Both
are compiled with sanitizers, and those are preloaded. What may not happen: a finding of them, an
exception that nobody raised, a launch of other arrays or in another stream than those of the call,
a sound call that goes to the fallback, a call that does both, arrays that are never let go.

The number of a case that fails is the last that is said.
"""

import ctypes
import gc
import importlib.machinery
import importlib.util
import json
import random
import struct
import sys
from collections import Counter

FILE, WATCHER, COUNT, SEED = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
CONTEXT, FORGET_AFTER = 0xC0, 500
CALL, INTO, OPERATOR = 0, 1, 2


class Tensor(ctypes.Structure):
    _fields_ = (
        *(("data", ctypes.c_void_p), ("type", ctypes.c_int32), ("id", ctypes.c_int32)),
        *(("ndim", ctypes.c_int32), ("code", ctypes.c_uint8), ("bits", ctypes.c_uint8)),
        *(("lanes", ctypes.c_uint16), ("shape", ctypes.c_void_p), ("strides", ctypes.c_void_p)),
        ("offset", ctypes.c_uint64),
    )


class Record(ctypes.Structure):
    _fields_ = (
        *(("object", ctypes.c_void_p), ("status", ctypes.c_int)),
        *(("raises", ctypes.c_void_p), ("tensor", Tensor)),
    )


class Asked(ctypes.Structure):
    _fields_ = (
        *((name, ctypes.c_uint64) for name in ("stream", "workspace", "count")),
        ("buffers", ctypes.c_uint64 * 32),
    )


class API(ctypes.Structure):
    _fields_ = (
        *(("major", ctypes.c_uint32), ("minor", ctypes.c_uint32)),
        *((name, ctypes.c_void_p) for name in ("previous", "allocate", "take", "give")),
        *((name, ctypes.c_void_p) for name in ("view", "stream")),
    )


loader = importlib.machinery.ExtensionFileLoader("_native", FILE)
native = importlib.util.module_from_spec(importlib.util.spec_from_loader("_native", loader))
loader.exec_module(native)
watcher = ctypes.CDLL(WATCHER)
records = (Record * 64).in_dll(watcher, "records")
logged = (Asked * 256).in_dll(watcher, "logged")
NUMBERS = ("stream_status", "context_status", "answer", "logged_count")
POINTERS = ("stream_raises", "stream_now", "context_now", "odd_stream")
now = {name: ctypes.c_int.in_dll(watcher, name) for name in NUMBERS}
now |= {name: ctypes.c_void_p.in_dll(watcher, name) for name in POINTERS}
seen = Counter()
alive = [0]
missing = object()
new_capsule = ctypes.PYFUNCTYPE(
    ctypes.py_object, ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p
)(("PyCapsule_New", ctypes.pythonapi))
NAME = b"dlpack_exchange_api"


def address(name):
    return ctypes.cast(getattr(watcher, name), ctypes.c_void_p).value


EXCHANGE = API(1, 3, None, None, None, None, address("exchange_view"), address("exchange_stream"))


class Fault(Exception):
    """What callbacks raise."""


class Array:
    """An array whose answers lie in the table of the watcher."""

    def __init__(self, place, pointer, **changes):
        alive[0] += 1
        self.place, self.shape, self.strides = place, changes.pop("shape", (4, 64)), None
        self.sizes = (ctypes.c_int64 * max(1, len(self.shape)))(*self.shape)
        self.steps = (ctypes.c_int64 * max(1, len(self.shape)))(*changes.pop("strides", (64, 1)))
        has_strides = changes.pop("has_strides", True)
        status, raises = changes.pop("status", 0), changes.pop("raises", None)
        places = ctypes.addressof(self.sizes), ctypes.addressof(self.steps) if has_strides else None
        tensor = Tensor(pointer, 2, 0, len(self.shape), 2, 32, 1, *places, 0)
        for name, value in changes.items():
            setattr(tensor, name, value)
        self.pointer = (tensor.data or 0) + tensor.offset & 2**64 - 1
        records[place] = Record(id(self), status, id(raises) if raises else None, tensor)

    def __del__(self):
        alive[0] -= 1


class Sub(Array):
    pass


class Stream:
    """A stream whose handle comes of code."""

    def __init__(self, work):
        self.work = work

    @property
    def cuda_stream(self):
        return self.work()


def raising(kind):
    def run(*arguments):
        raise kind

    return run


class Case:
    """One kernel of two inputs and one result, and calls of it."""

    def __init__(self, number):
        self.any = random.Random(f"{SEED} {number}")
        self.left, self.places, self.faults = [], iter(range(64)), 0
        self.what = self.any.choice((CALL, INTO, OPERATOR))
        self.has_workspace = self.any.random() < 0.5
        self.kept = []
        self.front = self.make_front()

    def odd(self, share=0.05):
        """Tell whether something odd happens here; it is counted."""
        is_odd = self.any.random() < share
        self.faults += is_odd
        return is_odd

    def one(self, share, sound, *others):
        """Return what is sound, now and then one of the others."""
        return self.any.choice(others) if self.odd(share) else sound

    def callback(self, work):
        """Return a callback that does something else, or raises, now and then."""

        def run(*arguments):
            choice = self.any.random()
            if choice < 0.01 and self.kept_front:
                self.kept_front.forget()
            elif choice < 0.02:
                gc.collect()
            if self.odd(0.02):
                raise self.any.choice((Fault, KeyboardInterrupt, MemoryError, AttributeError))
            if self.odd(0.02):
                value = self.any.choice((None, (), 7, "odd", False, object(), [1], (1, 2, 3)))
                return value
            return work(*arguments)

        return run

    def fallback(self, *arrays, **named):
        self.left.append((arrays, named))
        return "left"

    def make_front(self):
        """Return the function of a kernel; what `runtime/calls` gives for it is sound."""
        self.kept_front = None
        plain = self.callback(lambda array: True) if self.any.random() < 0.5 else None
        written = self.callback(lambda arrays: None) if self.any.random() < 0.5 else None
        new_in = self.callback(self.new_in) if self.any.random() < 0.7 else None
        self.new_in_is_there = new_in is not None
        capsule = new_capsule(ctypes.addressof(EXCHANGE), NAME, None)
        if self.any.random() < 0.4:
            capsule = None  # arrays are described by Python
        describe = self.callback(self.describe)
        calls = (
            self.fallback, describe, describe, written, self.callback(self.new_here), new_in,
            self.callback(lambda given: given if type(given) is int else 5), plain,
            self.callback(lambda device: now["stream_now"].value or 0),
        )  # fmt: skip
        made = native.front(self.what, ("a", "b"), missing, (Array,), capsule, calls, 0)
        self.kept_front, self.returns = made.__self__, self.any.randrange(3)
        asks = 7 | self.any.choice((0, 8)) * (plain is not None)
        calls = self.callback(self.ready), self.callback(raising(Fault))
        words = struct.pack("=8q", 2, 1, self.has_workspace, self.returns, 1, 0, 1, 2)
        asks = (asks | 16, asks | 16, asks | 16 | 32 * (self.what == INTO))
        arrays = b"".join(struct.pack("=8q", 2, 32, own, 2, 4, 64, 64, 1) for own in asks)
        new = [("result",)] if self.what != INTO else []
        new += [("workspace",)] if self.has_workspace else []
        self.kept_front.add(words + arrays, (("f32", (4, 64), (64, 1)),) * 3, tuple(new), calls)
        return made

    def ready(self, device):
        """Return the program."""
        driver = map(address, ("driver_context", "driver_device", "driver_stream"))
        numbers = address("plan_launch"), 7, device, CONTEXT, *driver, 0
        return native.program(native, *numbers)

    def describe(self, array):
        """Return what Python tells of an array, mostly as it is."""
        record = records[array.place]
        if record.status:
            raise Fault
        tensor = record.tensor
        is_float = (tensor.code, tensor.bits, tensor.lanes) == (2, 32, 1)
        steps = tuple(array.steps[: len(array.shape)]) if tensor.strides else (64, 1)
        told = [
            array.pointer, "f32" if is_float else "f64", array.shape, steps == (64, 1),
            tensor.id if tensor.type == 2 else None, True, None, steps, None,
        ]  # fmt: skip
        if self.odd(0.02):
            odd = (None, (), -1, 2**70, "f32", (4, 64, 1), ("x", 2), 1.5, False)
            told[self.any.randrange(len(told))] = self.any.choice(odd)
        if self.odd(0.02):
            return self.any.choice((tuple(told[:8]), told, None, (*told, 1)))
        return tuple(told)

    def new_here(self, *arguments):
        return self.array(next(self.places), is_sound=not self.odd(0.02))

    def new_in(self, stream, device, new):
        count = len(new) if not self.odd(0.03) else self.any.randrange(4)
        return [self.array(next(self.places)) for _ in range(count)]

    def array(self, place, is_sound=True):
        pointer = (1 << 44) + (place << 20)
        if is_sound:
            has_strides = self.any.random() < 0.5
            made = Array(place, pointer, has_strides=has_strides)
            return self.keep(made)
        one, number = self.any.choice, self.any.randrange
        changes = one([
            {"shape": tuple(number(-2, 70) for _ in range(number(40))), "strides": ()},
            {"ndim": one((0, 1, 3, -1)), "shape": (4, 64, 1), "strides": (64, 1, 1)},
            {"strides": (1, 64)},
            {"type": one((1, 0, 10, -1))},
            {"id": one((1, 31, 32, -1, 2**31 - 1))},
            {"code": number(1, 256)},
            {"bits": one((0, 8, 16, 64))},
            {"lanes": one((0, 2, 65535))},
            {"offset": one((1, 128, 2**64 - 1))},
            {"status": -1, "raises": one((None, Fault, KeyboardInterrupt))},
            {"pointer": 0},
        ])  # fmt: skip
        return self.keep(Array(place, **{"pointer": pointer, **changes}))

    def keep(self, made):
        self.kept.append(made)
        return made

    def argument(self):
        if not self.odd(0.06):
            return self.array(next(self.places))
        if self.any.random() < 0.6:
            return self.array(next(self.places), is_sound=False)
        sub = Sub(next(self.places), 1 << 44)
        return self.any.choice((None, missing, 7, "x", object(), Array, sub, []))

    def stream(self):
        if not self.odd(0.1):
            return self.any.choice((0, 1, 2, 77, 2**48))
        odd = self.any.choice((-1, 2**64, 1.5, "x", True, object(), None, Fault))
        work = self.any.choice((raising(Fault), raising(KeyboardInterrupt), lambda: odd))
        return self.any.choice((odd, Stream(work)))

    def call(self):
        """Make one call; return whether all of it was sound, and what was passed."""
        self.places, self.faults = iter(range(64)), 0
        self.kept.clear()
        self.left.clear()
        self.prepare_driver()
        arrays = [self.argument() for _ in range(self.one(0.03, 2, 0, 1, 3, 4))]
        named = {}
        if self.what == INTO:
            out = self.argument()
            if self.returns and not self.odd(0.03):
                out = (out,) if self.any.random() < 0.5 else [out]
            elif self.odd(0.02):
                out = self.any.choice(([], (out, out), [[out]], None, {"out": out}))
            if not self.odd(0.02):
                named["out"] = out
        if self.any.random() < 0.5:
            named["stream"] = self.stream()
        if self.odd(0.02):
            named[self.any.choice(("a", "c", "stream2", ""))] = self.argument()
        before = now["logged_count"].value
        try:
            result = self.front(*arrays, **named)
        except (Fault, KeyboardInterrupt, MemoryError, AttributeError) as error:
            if not self.faults:
                raise AssertionError("an exception that nobody raised") from error
            seen["exceptions"] += 1
            return
        self.check(arrays, named, result, now["logged_count"].value - before)

    def prepare_driver(self):
        for name in NUMBERS:
            now[name].value = 0
        now["stream_raises"].value = None
        now["stream_now"].value = self.any.choice((0, 9, 2**40))
        now["context_now"].value = CONTEXT
        now["odd_stream"].value = 77 if self.odd(0.02) else None
        if self.odd(0.02):
            now["context_status"].value, now["context_now"].value = self.any.choice(
                ((201, 0), (0, 1), (0, 2))
            )
        if self.odd(0.02):
            now["stream_status"].value = -1
            now["stream_raises"].value = self.any.choice((None, id(Fault), id(KeyboardInterrupt)))
        if self.odd(0.02):
            now["answer"].value = 4

    def check(self, arrays, named, result, steps):
        if self.left:
            seen["left to Python"] += 1
            needs_new_in = "stream" in named and (self.what != INTO or self.has_workspace)
            may_be_left = self.faults or (needs_new_in and not self.new_in_is_there)
            assert may_be_left, "a sound call was left to Python"
            assert steps == 0, "a call was launched and left to Python"
            assert len(self.left) == 1
            assert result == "left"
            ((passed, keywords),) = self.left
            assert all(one is other for one, other in zip(passed, arrays, strict=True))
            assert keywords.keys() == named.keys()
            return
        seen["launched"] += 1
        if self.faults:
            seen["launched though something was odd"] += 1
            return
        assert steps == 1
        launch = logged[0]
        assert launch.stream == named.get("stream", now["stream_now"].value or 0)
        out = named["out"] if self.what == INTO else result
        out = out[0] if type(out) in (tuple, list) else out
        assert launch.count == 3
        assert [*launch.buffers[:3]] == [array.pointer for array in (*arrays, out)]
        assert (launch.workspace != 0) == self.has_workspace


def main():
    for number in range(COUNT):
        try:
            case = Case(number)
            for _ in range(8):
                case.call()
            case = None
        except BaseException:
            print(f"case {number}", file=sys.stderr)
            raise
        if number % FORGET_AFTER == 0:
            gc.collect()
            assert alive[0] <= 4, f"{alive[0]} arrays are alive"
    print(json.dumps({"cases": COUNT, **seen}))


main()
