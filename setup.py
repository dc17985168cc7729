"""Build step that pyproject.toml cannot express: start every build from an empty build folder."""

from __future__ import annotations

import shutil

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildAfresh(build_py):
    """Remove `build/lib` first, because setuptools would ship files that were deleted since."""

    def run(self) -> None:
        """Build into an empty folder; an editable install builds nothing and is left alone."""
        if not self.editable_mode:
            shutil.rmtree(self.build_lib, ignore_errors=True)
        super().run()


setup(cmdclass={"build_py": BuildAfresh})
