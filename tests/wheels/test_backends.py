"""Both build backends make the same bundle, install for development, and refuse alike."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from environments import Environment, bundles_in, tree, wheel_in

BACKENDS = {
    "setuptools": "[build-system]\n"
    'requires = ["setuptools>=77", "pallasc"]\n'
    'build-backend = "setuptools.build_meta"\n',
    "hatchling": "[build-system]\n"
    'requires = ["hatchling", "pallasc"]\n'
    'build-backend = "hatchling.build"\n'
    '[tool.hatch.build.hooks.pallasc]\n[tool.hatch.build]\ndev-mode-dirs = ["src"]\n',
}
PROJECT = '[project]\nname = "mylib"\nversion = "1.0"\n'

Make = Callable[..., Path]


@pytest.fixture
def make_project(tmp_path: Path, ready: bytes) -> Make:
    """Return what makes a project with a bundle that was made before, `ready.pallasc`."""

    def make(backend: str, bundles: str, *, name: str = "mylib") -> Path:
        folder = tmp_path / f"{name} project"
        (folder / "src" / name).mkdir(parents=True)
        (folder / "src" / name / "__init__.py").touch()
        (folder / "ready.pallasc").write_bytes(ready)
        text = f"{BACKENDS[backend]}{PROJECT}[tool.pallasc.bundles]\n{bundles}\n"
        (folder / "pyproject.toml").write_text(text)
        return folder

    return make


@pytest.mark.parametrize("backend", list(BACKENDS))
def test_an_editable_install_has_the_bundle_beside_the_sources(
    backend: str, make_project: Make, developer: Environment, ready: bytes
) -> None:
    project = make_project(backend, '"mylib/kernels.pallasc" = "ready.pallasc"')
    before = tree(project)
    developer.install("-e", project)
    assert (project / "src" / "mylib" / "kernels.pallasc").read_bytes() == ready
    code = "import pallasc, json; print(json.dumps(sorted(pallasc.load('mylib'))))"
    printed = developer.succeed("-P", "-c", code, cwd=developer.folder)
    assert json.loads(printed) == ["add_rms_norm", "bias_gelu", "linear_gelu"]
    new = {name for name in tree(project) - before if ".egg-info/" not in name}
    assert new == {"src/mylib/kernels.pallasc"}


def test_a_stale_bundle_beside_the_sources_does_not_ship(
    make_project: Make, builder: Environment, tmp_path: Path, ready: bytes
) -> None:
    project = make_project("hatchling", '"mylib/kernels.pallasc" = "ready.pallasc"')
    (project / "src" / "mylib" / "kernels.pallasc").write_bytes(b"of an earlier day")
    done = builder.build(project, tmp_path / "dist", "--wheel")
    assert done.returncode == 0, done.stdout
    assert bundles_in(wheel_in(tmp_path / "dist")) == {"mylib/kernels.pallasc": ready}


@pytest.mark.parametrize(
    ("backend", "bundles", "message"),
    [
        (
            "setuptools",
            '"mylib/kernels.pallasc" = {specs = "kernels.yaml", form = "store"}',
            "tool.pallasc.bundles.mylib/kernels.pallasc: unknown key 'form'.\n"
            "  Did you mean 'from'?",
        ),
        (
            "hatchling",
            '"mylb/kernels.pallasc" = "ready.pallasc"',
            "tool.pallasc.bundles.mylb/kernels.pallasc: there is no package 'mylb'.\n"
            "  Did you mean 'mylib'?",
        ),
    ],
)
def test_a_mistake_ends_the_build_with_file_line_and_key(
    backend: str,
    bundles: str,
    message: str,
    make_project: Make,
    builder: Environment,
    tmp_path: Path,
) -> None:
    project = make_project(backend, bundles)
    done = builder.build(project, tmp_path / "dist", "--wheel")
    text = (project / "pyproject.toml").read_text()
    line = text[: text.index(bundles)].count("\n") + 1
    assert done.returncode != 0
    assert f"error: pyproject.toml:{line}: {message}" in done.stdout
    assert "Traceback" not in done.stdout
    assert not list((tmp_path / "dist").glob("*"))
