"""Hatchling build hook that makes the bundles declared in `pyproject.toml`.

`[tool.hatch.build.hooks.pallasc]` enables it. The bundles are declared in `[tool.pallasc.bundles]`,
the same table that the setuptools hook reads.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface
from hatchling.plugin import hookimpl

from pallasc.errors import Location, PallascError, SpecError
from pallasc.hooks.bundles import build_requirements, make, source_files
from pallasc.hooks.settings import Setting, read_settings
from pallasc.specs.settings import FILE
from pallasc.specs.spelling import suggestion

_TABLE = "tool.hatch.build.hooks.pallasc"
_OF_HATCH = (
    "dependencies",
    "enable-by-default",
    "require-runtime-dependencies",
    "require-runtime-features",
)


@hookimpl
def hatch_register_build_hook() -> type[BundleHook]:
    """Return the hook class to hatchling."""
    return BundleHook


class BundleHook(BuildHookInterface[Any]):
    """Adds the declared bundles to a wheel, and their source files to an sdist."""

    PLUGIN_NAME = "pallasc"

    _made: tempfile.TemporaryDirectory[str] | None = None

    def dependencies(self) -> list[str]:
        """Return the extra build requirements: a compiler only if something must be compiled."""
        if self.target_name != "wheel":
            return []
        try:
            _settings(Path(self.root), self.config)
            return build_requirements(Path(self.root), os.environ)
        except PallascError as error:
            self.app.abort(f"error: {error}")
            return []

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Make all bundles before hatchling assembles the wheel."""
        try:
            settings = _settings(Path(self.root), self.config)
            if self.target_name == "sdist":
                self._carry(settings, build_data["force_include"])
            elif self.target_name == "wheel":
                self._build(settings, build_data["force_include"], editable=version == "editable")
        except PallascError as error:
            self.finalize(version, build_data, "")  # hatchling does not call it after an error
            self.app.abort(f"error: {error}")

    def finalize(self, version: str, build_data: dict[str, Any], artifact_path: str) -> None:
        """Remove the temporary files that went into the wheel."""
        if self._made is not None:
            self._made.cleanup()

    def _carry(self, settings: Sequence[Setting], include: dict[str, str]) -> None:
        for file in source_files(settings, Path(self.root)):
            include[os.path.join(self.root, file)] = file

    def _build(
        self, settings: Sequence[Setting], include: dict[str, str], *, editable: bool
    ) -> None:
        folders = [self._folder(setting) for setting in settings]
        self._made = tempfile.TemporaryDirectory(prefix="pallasc-")
        for setting, folder in zip(settings, folders, strict=True):
            place = Path(folder if editable else self._made.name, setting.name)
            if not editable:
                place = Path(self._made.name, *setting.place.split("/"))
                include[str(place)] = setting.place
            make(setting, place, root=Path(self.root), environ=os.environ)

    def _folder(self, setting: Setting) -> Path:
        """Return the source folder of the package that contains a bundle."""
        files = self.build_config.builder.recurse_selected_project_files()
        folders = {Path(f.distribution_path).parent.as_posix(): Path(f.path).parent for f in files}
        if setting.folder not in folders:
            known = sorted(set(folders) - {"."})
            hint = suggestion(setting.folder, known, otherwise="Packages")
            raise setting.at.error(f"there is no package {setting.folder!r}.", hint)
        return folders[setting.folder]


def _settings(root: Path, config: Mapping[str, object]) -> tuple[Setting, ...]:
    """Read the bundle settings of the project.

    Raises:
        SpecError: a setting is invalid, or no bundle is declared.
    """
    for key in config:
        if key not in _OF_HATCH:
            raise SpecError(
                f"{_TABLE}: unknown key {key!r}.",
                location=Location(FILE),
                hint="Put the bundles into [tool.pallasc.bundles].",
            )
    settings = read_settings(root, os.environ)
    if not settings:
        raise SpecError(
            f"{_TABLE} is set, but no bundle is declared.",
            location=Location(FILE),
            hint='Write [tool.pallasc.bundles] and "mylib/kernels.pallasc" = "kernels/".',
        )
    return settings
