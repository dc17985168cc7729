"""Call sites of a program of XLA, made by hand: `fake_xla.c` drives the handlers."""

import ctypes
import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import made
import native_build
from compiled import compiled

SOURCE = Path(__file__).with_suffix(".c")
PREPARE, EXECUTE = 1, 3
DTYPES = {"f32": 11, "f16": 10, "u8": 6, "i4": 21}


class _Buffer(ctypes.Structure):
    _fields_ = (
        ("dtype", ctypes.c_int),
        ("data", ctypes.c_void_p),
        ("rank", ctypes.c_int64),
        ("dims", ctypes.c_int64 * 8),
    )


@dataclass(frozen=True)
class Refused:
    """What a handler answered: a code of absl, and words."""

    code: int
    message: str


@functools.cache
def build() -> ctypes.CDLL:
    """Return XLA's part."""
    flags = (*native_build.FLAGS, "-D_POSIX_C_SOURCE=200809L", f"-I{native_build.SOURCES}")
    headers = native_build.SOURCES.glob("*.h")
    library = compiled("fake_xla.so", flags, [SOURCE], link=["-shared"], watched=headers)
    loaded = ctypes.CDLL(str(library))
    for name in ("describe", "instantiate", "run"):
        getattr(loaded, f"fake_{name}").restype = ctypes.c_char_p
    return loaded


class Site:
    """One call of a program.

    Args:
        functions: the C library.
    """

    def __init__(self, functions: Any) -> None:
        self._xla = build()
        self._functions = functions

    def handler(self, stage: str) -> Any:
        """Return the address of a handler."""
        return getattr(self._functions, f"pallasc_xla_cuda_{stage}")

    def describe(self, stage: str, api_major: int = 0) -> tuple[list[int], int, Refused | None]:
        """Return version and traits that a handler says it has."""
        version, traits, code = (ctypes.c_int * 2)(), ctypes.c_int(), ctypes.c_int()
        answer = self._xla.fake_describe(
            self.handler(stage), api_major, version, ctypes.byref(traits), ctypes.byref(code)
        )
        return list(version), traits.value, _refused(answer, code)

    def instantiate(
        self, plans: Mapping[str, bytes], *, kernel: str = "made", origin: str = ""
    ) -> Refused | None:
        """Begin with these plans."""
        count, code = len(plans), ctypes.c_int()
        keys = (ctypes.c_char_p * count)(*(key.encode() for key in plans))
        data = (ctypes.c_char_p * count)(*plans.values())
        sizes = (ctypes.c_size_t * count)(*map(len, plans.values()))
        answer = self._xla.fake_instantiate(
            self.handler("instantiate"), kernel.encode(), origin.encode(), count, keys, data, sizes,
            ctypes.byref(code),
        )  # fmt: skip
        return _refused(answer, code)

    def run(
        self,
        stage: int,
        arguments: Sequence[made.Tensor] = (),
        results: Sequence[made.Tensor] = (),
        *,
        device: int = 0,
        stream: int = 0,
    ) -> Refused | None:
        """Run a stage."""
        code = ctypes.c_int()
        name = {PREPARE: "prepare", EXECUTE: "execute"}[stage]
        answer = self._xla.fake_run(
            self.handler(name), stage, device, ctypes.c_void_p(stream), len(arguments),
            _buffers(arguments), len(results), _buffers(results), ctypes.byref(code),
        )  # fmt: skip
        return _refused(answer, code)

    def end(self) -> int:
        """Let go of it; return how many errors were not destroyed."""
        return int(self._xla.fake_end())


def _refused(answer: bytes | None, code: ctypes.c_int) -> Refused | None:
    return None if answer is None else Refused(code.value, answer.decode())


def _buffers(tensors: Sequence[made.Tensor]) -> Any:
    rows = (_Buffer * max(1, len(tensors)))()
    for row, tensor in zip(rows, tensors, strict=False):
        row.dtype, row.data, row.rank = DTYPES[tensor.dtype], tensor.pointer, len(tensor.shape)
        row.dims[: len(tensor.shape)] = tensor.shape
    return rows
