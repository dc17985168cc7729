"""Check that the cubins come from the assembler that the toolchain's record names.

XLA and Mosaic GPU look for an assembler themselves: in the current folder, on PATH, in the usual
folders of CUDA; and they may use a library instead (`nvjitlink`). What was compiled in this process
before may have decided already. So only the cubin itself is trusted, which names its tools.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from pallasc.compiler.executable.translate import Translation
from pallasc.compiler.toolchain import nvjitlink
from pallasc.compiler.toolchain.toolchain import tool_version
from pallasc.errors import ToolError
from pallasc.specs.artifacts.cubin import other_maker, tools_of
from pallasc.specs.artifacts.plan import Launch


class OtherAssemblerError(ToolError):
    """Another assembler than that of the toolchain's record made a kernel."""


def check_makers(translation: Translation, ptxas: Path, record: Mapping[str, object]) -> None:
    """Check that the assembler made every cubin.

    Args:
        translation: has the cubins.
        ptxas: the assembler.
        record: what the artifact will say of its toolchain.

    Raises:
        OtherAssemblerError: another tool made a cubin.
    """
    version = str(record.get("ptxas") or tool_version(ptxas))
    launches = [step for step in translation.steps if isinstance(step, Launch)]
    for key, kernel in {step.cubin: step.kernel for step in launches}.items():
        maker = other_maker(tools_of(translation.blobs[key]), version)
        if maker:
            raise OtherAssemblerError(
                f"{kernel} was assembled by {maker}{_where(maker)}, not by ptxas {version}, "
                f"{ptxas}.",
                hint="An earlier compilation in this process selected it; kernel modules must not "
                "compile on import.",
            )


def _where(maker: str) -> str:
    """Return the file of an assembler in brackets, "" where it is unknown."""
    name, _, version = maker.partition(" ")
    if name == "ptxas":
        folders = os.environ.get("PATH", "").split(os.pathsep)
        places = [Path(folder, name) for folder in folders if folder]
        place = next((str(place) for place in places if _version(place) == version), "")
    else:
        place = nvjitlink.loaded(13) or nvjitlink.loaded(12)
    return f" ({place})" if place else ""


def _version(tool: Path) -> str:
    try:
        return tool_version(tool)
    except ToolError:
        return ""
