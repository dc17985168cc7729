"""Steps of setuptools: `build` makes the bundles of `pyproject.toml`, `sdist` records the commit.

An entry point in the group `setuptools.finalize_distribution_options` calls `add_step` for every
project that is built where pallasc is installed; a project without bundles is left alone.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath
from typing import ClassVar

from setuptools import Command, Distribution

from pallasc.errors import PallascError
from pallasc.hooks.making import make
from pallasc.hooks.requirements import build_requirements
from pallasc.hooks.settings import Setting, has_settings, read_settings
from pallasc.hooks.sources import RECORD, origin_record, source_files
from pallasc.specs.spelling import suggestion

_STEP = "build_pallasc"


def add_step(dist: Distribution) -> None:
    """Let `build` make bundles if the project declares some."""
    if _STEP in dist.cmdclass or not has_settings(Path.cwd()):
        return
    _require_compiler(dist)
    build = dist.get_command_class("build")
    steps = [*build.sub_commands, (_STEP, None)]
    dist.cmdclass["build"] = type("build", (build,), {"sub_commands": steps})
    dist.cmdclass[_STEP] = BuildBundles
    dist.cmdclass["sdist"] = type("sdist", (_Recording, dist.get_command_class("sdist")), {})


def _require_compiler(dist: Distribution) -> None:
    """Tell a build front end that asks for requirements that a compiler is needed.

    `setuptools.build_meta` asks with a distribution of its own, whose `fetch_build_eggs` reports
    its argument as requirements.
    """
    build_meta = sys.modules.get("setuptools.build_meta")
    if build_meta is None or not isinstance(dist, build_meta.Distribution):
        return
    try:
        needed = build_requirements(Path.cwd(), os.environ)
    except PallascError as error:
        raise SystemExit(f"error: {error}") from error
    if needed:
        dist.fetch_build_eggs(needed)


class _Recording:
    """The part of `sdist` that puts a record of the commit into it."""

    def make_release_tree(self, base_dir: str, files: list[str]) -> None:
        """Copy all files, and write the record beside them."""
        super().make_release_tree(base_dir, files)  # type: ignore[misc]
        try:
            text = origin_record(read_settings(Path.cwd(), os.environ), Path.cwd())
        except PallascError as error:
            raise SystemExit(f"error: {error}") from error
        if text is not None:
            place = Path(base_dir, RECORD)
            place.unlink(missing_ok=True)  # it may be a hard link to the project's own
            place.write_bytes(text)


class BuildBundles(Command):
    """Makes the bundles of a wheel in the build folder.

    An editable install has no build folder: there they lie beside the package's own files.
    """

    description = "make the bundles of kernels that pyproject.toml asks for"
    user_options: ClassVar[list[tuple[str, str, str]]] = [
        ("build-lib=", "d", "directory to build to"),
    ]

    editable_mode: bool = False
    build_lib: str | None

    def initialize_options(self) -> None:
        """Reset all options."""
        self.build_lib = None
        self.editable_mode = False

    def finalize_options(self) -> None:
        """Build where Python modules are built."""
        self.set_undefined_options("build_py", ("build_lib", "build_lib"))

    def run(self) -> None:
        """Make all bundles."""
        root = Path.cwd()
        try:
            settings = read_settings(root, os.environ)
            places = [(setting, self._place(setting)) for setting in settings]
            for setting, place in places:
                make(setting, place, root=root, environ=os.environ)
        except PallascError as error:
            raise SystemExit(f"error: {error}") from error

    def get_source_files(self) -> list[str]:
        """Return what the sdist has to carry."""
        try:
            return source_files(read_settings(Path.cwd(), os.environ), Path.cwd())
        except PallascError as error:
            raise SystemExit(f"error: {error}") from error

    def get_outputs(self) -> list[str]:
        """Return the files in the build folder."""
        settings = read_settings(Path.cwd(), os.environ)
        return [os.path.join(self.build_lib or "", *s.place.split("/")) for s in settings]

    def get_output_mapping(self) -> dict[str, str]:
        """Return where the files of the build folder lie in an editable install."""
        if not self.editable_mode:
            return {}
        settings = read_settings(Path.cwd(), os.environ)
        places = [os.path.relpath(self._place(setting)) for setting in settings]
        return dict(zip(self.get_outputs(), places, strict=True))

    def _place(self, setting: Setting) -> Path:
        """Return the path that a bundle is written to."""
        build_py = self.get_finalized_command("build_py")
        package = ".".join(PurePosixPath(setting.folder).parts)
        packages = build_py.packages or []
        if package not in packages:
            hint = suggestion(package, packages, otherwise="Packages")
            raise setting.at.error(f"there is no package {package!r}.", hint)
        if self.editable_mode:
            return Path(build_py.get_package_dir(package)).resolve() / setting.name
        return Path(self.build_lib or "", *PurePosixPath(setting.place).parts)
