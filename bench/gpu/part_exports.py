"""Kernels in files of `jax.export`, and in the C library of a bundle, in processes of their own."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from carried import Carried, is_asked, read_variants, why_not
from desk import Desk, MissingError, need
from units import Unit

TITLE = "exported kernels"
SHARE = 0.03
AT_ONCE = 2

_WITHOUT = "no open bundle has its cubins"
"""What a program that names kernels by digest says where no bundle with them is open."""


def units(folder: Path, machine: Mapping[str, Any], options: Mapping[str, Any]) -> list[Unit]:
    """Return a unit for JAX and one for C, of the kernel that was packed for it."""
    packed = folder / "exports" / "variant"
    found = [
        variant
        for variant in read_variants(folder)
        if packed.exists() and variant.id == packed.read_text()
    ]
    return [
        Unit("exports", f"{way} {variant.id}", 240, 30)
        for variant in found
        if is_asked(variant, options) and why_not(variant, *machine["capability"]) is None
        for way in ("JAX", "C")
    ]


def run(desk: Desk) -> None:
    """Export or take what was packed, and launch it in a fresh process."""
    from judge import Judge
    from references import make_inputs

    way, _, name = desk.name.partition(" ")
    variant = desk.variant(name)
    inputs = make_inputs(variant)
    judge = Judge(variant, inputs, desk.options["rows"])
    with tempfile.TemporaryDirectory(prefix="pallasc-exports-") as scratch:
        place = Place(desk.folder / "exports", Path(scratch), variant, inputs, judge)
        if way == "C":
            desk.ask("library", place.by_c)
            return
        desk.ask("by bytes", lambda: place.by_jax(by_digest=False))
        desk.ask("by digest", lambda: place.by_jax(by_digest=True))
        desk.ask("by digest, without the bundle", place.without_bundle)


class Place:
    """Where one kernel is exported and launched.

    Args:
        packed: the folder with its bundle, and its library where it was built.
        scratch: an empty folder.
        variant, inputs, judge: of the kernel.
    """

    def __init__(
        self, packed: Path, scratch: Path, variant: Carried, inputs: Mapping[str, Any], judge: Any
    ) -> None:
        self._packed, self._scratch, self._variant = packed, scratch, variant
        self._inputs, self._judge = list(inputs.values()), judge
        self._bundle = packed / "add.pallasc"

    def by_c(self) -> dict[str, Any]:
        """Launch by the library of `bundle export --c`."""
        library = self._packed / "libkernels.so"
        if not library.exists():
            raise MissingError("the packed folder has no library: there was no C compiler")
        return self._launched("c", library)

    def by_jax(self, *, by_digest: bool) -> dict[str, Any]:
        """Write a file of `jax.export`, and open it elsewhere."""
        file = self._export(by_digest)
        bundle = self._bundle if by_digest else None
        return {"bytes": file.stat().st_size, **self._launched("jax", file, bundle)}

    def without_bundle(self) -> dict[str, Any]:
        """Open a file that names a kernel by digest where its bundle is not open."""
        from exported import launched

        file = self._export(by_digest=True)
        result, said = launched("jax", file, self._scratch, self._inputs)
        return {"right": result is None and _WITHOUT in said, "said": said[-2000:]}

    def _export(self, by_digest: bool) -> Path:
        import pallasc
        from pallasc.errors import ToolError
        from pallasc.runtime.native.library import open_library

        try:
            open_library()
        except ToolError as error:
            raise MissingError(error.message) from error
        jax = need("jax")
        need("flatbuffers")
        export = need("jax.export")
        kernel = pallasc.open_bundle(self._bundle)[self._variant.name]
        function = jax.jit(kernel.by_digest if by_digest else kernel)
        types = [jax.ShapeDtypeStruct(array.shape, array.dtype) for array in self._inputs]
        checks = pallasc.jax_export_checks()
        exporting = export.export(function, platforms=["cuda", "cpu"], disabled_checks=checks)
        file = self._scratch / f"{by_digest}.bin"
        file.write_bytes(exporting(*types).serialize())
        return file

    def _launched(self, way: str, file: Path, bundle: Path | None = None) -> dict[str, Any]:
        from exported import launched

        result, said = launched(way, file, self._scratch, self._inputs, bundle)
        if result is None:
            raise RuntimeError(said[-2000:])
        found: dict[str, Any] = self._judge.compare(result)
        return found
