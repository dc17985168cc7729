"""Compile every case, execute its plan on numpy, and compare with JAX's interpreter.

Usage: execute.py OUTPUT [NAME...]. OUTPUT gets JSON: case -> what its plan has, whether the numbers
are JAX's, and for each change to the plan whether it was noticed.
"""

# ruff: noqa: E402 - JAX is imported behind the environment that compiling needs.

from __future__ import annotations

import importlib
import inspect
import json
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

FOLDER = Path(__file__).parent
sys.path[:0] = [str(FOLDER), str(FOLDER.parent)]

from plan_interpreter import Kernel, Memory, run_plan

from pallasc.compiler.toolchain.setup import compiling_environment, tool_folder
from pallasc.compiler.toolchain.toolchain import find_toolchain

_TOOLCHAIN = find_toolchain()
_TOOLS, _KEPT = tool_folder(_TOOLCHAIN)
os.environ.update(compiling_environment(os.environ, _TOOLS))

import jax
from cases import CASES, KERNELS, REFERENCES
from hlo_parts import Computations, array_of, bytes_of, size_of

from pallasc.compiler.lowering import compile as compiling
from pallasc.compiler.lowering.lower import Job
from pallasc.compiler.lowering.mosaic_kernel import locate
from pallasc.runtime.adapters.numpy_arrays import numpy_dtype
from pallasc.specs.arrays import ArraySpec, resolve_array
from pallasc.specs.artifacts.plan import (
    Buffer,
    Bytes,
    Copy,
    Fill,
    Launch,
    LaunchPlan,
    Pointer,
    Step,
    plan_from_json,
)
from pallasc.specs.gpus import resolve_target

_INTERPRETER = "jax._src.pallas.mosaic_gpu.interpret"
_TARGET = resolve_target("h100-sxm")


def main(output: str, *names: str) -> None:
    """Execute the cases."""
    results = {name: execute(name, *CASES[name]) for name in names or CASES}
    Path(output).write_text(json.dumps(results))


def execute(name: str, function: Callable[..., Any], texts: Sequence[Any]) -> dict[str, Any]:
    """Execute one case, as it is and with changes to its plan."""
    args = [_parse(text) for text in texts]
    plan, blobs, executable, mosaic = _compiled(function, args)
    random = np.random.default_rng(5)
    given = [_random(tree, random) for tree in args]
    inputs = [np.asarray(leaf).tobytes() for leaf in jax.tree.leaves(given)]
    right = REFERENCES[name](*given) if name in REFERENCES else _interpreted(function, given)
    wanted = [np.asarray(leaf) for leaf in jax.tree.leaves(right)]
    kernel = stand_ins(executable, mosaic)

    def agrees(changed: LaunchPlan) -> bool:
        try:
            outputs = run_plan(changed, inputs, blobs, kernel)
        except (IndexError, ValueError, AssertionError):
            return False
        return _same(changed, outputs, wanted)

    return {
        "steps": [type(step).__name__.lower() for step in plan.steps],
        "buffers": [buffer.role for buffer in plan.buffers],
        "outputs": len(plan.outputs),
        "interpreted": name not in REFERENCES,
        "aliased": any(map(_is_aliased, _calls(executable.thunks))),
        "shared_bytes": sum(
            step.dynamic_smem_bytes for step in plan.launches if step.origin == "mosaic"
        ),
        "origins": [launch.origin for launch in plan.launches],
        "agrees": agrees(plan),
        "unnoticed": [what for what, changed in changes(plan) if agrees(changed)],
        "changes": sum(1 for _ in changes(plan)),
    }


def _compiled(function: Callable[..., Any], args: list[Any]) -> tuple[LaunchPlan, Any, Any, Any]:
    """Return the plan, its blobs, the executable that it came from, and the Mosaic kernels."""
    job = Job(function, args, {}, _TARGET)
    kept: dict[str, Any] = {}
    translate = compiling.translate

    def keep(executable: Any, **more: Any) -> Any:
        kept["executable"], kept["made"] = executable, translate(executable, **more)
        return kept["made"]

    compiling.translate = keep
    try:
        tools = compiling.Tools({}, _TOOLCHAIN.ptxas, {}, {})
        record, blobs = compiling.compile_job(job, compiling.lower_job(job), tools)
    finally:
        compiling.translate = translate
    plan = plan_from_json(json.loads(json.dumps(record["plan"])))
    return plan, blobs, kept["executable"], kept["made"].mosaic


def _parse(text: Any) -> Any:
    if isinstance(text, str):
        return resolve_array(text)
    if isinstance(text, dict):
        return {name: _parse(item) for name, item in text.items()}
    return [_parse(item) for item in text] if isinstance(text, list) else text


def _random(tree: Any, random: np.random.Generator) -> Any:
    if isinstance(tree, ArraySpec):
        kind = numpy_dtype(tree.dtype)
        return random.integers(-9, 9, tree.shape).astype(kind)
    if isinstance(tree, dict):
        return {name: _random(item, random) for name, item in tree.items()}
    return [_random(item, random) for item in tree] if isinstance(tree, list) else tree


def _interpreted(function: Callable[..., Any], given: list[Any]) -> Any:
    params = importlib.import_module(f"{_INTERPRETER}.params")
    interpreter = importlib.import_module(f"{_INTERPRETER}.interpret_pallas_call")
    cpu = jax.devices("cpu")[0]
    # It cannot fill a semaphore with anything else.
    zeroed = params.InterpretGPUParams(uninitialized_memory="zero")
    try:
        with params.force_gpu_interpret_mode(zeroed), jax.default_device(cpu):
            return jax.block_until_ready(jax.jit(function)(*given))
    finally:
        interpreter.reset_gpu_interpret_mode_state()


def _same(plan: LaunchPlan, outputs: Sequence[bytes], wanted: Sequence[np.ndarray]) -> bool:
    assert len(outputs) == len(wanted)
    for binding, data, right in zip(plan.outputs, outputs, wanted, strict=True):
        size = right.size * right.itemsize
        got = np.frombuffer(data[:size], right.dtype).reshape(binding.shape)
        if right.shape != got.shape or not np.allclose(got, right, rtol=1e-5, atol=1e-5):
            return False
    return True


# ---- what is launched


def stand_ins(executable: Any, mosaic: Sequence[Any]) -> Kernel:
    """Return what does in numpy what each kernel of an executable does."""
    computations = Computations(executable.hlo_module_with_config.hlo_module)
    calls = {thunk.thunk_info.profile_annotation: thunk for thunk in _calls(executable.thunks)}
    made = {kernel.name: kernel for kernel in mosaic}

    def launch(memory: Memory, step: Launch) -> None:
        if step.origin == "mosaic":
            _mosaic(memory, step, made[step.kernel], calls[step.label].custom_call_thunk)
        elif step.kernel in KERNELS:
            _triton(memory, step, calls[step.label].custom_kernel_thunk)
        else:
            _xla(memory, step, computations)

    return launch


def _calls(thunks: Any) -> Iterator[Any]:
    """Yield the thunks of kernels that have their own code, at any depth."""
    for thunk in thunks:
        if thunk.HasField("custom_call_thunk") or thunk.HasField("custom_kernel_thunk"):
            yield thunk
        for inner in (
            thunk.sequential_thunk.thunks,
            thunk.async_start_thunk.thunks.thunks,
            thunk.while_thunk.body_thunk_sequence.thunks,
            thunk.dynamic_slice_fusion_thunk.embedded_thunks.thunks,
            thunk.dynamic_slice_thunk.embedded_thunk.thunks,
        ):
            yield from _calls(inner)


def _is_aliased(thunk: Any) -> bool:
    """Return whether a kernel of Pallas's writes a result where one of its operands lies."""
    call, kernel = thunk.custom_call_thunk, thunk.custom_kernel_thunk
    sides = [
        {(one.buffer_allocation_index, one.offset) for one in slices if one.size}
        for slices in (
            [item.shaped_slice.slice for item in call.operands],
            [item.shaped_slice.slice for item in call.results],
            [item.slice for item in kernel.args],
        )
    ]
    own = kernel.custom_kernel.name in KERNELS  # XLA's kernels do so as well
    return bool(sides[0] & sides[1]) or (own and len(sides[2]) < len(kernel.args))


def _triton(memory: Memory, step: Launch, kernel: Any) -> None:
    """Do what a kernel of Pallas's other back end does: it takes its operands, then its results."""
    function, _ = KERNELS[step.kernel]
    shapes = [one.shape for one in kernel.args]
    places = [(p.buffer, p.offset) for p in step.parameters if isinstance(p, Pointer)]
    assert len(places) == len(step.parameters) == len(shapes)
    count = len(inspect.signature(function).parameters)
    arrays = [
        array_of(shape, memory.read(*place, size_of(shape)))
        for shape, place in zip(shapes[:count], places, strict=False)
    ]
    results = zip(shapes[count:], places[count:], function(*arrays), strict=True)
    for shape, place, value in results:
        memory.write(*place, bytes_of(shape, value))


def _xla(memory: Memory, step: Launch, computations: Computations) -> None:
    """Do what a kernel of XLA's does: it takes its operands, then its results."""
    operands, results = computations.shapes(step.label)
    places = [(p.buffer, p.offset) for p in step.parameters if isinstance(p, Pointer)]
    assert len(places) == len(step.parameters) == len(operands) + len(results)
    arrays = [
        array_of(shape, memory.read(*place, size_of(shape)))
        for shape, place in zip(operands, places, strict=False)
    ]
    values = computations.run(step.label, arrays)
    for shape, place, value in zip(results, places[len(operands) :], values, strict=True):
        memory.write(*place, bytes_of(shape, value))


def _mosaic(memory: Memory, step: Launch, kernel: Any, call: Any) -> None:
    """Do what a Mosaic kernel does: its host code says which parameter is which array."""
    function, in_place = KERNELS[step.kernel.removesuffix("_mosaic_gpu_kernel")]
    operands = [item.shaped_slice.shape for item in call.operands]
    results = [item.shaped_slice.shape for item in call.results]
    places = _places(step, kernel.launch.arguments)
    if in_place:  # the kernel gets one of the two
        operand, result = len(operands) - 1, len(operands) + len(results) - 1
        places[result] = places.get(result) or places[operand]
        places.setdefault(operand, places[result])
    arrays = [
        array_of(shape, memory.read(*places[number], size_of(shape)))
        for number, shape in enumerate(operands)
    ]
    for number, (shape, value) in enumerate(zip(results, function(*arrays), strict=True)):
        memory.write(*places[len(operands) + number], bytes_of(shape, value))


def _places(step: Launch, arguments: Sequence[Any]) -> dict[int, tuple[int, int]]:
    """Return where each array of a call lies, as the launch's parameters say."""
    found: dict[int, tuple[int, int]] = {}

    def note(address: int, place: Any) -> None:
        number, inner = locate(address)
        where = (place.buffer, place.offset - inner)
        if found.setdefault(number, where) != where:
            raise ValueError(f"array {number} lies in two places")

    for parameter, argument in zip(step.parameters, arguments, strict=True):
        if isinstance(parameter, Pointer):
            note(argument.address, parameter)
        else:
            for (_, shown), (_, recorded) in zip(parameter.tensor_maps, argument.maps, strict=True):
                note(recorded.address, shown)
    return found


# ---- what would be wrong


def changes(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield plans that are wrong in one place, and what is."""
    for number, step in enumerate(plan.steps):
        rest = (*plan.steps[:number], *plan.steps[number + 1 :])
        yield f"step {number} left out", replace(plan, steps=rest)
        for what, changed in _changed(step, plan.buffers):
            steps = (*plan.steps[:number], changed, *plan.steps[number + 1 :])
            yield f"step {number} {what}", replace(plan, steps=steps)
    if len(plan.steps) > 1:
        yield "steps turned round", replace(plan, steps=tuple(reversed(plan.steps)))
    yield from _bound_otherwise(plan)
    for number, buffer in enumerate(plan.buffers):
        if buffer.digest is not None:
            others = list(plan.buffers)
            others[number] = Buffer("temporary", buffer.size)
            yield f"constant {number} not there", replace(plan, buffers=tuple(others))


def _bound_otherwise(plan: LaunchPlan) -> Iterator[tuple[str, LaunchPlan]]:
    """Yield plans whose signature names other buffers: wrong aliases, for one."""
    for number, binding in enumerate(plan.outputs):
        for other, buffer in enumerate(plan.buffers):
            if other != binding.buffer and buffer.size >= plan.buffers[binding.buffer].size > 0:
                moved = list(plan.outputs)
                moved[number] = replace(binding, buffer=other)
                yield f"result {number} is buffer {other}", replace(plan, outputs=tuple(moved))
    if len(plan.inputs) > 1:
        first, *rest, last = plan.inputs
        swapped = (replace(first, buffer=last.buffer), *rest, replace(last, buffer=first.buffer))
        yield "first and last array swapped", replace(plan, inputs=swapped)


def _changed(step: Step, buffers: Sequence[Buffer]) -> Iterator[tuple[str, Step]]:
    if isinstance(step, Fill):
        yield "fills another value", replace(step, value=step.value ^ 1)
        yield "fills less", replace(step, size=step.size - step.width)
    elif isinstance(step, Copy):
        yield "copies less", replace(step, size=step.size // 2)
        yield "copies to 4 bytes further", replace(step, target_offset=step.target_offset + 4)
        yield "copies the next buffer", replace(step, source=(step.source + 1) % len(buffers))
        if step.source_offset:
            yield "copies from the start", replace(step, source_offset=0)
    else:
        yield from _changed_launch(step, buffers)
        yield from _changed_maps(step, buffers)


def _changed_launch(step: Launch, buffers: Sequence[Buffer]) -> Iterator[tuple[str, Step]]:
    pointers = [n for n, p in enumerate(step.parameters) if isinstance(p, Pointer)]
    for number in pointers:
        old = step.parameters[number]
        assert isinstance(old, Pointer)
        for what, new in (
            ("is 4 bytes further", Pointer(old.buffer, old.offset + 4)),
            ("is the next buffer", Pointer((old.buffer + 1) % len(buffers), old.offset)),
        ):
            parameters = (*step.parameters[:number], new, *step.parameters[number + 1 :])
            yield f"parameter {number} {what}", replace(step, parameters=parameters)
    if len(pointers) > 1:
        first, last = pointers[0], pointers[-1]
        swapped = list(step.parameters)
        swapped[first], swapped[last] = swapped[last], swapped[first]
        if swapped[first] != swapped[last]:
            yield "takes first and last swapped", replace(step, parameters=tuple(swapped))


def _changed_maps(step: Launch, buffers: Sequence[Buffer]) -> Iterator[tuple[str, Step]]:
    """Yield launches that are wrong in one tensor map."""
    for number, old in enumerate(step.parameters):
        if not isinstance(old, Bytes):
            continue
        for index, (at, shown) in enumerate(old.tensor_maps):
            for what, new in (
                ("4 bytes further", replace(shown, offset=shown.offset + 4)),
                ("of the next buffer", replace(shown, buffer=(shown.buffer + 1) % len(buffers))),
            ):
                maps = (*old.tensor_maps[:index], (at, new), *old.tensor_maps[index + 1 :])
                parameter = replace(old, tensor_maps=maps)
                parameters = (*step.parameters[:number], parameter, *step.parameters[number + 1 :])
                changed = replace(step, parameters=parameters)
                yield f"parameter {number} map {index} {what}", changed


main(*sys.argv[1:])
