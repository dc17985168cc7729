"""The pages are true: commands run and print what is shown, specs load, links lead somewhere.

Every fenced block of README.md, ARCHITECTURE.md and docs/*.md is checked by its language:

* `console`: each line `$ command` runs in bash, in order, in a folder of its page. It must exit
  with 0 and print what is shown. `…` stands for any text, alone on a line for any lines.
* `yaml`: a whole spec if it begins with `schema:`; a recipe for CI if it has a script, whose
  commands run; else fields of one kernel. Specs are loaded and expanded.
* `json`: written to `tuned.json`, for the specs below it.
* `python`: if it declares kernels, listed as a spec; else run.
* `sh`: each command has a check in `SHELL`.
* `toml`: settings of bundles, which are read.
* `text`: shown, not run.

A block that begins with a comment with a file name, `# kernels/gated.py`, is not run itself: it is
written to this file for the commands below it.
"""

import inspect
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import textwrap
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path

import pytest
import yaml
from consoles import PATIENT, fits, shown
from packaging.version import Version

import pallasc
from pallasc.cache.store import Store
from pallasc.cli.init import KERNELS
from pallasc.cli.main import main
from pallasc.errors import SpecError
from pallasc.hooks.settings import read_settings
from pallasc.specs.arrays import DTYPES
from pallasc.specs.gpus import DEFAULT_MODELS
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.schema import (
    BUDGET_FIELDS,
    FILE_FIELDS,
    KERNEL_FIELDS,
    MODEL_FIELDS,
    TOLERANCE_FIELDS,
)
from pallasc.specs.loading.select import select
from pallasc.specs.loading.yaml_loader import load_specs, parse_yaml

ROOT = Path(__file__).resolve().parents[1]
PAGES = [
    "README.md",
    "ARCHITECTURE.md",
    "CHANGELOG.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
    *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").glob("*.md")),
]
DEMO_SPEC = "specs/library/jax_kernels.yaml"
FENCE = re.compile(r"^```(?P<kind>\w*)\n(?P<text>.*?)^```$", re.MULTILINE | re.DOTALL)


NAMED = re.compile(r"# ([\w./-]+\.(?:py|yaml|toml))\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page."""

    page: str
    line: int
    kind: str
    text: str


def read(page: str) -> str:
    return (ROOT / page).read_text("utf-8")


def blocks(page: str) -> Iterator[Block]:
    """Yield the fenced blocks of a page."""
    text = read(page)
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start()) + 1
        yield Block(page, line, match["kind"], match["text"])


def shell_environment(folder: Path, command: str) -> dict[str, str]:
    """Return an environment in which `pallasc` and `python` are the ones that the tests use."""
    tools = folder.parent / f"{folder.name}-bin"
    tools.mkdir(exist_ok=True)
    ours = f"-P -c {shlex.quote(PATIENT)}" if " --remote " in command else "-P -m pallasc"
    for name, arguments in (("pallasc", ours), ("python", "")):
        script = tools / name
        script.write_text(f'#!/bin/sh\nexec {shlex.quote(sys.executable)} {arguments} "$@"\n')
        script.chmod(0o755)
    path = os.pathsep.join([str(tools), os.environ["PATH"]])
    own = {"PALLASC_CACHE_DIR": str(folder / ".store"), "XDG_CONFIG_HOME": str(folder / ".config")}
    return {**os.environ, "PATH": path, **own}


def run(command: str | list[str], folder: Path) -> subprocess.CompletedProcess[str]:
    """Run a command without a terminal, with both output streams as one."""
    words = ["bash", "-o", "pipefail", "-c", command] if isinstance(command, str) else command
    return subprocess.run(
        words,
        cwd=folder,
        env=shell_environment(folder, words[-1]),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
    )


# Checks of blocks: each takes the block and the page's folder and yields what is wrong.

Check = Callable[[Block, Path], Iterator[str]]


def check_console(block: Block, folder: Path) -> Iterator[str]:
    commands = list(shown(block.text))
    if not commands or not block.text.startswith("$ "):
        yield "a console block must begin with '$ command'"
    for command, wanted in commands:
        result = run(command, folder)
        if result.returncode:
            yield f"$ {command}\nends with {result.returncode}:\n{result.stdout}"
        elif not fits(result.stdout, wanted):
            yield f"$ {command}\nis shown to print\n{wanted}\nand prints\n{result.stdout}"


def whole_spec(text: str) -> str:
    """Return a whole spec; if the text has only some fields of a kernel, the others are added."""
    if text.startswith("schema:"):
        return text
    lines = [*(["targets: [sm_90a]"] if "targets:" not in text else []), *text.splitlines()]
    kernel = textwrap.indent("\n".join(lines), "    ")
    head = "schema: 1\nkernels:\n  - name: example\n    entry: kernels.py:scale_add\n"
    return f"{head}{kernel}\n"


def check_yaml(block: Block, folder: Path) -> Iterator[str]:
    if re.search(r"^ +(script|- run):", block.text, re.MULTILINE):
        yield from check_recipe(block, folder)
        return
    (folder / "kernels.py").write_text(KERNELS)
    try:
        expand(parse_yaml(whole_spec(block.text), file="the block", base_dir=folder))
    except SpecError as error:
        yield str(error)


def check_recipe(block: Block, folder: Path) -> Iterator[str]:
    """Run the commands of a recipe in the page's folder, which has specs and a lock file."""
    recipe = yaml.safe_load(block.text)
    if "jobs" in recipe:
        steps = [step for job in recipe["jobs"].values() for step in job["steps"]]
        commands = [step["run"] for step in steps if "run" in step]
    else:
        commands = [line for job in recipe.values() for line in job["script"]]
    # One job builds the only shard.
    numbers = r"\$\{\{ (?:matrix\.shard|strategy\.job-total) \}\}|\$CI_NODE_(?:INDEX|TOTAL)"
    commands = [re.sub(numbers, "1", command) for command in commands]
    write_specs(folder)
    # A page has recipes for several services, which share commands.
    done = folder / ".commands"
    already = done.read_text().splitlines() if done.exists() else []
    commands = [command for command in commands if command not in already]
    done.write_text("\n".join([*already, *commands]))
    for command in commands:
        installed = re.fullmatch(
            r'pip install "pallasc(\[[a-z0-9,]+\])" -c constraints.txt', command
        )
        if installed is not None:
            # Install from this clone instead of an index, into an environment that has everything.
            options = "--dry-run --quiet --no-index --no-build-isolation"
            command = f"python -m pip install {options} {shlex.quote(f'{ROOT}{installed[1]}')}"
        if command.startswith("pallasc check "):
            # The other variants have a million elements: their checks take ten times as long.
            command += " -k n=4096"
        result = run(command, folder)
        if result.returncode:
            yield f"$ {command}\nends with {result.returncode}:\n{result.stdout}"
    left = {path.name for path in folder.iterdir()}
    if not {"report.xml", "report.json", "kernels.pallasc"} <= left:
        yield "the recipe leaves no report.xml, report.json and kernels.pallasc"


def write_specs(folder: Path) -> None:
    """Write the example of `pallasc init` to `specs`, and lock it."""
    if not (folder / "specs").exists():
        assert run("pallasc init specs", folder).returncode == 0
    if not (folder / "pallasc.lock").exists():
        assert run("pallasc lock specs --update", folder).returncode == 0


def check_python(block: Block, folder: Path) -> Iterator[str]:
    file = folder / f"block_{block.line}.py"
    file.write_text(block.text)
    command = ["python", "-P", file.name]
    if "@pallasc.kernel" in block.text or "pallasc.declare" in block.text:
        command = ["pallasc", "list", file.name]
    result = run(shlex.join(command), folder)
    if result.returncode:
        yield f"{shlex.join(command)} ends with {result.returncode}:\n{result.stdout}"


def check_shell(block: Block, folder: Path) -> Iterator[str]:
    for line in block.text.splitlines():
        command = line.partition("#")[0].strip()
        if command not in SHELL:
            yield f"there is no check of the command {command!r} in SHELL"
        else:
            yield from SHELL[command](block, folder)


def check_toml(block: Block, folder: Path) -> Iterator[str]:
    (folder / "pyproject.toml").write_text(block.text)
    try:
        if not read_settings(folder, {}):
            yield "the block sets no bundle"
    except SpecError as error:
        yield str(error)


def check_json(block: Block, folder: Path) -> Iterator[str]:
    json.loads(block.text)
    (folder / "tuned.json").write_text(block.text)
    yield from ()


def write_file(block: Block, folder: Path) -> Iterator[str]:
    name = NAMED.match(block.text)
    assert name is not None
    file = folder / name[1]
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(block.text)
    yield from ()


def check_text(block: Block, folder: Path) -> Iterator[str]:
    yield from ()


CHECKS: dict[str, Check] = {
    "console": check_console,
    "yaml": check_yaml,
    "python": check_python,
    "sh": check_shell,
    "toml": check_toml,
    "json": check_json,
    "text": check_text,
}


# Checks of the commands in `sh` blocks.


def recipe(target: str) -> list[str]:
    """Return the commands of a target of the Makefile, without make's own marks."""
    makefile = read("Makefile")
    found = re.search(rf"^{target}: \$.*\n((?:\t.*\n)+)", makefile, re.MULTILINE)
    assert found is not None, f"the Makefile has no target {target}"
    return [line.lstrip("\t@") for line in found[1].splitlines()]


def check_demo(block: Block, folder: Path) -> Iterator[str]:
    """Run what `make demo` runs; the last build compiles nothing."""
    default = re.search(r"^DEMO_SPEC \?= (.*)$", read("Makefile"), re.MULTILINE)
    if default is None or default[1] != DEMO_SPEC:
        yield f"the Makefile's DEMO_SPEC is not {DEMO_SPEC}"
    store = f"--store {shlex.quote(str(folder / '.demo'))}"
    some = "m=1024 or head=64 or n=4096"  # the first variant of each kernel
    last = ""
    for line in recipe("demo"):
        command = line.replace("$(BIN)/", "").replace("$(DEMO_SPEC)", str(ROOT / DEMO_SPEC))
        if not command.startswith("pallasc "):
            yield f"make demo runs {line!r}, which is not of pallasc"
            continue
        if " -k " not in command:
            command += f" -k {shlex.quote(some)}"
        result = run(f"{command} {store}", folder)
        last = result.stdout
        if result.returncode:
            yield f"{command} ends with {result.returncode}:\n{last}"
    hits = len(select(expand(load_specs([ROOT / DEMO_SPEC])), some))
    if f": {hits} hits (100 %)" not in last:
        yield f"the second build of the demo is not {hits} hits:\n{last}"


def check_make_test(block: Block, folder: Path) -> Iterator[str]:
    if not any("pytest" in line for line in recipe("test")):
        yield "make test does not run pytest"


def check_extra(block: Block, folder: Path) -> Iterator[str]:
    project = tomllib.loads(read("pyproject.toml"))["project"]
    if project["name"] != "pallasc" or "cuda13" not in project["optional-dependencies"]:
        yield "pyproject.toml has no extra cuda13"


SHELL: dict[str, Check] = {
    "make demo": check_demo,
    "make test": check_make_test,
    'pip install ".[cuda13]"': check_extra,
}


# Blocks that other tests check, because they need pallasc installed with its entry points
# (tests/wheels/test_page.py), the stand-in driver (tests/runtime/test_pages.py and
# native/test_page.py), a kernel around them (tests/checks/test_blocks.py), Tokamax
# (tests/specs/test_tokamax.py), or a machine file (tests/xla_client/test_page.py).
ELSEWHERE = {
    "docs/wheels.md": ("console", "python"),
    "docs/runtime.md": ("console", "python"),
    "docs/frameworks.md": ("python",),
    "docs/jax.md": ("console", "python"),
    "docs/native.md": ("console", "python"),
    "docs/check.md": ("python",),
    "docs/tokamax.md": ("console",),
    "docs/warm.md": ("sh", "yaml", "dockerfile"),
}


@pytest.fixture(scope="module")
def init_store(warm_store: Store, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a store with the built example of `pallasc init`."""
    folder = tmp_path_factory.mktemp("init")
    shutil.copytree(warm_store.root, folder / ".store")
    for command in ("pallasc init specs", "pallasc build specs"):
        assert run(command, folder).returncode == 0
    return folder / ".store"


def assembler_version() -> Version:
    try:
        return Version(metadata.version("nvidia-cuda-nvcc"))
    except metadata.PackageNotFoundError:  # the package of CUDA 12 has another name
        return Version("12")


@pytest.mark.parametrize("page", [page for page in PAGES if "```" in read(page)])
def test_every_block_of_a_page_does_what_it_says(
    page: str, tmp_path: Path, warm_store: Store, library_store: Store, init_store: Path
) -> None:
    if page == "docs/diff.md" and assembler_version() < Version("13.5"):
        pytest.skip("it shows the registers that a newer assembler takes")
    folder = tmp_path / "page"
    folder.mkdir()
    transcripts = "".join(block.text for block in blocks(page) if block.kind == "console")
    begins_empty = "compiled" in transcripts or "missing" in transcripts
    shutil.copytree(warm_store.root if begins_empty else init_store, folder / ".store")
    (folder / ".demo").symlink_to(library_store.root)
    problems = []
    for block in blocks(page):
        if block.kind in ELSEWHERE.get(page, ()):
            continue
        is_file = block.kind != "text" and NAMED.match(block.text)
        check = write_file if is_file else CHECKS.get(block.kind)
        if check is None:
            problems.append(
                f"{page}:{block.line}: there is no check for {block.kind or 'bare'} blocks"
            )
            continue
        problems += [f"{page}:{block.line}: {problem}" for problem in check(block, folder)]
    assert problems == []


@pytest.mark.parametrize(
    ("output", "wanted", "expected"),
    [
        ("a\nb\n", "a\nb\n", True),
        ("a\nb\n", "a\n", False),
        ("a\nb\nc\n", "a\n…\nc\n", True),
        ("a\nc\n", "a\n…\nc\n", True),
        ("a\nb\n", "a\n…\nc\n", False),
        ("took 3.2 s: 4 hits\n", "took … s: 4 hits\n", True),
        ("took 3.2 s: 5 hits\n", "took … s: 4 hits\n", False),
        ("a\n[1/3] checking 2: k@b200 7 s, l@b200 5 s\nb\n", "a\nb\n", True),
        ("[0/1] getting ready\nreading a b.py 2 s\nsent 1 of 2 variants\nb\n", "b\n", True),
        ("a\n[1/1] compiled  k@b200  1.84 s\nb\n", "a\nb\n", False),
        ("", "…\n", True),
        ("", "", True),
    ],
)
def test_shown_output_fits_only_what_it_means(output: str, wanted: str, expected: bool) -> None:
    assert fits(output, wanted) is expected


def test_every_fence_is_closed_and_read() -> None:
    for page in PAGES:
        fences = [line for line in read(page).splitlines() if line.startswith("```")]
        assert len(fences) == 2 * len(list(blocks(page))), page


def examples() -> list[str]:
    """Return the example commands in the help of docs/cli.md, without pipes and redirections."""
    lines = re.findall(r"^    (pallasc .*)$", read("docs/cli.md"), re.MULTILINE)
    return sorted({re.split(r"\s[|>]\s|\s{3,}", line)[0].strip() for line in lines})


@pytest.mark.parametrize("example", examples())
def test_every_example_of_the_help_is_accepted(
    example: str, capfd: pytest.CaptureFixture[str]
) -> None:
    words = shlex.split(example)[1:]
    own = words[: words.index("--")] if "--" in words else words
    assert main([*own, "--help"]) == 0
    assert capfd.readouterr().out.startswith("Usage: pallasc")


def test_the_reference_of_specs_names_every_field_and_dtype() -> None:
    page = read("docs/spec.md")
    tables = (FILE_FIELDS, KERNEL_FIELDS, BUDGET_FIELDS, TOLERANCE_FIELDS, MODEL_FIELDS)
    names = [field.name for table in tables for field in table] + list(DTYPES)
    assert [name for name in names if f"`{name}`" not in page] == []


def test_the_table_of_variables_names_every_variable_that_the_code_reads() -> None:
    files = [file for folder in PRODUCT for file in (ROOT / folder).rglob("*.py")]
    text = "".join(file.read_text("utf-8") for file in files)
    read_here = set(re.findall(r'"(PALLASC_[A-Z_]+)"', text))
    listed = re.findall(r"^\| `(\w+)` \|", read("docs/environment.md"), re.MULTILINE)
    assert len(listed) >= 20
    assert sorted(listed) == sorted(read_here)


@pytest.mark.parametrize("page", ["README.md", "docs/runtime.md", "docs/targets.md"])
def test_a_page_names_every_architecture(page: str) -> None:
    named = set(re.findall(r"\bsm_\d+[a-z]?\b", read(page)))
    assert set(DEFAULT_MODELS) <= named


LINK = re.compile(r"\]\((?P<to>[^)#\s]+)[^)]*\)")
CODE = re.compile(r"`(?P<text>[^`\n]+)`")
FOLDERS = ["bench", "cache", "cli", "compiler", "docs", "examples", "hooks", "runtime"]
FOLDERS += ["analysis", "checks", "emulator", "specs", "tests"]
PRODUCT = [*(set(FOLDERS) - {"bench", "docs", "examples", "tests"}), "reports", "tuning"]


def named_paths(page: str) -> Iterator[str]:
    """Yield the paths of this project that a page names: links, and code that is a path."""
    text = FENCE.sub("", read(page))
    for match in LINK.finditer(text):
        if "://" not in match["to"]:
            yield match["to"]
    for match in CODE.finditer(text):
        word = match["text"]
        inside = re.fullmatch(r"[\w.-]+(/[\w.-]*)+", word) and word.split("/")[0] in FOLDERS
        if inside or re.fullmatch(r"[A-Z]+\.md", word):
            yield word


@pytest.mark.parametrize("page", PAGES)
def test_every_path_that_a_page_names_exists(page: str) -> None:
    # Modules are named without their suffix: `compiler/workers/pool`.
    missing = [
        name
        for name in named_paths(page)
        if not (ROOT / name).exists() and not (ROOT / f"{name}.py").exists()
    ]
    assert missing == []


def test_architecture_names_only_modules_that_exist() -> None:
    modules = {path.stem for folder in FOLDERS for path in (ROOT / folder).rglob("*.py")}
    words = re.findall(r"`([a-z]+(?:_[a-z0-9]+)+)`", read("ARCHITECTURE.md"))
    assert [word for word in words if word not in modules] == []
    assert words


@pytest.mark.parametrize("page", [*PAGES, "Makefile", "pyproject.toml"])
def test_a_page_has_no_path_of_a_machine(page: str) -> None:
    assert re.findall(r"(?<![\w.])/(?:home|root|tmp|work|Users|mnt|opt)/\S*", read(page)) == []


@pytest.mark.parametrize("name", [name for name in pallasc.__all__ if name != "__version__"])
def test_every_public_name_and_its_methods_have_a_docstring(name: str) -> None:
    public = getattr(pallasc, name)
    assert inspect.getdoc(public)
    members = vars(public).items() if inspect.isclass(public) else ()
    bare = [
        member
        for member, value in members
        if not member.startswith("_")
        and (inspect.isfunction(value) or isinstance(value, property))
        and not inspect.getdoc(value)
    ]
    assert bare == []
