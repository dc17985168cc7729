"""Calls that go through the extension: what it takes, what it leaves to Python."""

import gc
from dataclasses import replace
from pathlib import Path
from types import BuiltinFunctionType
from typing import Any

import exchange
import made
import pytest

from pallasc.errors import ArgumentError
from pallasc.runtime.calls import native_path
from pallasc.runtime.device.devices import active, get_device
from pallasc.runtime.kernel import Kernel
from pallasc.runtime.native import library as loading

ROOT = Path(__file__).resolve().parents[2]
TEXT = "f32[4, 64]"
TIMES = 2  # one through Python, which makes the fronts, and one through them

pytestmark = pytest.mark.usefixtures("native")


@pytest.fixture
def current(runtime: Any, framework: Any) -> Any:
    """Give the framework, with the context of GPU 0 current, as in programs that use one."""
    with active(get_device(0)):
        yield framework


def _is_native(function: Any) -> bool:
    return isinstance(function, BuiltinFunctionType)


_left: list[str] = []


@pytest.fixture(autouse=True)
def left(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Note the calls that reach Python."""
    _left.clear()
    start = Kernel._start

    def counting(self: Any, out: Any, allocates: bool, /, *arrays: Any, **named: Any) -> Any:
        _left.append("call" if allocates else "into")
        return start(self, out, allocates, *arrays, **named)

    monkeypatch.setattr(Kernel, "_start", counting)
    return _left


def _fallbacks(kernel: Any) -> list[str]:
    """Return the list of calls that fronts leave to Python from now on."""
    assert _is_native(kernel.launch)
    _left.clear()
    return _left


def _warm(kernel: Any, *tensors: Any, out: Any) -> list[str]:
    """Launch often enough that later calls go through C; return the list of those that do not."""
    for _ in range(TIMES):
        kernel.into(*tensors, out=out)
    assert _is_native(vars(kernel)["into"])
    assert _is_native(kernel.launch)
    return _fallbacks(kernel)


def _tensors(framework: Any, count: int, text: str = TEXT) -> list[Any]:
    return [framework.tensor(text) for _ in range(count)]


def test_calls_go_through_c(current: Any, adds: Any) -> None:
    a, b, out = _tensors(current, 3)
    a.numpy()[...], b.numpy()[...] = 2, 3
    left = _warm(adds, a, b, out=out)
    out.numpy()[...] = 0
    assert adds.into(a, b, out=out) is out
    assert (out.numpy() == 5).all()
    result = adds(a, b)
    assert (result.numpy() == 5).all()
    assert (adds(b=b, a=a).numpy() == 5).all()
    assert (adds(a, b=b, stream=None).numpy() == 5).all()
    assert left == []


@pytest.mark.parametrize("kind", [tuple, list])
def test_several_results_lie_in_the_structure_that_was_compiled(current: Any, kind: type) -> None:
    numbers = [0, 1]
    tree = {"tuple": numbers} if kind is tuple else numbers
    artifact = made.artifact(made.launch("three", 0, 1, 2), outputs=[TEXT, "b"], output_tree=tree)
    kernel = made.kernel(artifact)
    a, b, out = _tensors(current, 3)
    for _ in range(TIMES):
        kernel.into(a, b, out=kind([out, b]))
    left = _fallbacks(kernel)
    given = kind([out, b])
    assert kernel.into(a, b, out=given) is given
    made_here = kernel(a, b)
    assert type(made_here) is kind
    assert made_here[1] is b
    assert left == []
    for wrong in ([out], [out, a], [b, out]):
        with pytest.raises(ArgumentError):
            kernel.into(a, b, out=kind(wrong))


# What is wrong, and whether the C library finds it itself.
WRONG = {
    "dtype": (lambda new, a, b, out: (new("f16[4, 64]"), b, out), False),
    "shape": (lambda new, a, b, out: (a, new("f32[2, 64]"), out), False),
    "rank": (lambda new, a, b, out: (a, new("f32[256]"), out), False),
    "gaps": (lambda new, a, b, out: (replace(a, contiguous=False), b, out), False),
    "host": (lambda new, a, b, out: (a, replace(b, device_number=-1), out), False),
    "no tensor": (lambda new, a, b, out: (a, 3, out), False),
    "misaligned": (lambda new, a, b, out: (replace(a, pointer=a.pointer + 4), b, out), True),
    "overlap": (lambda new, a, b, out: (a, b, replace(out, pointer=b.pointer)), True),
    "dtype of out": (lambda new, a, b, out: (a, b, new("f16[4, 64]")), False),
}


@pytest.mark.parametrize("what", WRONG)
def test_wrong_arrays_are_refused_in_the_words_of_python(
    what: str, current: Any, adds: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    a, b, out = _tensors(current, 3)
    left = _warm(adds, a, b, out=out)
    change, is_found_by_c = WRONG[what]
    *given, into = change(current.tensor, a, b, out)
    with pytest.raises(ArgumentError) as native:
        adds.into(*given, out=into)
    assert left == ([] if is_found_by_c else ["into"])
    monkeypatch.setattr(native_path, "extension", lambda: None)
    plain = made.kernel(made.add())
    for _ in range(TIMES):
        plain.into(a, b, out=out)
    with pytest.raises(ArgumentError) as python:
        plain.into(*given, out=into)
    assert str(native.value) == str(python.value)


def test_each_shape_has_its_route(current: Any, runtime: Any) -> None:
    shapes = [f"f32[{rows}, 64]" for rows in (4, 8, 16)]
    variants = []
    for rows, text in enumerate(shapes):
        step = made.launch("three", 0, 1, 2, grid=(rows + 1, 1, 1))
        inputs = {"a": text, "b": text}
        variants.append(("made", {"m": rows}, made.artifact(step, inputs=inputs, outputs=[text])))
    kernel = made.Kernels(variants)["made"]
    sets = [_tensors(current, 3, text) for text in shapes]
    for own in (kernel, kernel.unchecked):
        for a, b, out in sets * TIMES:
            own.into(a, b, out=out)
        left = _fallbacks(own)
        for number in (0, 2, 1, 1, 0):
            a, b, out = sets[number]
            own.into(a, b, out=out)
            assert runtime.launches[-1].grid[0] == number + 1
        assert left == []


def test_results_and_temporaries_are_allocated_in_the_stream_that_is_given(
    current: Any, runtime: Any
) -> None:
    artifact = made.artifact(
        made.launch("four", 0, 1, 3, 2),
        outputs=["f32[4, 64]", "f32[4, 64]"],
        inputs={"a": TEXT},
        temporaries=[512],
    )
    kernel = made.kernel(artifact)
    a, first, second = _tensors(current, 3)
    left = _warm(kernel, a, out=(first, second))
    own = made.stream()
    for given, allocated in ((None, None), (0, None), (own, own), (_Stream(own), own)):
        one, other = kernel(a, stream=given)
        assert current.empty_streams[-3:] == [allocated] * 3
        launch = runtime.launches[-1]
        assert [launch.pointer(number) for number in (0, 1, 3)] == [
            a.pointer, one.pointer, other.pointer,
        ]  # fmt: skip
        assert launch.stream == (0 if given in (None, 0) else own)
    current.current_stream = own
    kernel(a, stream=own)
    assert current.empty_streams[-3:] == [None] * 3
    assert left == []


class _Stream:
    def __init__(self, handle: int) -> None:
        self.cuda_stream = handle


def test_a_device_that_is_not_current_is_launched_on(
    runtime: Any, framework: Any, adds: Any
) -> None:
    runtime.devices("9.0", "9.0")
    with active(get_device(0)):
        a, b, out = _tensors(framework, 3)
        left = _warm(adds, a, b, out=out)
        others = [framework.tensor(TEXT, device=1) for _ in range(3)]
        adds.into(*others[:2], out=others[2])
        assert left == ["into"]  # it is loaded there
        for _ in range(2):
            adds.into(*others[:2], out=others[2])
            assert adds(*others[:2]).device == 1
            assert runtime.launches[-1].device == 1
        assert left == ["into"]
        with pytest.raises(ArgumentError, match="a is on GPU 1, but b is on GPU 0"):
            adds.into(others[0], b, out=out)
        with pytest.raises(ArgumentError, match="belongs to a different device or context"):
            adds.into(a, b, out=out, stream=made.stream(1))


@pytest.mark.parametrize("text", ["c64[4, 64]", "f32[1]"])
def test_an_array_that_is_not_plain_is_refused(text: str, current: Any) -> None:
    artifact = made.artifact(made.launch("two", 0, 1), inputs={"a": text}, outputs=[text])
    kernel = made.kernel(artifact)
    a, out = _tensors(current, 2, text)
    left = _warm(kernel, a, out=out)
    kernel.into(a, out=out)
    assert left == []
    a.plain = False
    with pytest.raises(ArgumentError, match="conjugated"):
        kernel.into(a, out=out)


def test_arrays_whose_api_is_of_another_major_version_are_described_by_python(
    current: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    newer = exchange.exchange(lambda _: 0, major=2)
    monkeypatch.setattr(made.Tensor, "__dlpack_c_exchange_api__", newer)
    kernel = made.kernel(made.add())
    a, b, out = _tensors(current, 3)
    left = _warm(kernel, a, b, out=out)
    kernel.into(a, b, out=out)
    assert left == []
    with pytest.raises(ArgumentError, match="f16"):
        kernel.into(current.tensor("f16[4, 64]"), b, out=out)


class _Working:
    """A stream whose handle is asked for by code that does something else, too."""

    def __init__(self, work: Any) -> None:
        self._work = work

    @property
    def cuda_stream(self) -> int:
        self._work()
        return 0


def test_a_list_of_results_that_changes_within_a_call_keeps_them_until_it_is_over(
    current: Any,
) -> None:
    plan = made.artifact(made.launch("three", 0, 1, 2), outputs=[TEXT, "b"], output_tree=[0, 1])
    kernel = made.kernel(plan)
    a, b, c = _tensors(current, 3)
    left = _warm(kernel, a, b, out=[c, b])
    for _ in range(20):
        out = [replace(c), b]
        pointer = out[0].pointer
        assert kernel.into(a, b, out=out, stream=_Working(out.clear)) is out
        assert pointer in [each.pointer for each in current.written[-2:]]
    assert left == []


def test_a_kernel_that_nobody_has_goes_with_its_fronts(current: Any) -> None:
    import weakref

    kernel = made.kernel(made.add())
    a, b, out = _tensors(current, 3)
    _warm(kernel, a, b, out=out)
    alive = weakref.ref(kernel)
    del kernel
    gc.collect()
    assert alive() is None


def test_an_operator_returns_what_is_new_and_takes_none_for_what_is_not_given(current: Any) -> None:
    steps = made.launch("three", 0, 1, 2)
    kernel = made.kernel(made.artifact(steps, outputs=[TEXT, "b"]))
    a, b, c = _tensors(current, 3)
    left: list[Any] = []
    operator: Any = native_path.make_operator(
        current.access(made.Tensor), 3, lambda *given: left.append(given)
    )
    kernel.native_paths.serve(operator, current.access(made.Tensor), (0, -1, 1))
    operator(a, None, b)
    assert left == [(a, None, b)]
    for _ in range(TIMES):
        kernel(a, b)
    left.clear()
    current.written.clear()
    result = operator(a, None, b)
    assert isinstance(result, made.Tensor)
    assert result not in (a, b)
    assert current.written == [b]
    assert left == []
    operator(a, c, b)
    operator(a, None)
    assert left == [(a, c, b), (a, None)]


@pytest.mark.parametrize(
    ("name", "value", "reason"),
    [
        ("PALLASC_NATIVE", "0", "the extension is switched off: PALLASC_NATIVE is 0"),
        (
            "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM",
            "1",
            "the extension does not support per-thread default streams, and "
            "CUDA_PYTHON_CUDA_PER_THREAD_DEFAULT_STREAM is '1'",
        ),
    ],
)
def test_variables_switch_the_extension_off(
    name: str, value: str, reason: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert loading.extension.__wrapped__() is not None
    assert loading.why_not() == ""
    monkeypatch.setenv(name, value)
    assert loading.extension.__wrapped__() is None
    assert loading.why_not() == reason


def test_an_extension_of_other_sources_is_not_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loading, "SOURCES", loading.SOURCES[1:])
    monkeypatch.setattr(loading, "is_clone", lambda folder: False)
    assert loading.extension.__wrapped__() is not None
    monkeypatch.setattr(loading, "is_clone", lambda folder: True)
    assert loading.extension.__wrapped__() is None
    assert loading.why_not() == (
        "the extension was built before its sources changed, install pallasc again: "
        "pip install -e ."
    )


def test_an_extension_that_is_missing_or_broken_is_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(loading, "_NAME", "_none")
    assert loading.why_not() == "the extension was not built for this Python"
    (tmp_path / "_broken.abi3.so").write_text("nothing")
    monkeypatch.setattr("pallasc.runtime.native.__path__", [str(tmp_path)])
    monkeypatch.setattr(loading, "_NAME", "_broken")
    assert loading.why_not().startswith("the extension cannot be loaded: ")
    assert loading.extension.__wrapped__() is None
