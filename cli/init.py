"""`pallasc init`: write a small spec that works."""

from __future__ import annotations

import shlex
from pathlib import Path

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.output.text import echo, refusing
from pallasc.errors import SpecError

SPEC = """\
# Kernels for pallasc: `pallasc build kernels.yaml` compiles every variant of them.
schema: 1
targets: [sm_90a]        # list all: pallasc targets

kernels:
  - name: scale_add
    entry: kernels.py:scale_add
    args: {x: "{dtype}[{n}]", y: "{dtype}[{n}]"}
    static: {scale: 2.0}
    matrix: {n: [4096, 1048576], dtype: [f32, bf16]}
    reference: kernels.py:scale_add_reference
    tolerance: {rtol: 1.0e-2, atol: 1.0e-2}
"""

KERNELS = '''\
"""Kernels declared in kernels.yaml."""

import jax
from jax import lax
from jax.experimental import pallas as pl
from jax.experimental.pallas import mosaic_gpu as plgpu


def scale_add(x, y, *, scale, block_size=2048):
    """Return `scale * x + y`.

    Args:
        x: f32[n] or bf16[n], n a multiple of block_size.
        y: same as x.
        scale: a number.
        block_size: elements per block, a multiple of 128 (threads per block).
    """
    if x.size % block_size:
        raise ValueError(f"x has {x.size} elements, not a multiple of {block_size=}")

    def body(x_gmem, y_gmem, out_gmem):
        elements = pl.ds(lax.axis_index("block") * block_size, block_size)
        out_gmem[elements] = scale * x_gmem[elements] + y_gmem[elements]

    kernel = plgpu.kernel(
        body,
        out_type=jax.ShapeDtypeStruct(x.shape, x.dtype),
        grid=(x.size // block_size,),
        grid_names=("block",),
        compiler_params=plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Warpgroup),
    )
    return kernel(x, y)


def scale_add_reference(x, y, *, scale, block_size=2048):
    """Return the expected result of scale_add."""
    return scale * x + y
'''

NEXT = """\
Now try:
  pallasc list {spec}
  pallasc build {spec}
  pallasc inspect {spec} --plan -k "n=4096 and dtype=f32"
  pallasc check {spec} -k "n=4096 and dtype=f32"\
"""


@click.command("init", cls=Command, short_help="Write a small example spec.")
@click.argument("folder", type=click.Path(file_okay=False, path_type=Path), default=".")
def command(folder: Path) -> None:
    """Write an example spec, kernels.yaml and kernels.py, to FOLDER (default: current folder).

    The example declares an elementwise kernel with four variants, ready to build and modify.
    Existing files are never overwritten.

    Examples:
      pallasc init
      pallasc init my_kernels
    """
    files = {folder / "kernels.yaml": SPEC, folder / "kernels.py": KERNELS}
    for path in files:
        if path.exists():
            raise SpecError(f"{path} already exists.", hint="Move it, or choose another folder.")
    for path, text in files.items():
        with refusing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            # "x" because the file may have been created since the check.
            with path.open("x", encoding="utf-8") as file:
                file.write(text)
        echo(f"wrote {path}", err=True)
    echo(NEXT.format(spec=shlex.quote(str(folder / "kernels.yaml"))), err=True)
