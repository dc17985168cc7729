"""Setuptools command that makes the bundles of `pyproject.toml`, as a step of `build`.

Setuptools calls `add_step` through the entry point group `setuptools.finalize_distribution_options`
for every project that is built in an environment with pallasc. Projects without bundles are not
affected.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path, PurePosixPath
from typing import ClassVar

from setuptools import Command, Distribution

from pallasc.errors import PallascError
from pallasc.hooks.bundles import build_requirements, make, source_files
from pallasc.hooks.settings import Setting, has_settings, read_settings
from pallasc.specs.spelling import suggestion

_STEP = "build_pallasc"


def add_step(dist: Distribution) -> None:
    """Extend `build` if the project declares bundles."""
    if _STEP in dist.cmdclass or not has_settings(Path.cwd()):
        return
    _require_compiler(dist)
    build = dist.get_command_class("build")
    steps = [*build.sub_commands, (_STEP, None)]
    dist.cmdclass["build"] = type("build", (build,), {"sub_commands": steps})
    dist.cmdclass[_STEP] = BuildBundles


def _require_compiler(dist: Distribution) -> None:
    """Report the build requirements to a build frontend that asks for them.

    `setuptools.build_meta` asks through its own `Distribution` class, whose `fetch_build_eggs`
    reports its argument as requirements.
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


class BuildBundles(Command):
    """Makes the bundles of a wheel in the build folder.

    An editable install has no build folder, so its bundles are written to the package's source
    folder.
    """

    description = "make the bundles that pyproject.toml declares"
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
        """Use the build folder of `build_py`."""
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
        """Return the files that the sdist must contain."""
        try:
            return source_files(read_settings(Path.cwd(), os.environ), Path.cwd())
        except PallascError as error:
            raise SystemExit(f"error: {error}") from error

    def get_outputs(self) -> list[str]:
        """Return the paths of the bundles in the build folder."""
        settings = read_settings(Path.cwd(), os.environ)
        return [os.path.join(self.build_lib or "", *s.place.split("/")) for s in settings]

    def get_output_mapping(self) -> dict[str, str]:
        """Map each bundle's path in the build folder to its path in an editable install."""
        if not self.editable_mode:
            return {}
        settings = read_settings(Path.cwd(), os.environ)
        places = [os.path.relpath(self._place(setting)) for setting in settings]
        return dict(zip(self.get_outputs(), places, strict=True))

    def _place(self, setting: Setting) -> Path:
        """Return the path to write a bundle to."""
        build_py = self.get_finalized_command("build_py")
        package = ".".join(PurePosixPath(setting.folder).parts)
        packages = build_py.packages or []
        if package not in packages:
            hint = suggestion(package, packages, otherwise="Packages")
            raise setting.at.error(f"there is no package {package!r}.", hint)
        if self.editable_mode:
            return Path(build_py.get_package_dir(package)).resolve() / setting.name
        return Path(self.build_lib or "", *PurePosixPath(setting.place).parts)
