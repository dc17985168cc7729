"""Mistakes and damage: clear errors, and never an executable that a machine cannot run."""

import fcntl
import json
import random
import re
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import standin_gpu
from standin_gpu import Folder

from pallasc.compiler.programs.cache_folder import read_index
from pallasc.specs.loading.decorator import collect_python
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.yaml_loader import load_yaml

PROGRAM = """\
schema: 1
machines: [one.json]
programs:
  - {name: program, entry: "app.py:program", args: {x: "f32[8]"}}
"""


def written(
    filled: Folder, place: Path, source: str, spec: str = PROGRAM, **changed: Any
) -> Folder:
    """Return a folder with one program; `changed` are fields of its machine file."""
    place.mkdir()
    machine = json.loads((filled.path / "one.json").read_text())
    (place / "one.json").write_text(json.dumps({**machine, **changed}))
    (place / "app.py").write_text(f"import jax\nimport jax.numpy as jnp\n\n\n{source}")
    (place / "programs.yaml").write_text(spec)
    return Folder(place, filled.store)


def test_a_program_in_python_is_that_of_yaml(filled: Folder, tmp_path: Path) -> None:
    place = written(filled, tmp_path / "program", IDENTITY).path
    (place / "programs.py").write_text(
        "import pallasc\n\npallasc.program(\n"
        '    entry="app.py:program", args={"x": "f32[8]"}, machines=["one.json"]\n)\n'
    )
    (own,) = expand(collect_python(place / "programs.py"))
    (other,) = expand(load_yaml(place / "programs.yaml"))
    assert own.program == other.program is not None
    assert (own.id, own.request()) == (other.id, other.request())


IDENTITY = "@jax.jit\ndef program(x):\n    return x + 1\n"
MACHINES = {
    "jax": ("0.1.2", "its machine file was written with jax 0.1.2", 4),
    "schema": (2, "has schema 2, and this pallasc reads schema 1", 2),
    "fingerprint": ("0" * 16, "is not the one that was recorded", 4),
}
"""Fields of a machine file: a value, the message, and the exit code."""


@pytest.mark.parametrize("field", MACHINES)
def test_mistakes_in_machine_files_have_clear_errors(
    filled: Folder, tmp_path: Path, field: str
) -> None:
    value, message, code = MACHINES[field]
    folder = written(filled, tmp_path / "case", IDENTITY, **{field: value})
    _assert_told(folder.warm("programs.yaml", "--cache-dir", "cache"), code, message)


def test_mistakes_in_programs_have_clear_errors(filled: Folder, tmp_path: Path) -> None:
    folder = written(filled, tmp_path / "module", "1 / 0\n")
    _assert_told(folder.warm("programs.yaml"), 2, "app.py")
    source = """@jax.jit
def program(x):
    raise ValueError('no batch')


@jax.jit
def prints(x):
    jax.debug.print('{}', x)
    return x


@jax.jit
def other(y):
    return y
"""
    row = PROGRAM.splitlines()[-1]
    rows = [row.replace("program", name) for name in ("prints", "other")]
    folder = written(filled, tmp_path / "programs", source, "\n".join([PROGRAM.rstrip(), *rows]))
    _assert_told(
        folder.warm("programs.yaml", "--cache-dir", "cache"),
        1,
        "app.py:7: ValueError: no batch",
        "app.py:12: the program calls Python while it runs",
        "the arguments do not fit",
    )


def _assert_told(done: Any, code: int, *messages: str) -> None:
    assert done.returncode == code, done.stderr
    assert all(message in done.stderr for message in messages), done.stderr
    assert "Traceback" not in done.stderr


SPECS = {
    "machines: [one.json]\n": ("", "field 'machines' is missing"),
    'args: {x: "f32[8]"}': ('args: {x: "f32[8]"}, donate: [y]', "unknown argument 'y'"),
    'x: "f32[8]"}': ('x: "f32[8]"}, shardings: {x: [data]}', "unknown axis name 'data'"),
    'args: {x: "f32': (
        'mesh: {data: 2}, explicit: [row], args: {x: "f32',
        "unknown axis name 'row'",
    ),
    "one.json": ("two.json", "two.json"),
    "name: program": ("nam: program", "nam"),
}


@pytest.mark.parametrize("before", SPECS)
def test_mistakes_in_specs_are_located(filled: Folder, tmp_path: Path, before: str) -> None:
    after, message = SPECS[before]
    spec = PROGRAM.replace(before, after, 1)
    done = written(filled, tmp_path / "case", IDENTITY, spec).warm("programs.yaml")
    assert done.returncode == 2, done.stderr
    assert message in done.stderr
    assert "programs.yaml:" in done.stderr


def test_each_command_names_the_other(filled: Folder, tmp_path: Path) -> None:
    folder = written(filled, tmp_path / "case", IDENTITY)
    built = folder.pallasc("build", "programs.yaml", "--store", str(filled.store))
    assert built.returncode == 2
    assert "pallasc warm compiles programs" in built.stderr


def test_a_cut_entry_is_reported_and_compiled_again(filled: Folder, tmp_path: Path) -> None:
    copied = filled.copy(tmp_path / "there")
    for entry in (copied.path / "cache").glob("jit_sample-*-cache"):
        entry.write_bytes(entry.read_bytes()[:-100])
    told = copied.pallasc("warm", "--verify", "cache", "--machine", "one.json")
    assert "is damaged" in next(row for row in told.stdout.splitlines() if "sample@one" in row)
    assert copied.start("sampler").hits == 0
    copied.warm("programs.yaml", "--cache-dir", "cache", "--frozen")
    assert copied.start("sampler").compiled == 0


def test_programs_of_two_specs_with_one_name_share_a_folder(filled: Folder, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    for name in ("one", "two"):
        source = IDENTITY.replace("x + 1", f"x + {len(name)}.{name == 'two':d}")
        folder = written(filled, tmp_path / name, source.replace("def program", f"def {name}"),
                         PROGRAM.replace("app.py:program", f"app.py:{name}"))  # fmt: skip
        assert folder.warm("programs.yaml", "--cache-dir", str(cache)).returncode == 0
    assert len([*cache.glob("*-cache")]) == 2
    folder.path.joinpath("programs.yaml").write_text(PROGRAM.replace("name: program", "name: new"))
    folder.path.joinpath("app.py").write_text(f"import jax\n{IDENTITY}")
    told = folder.warm("programs.yaml", "--verify", str(cache), "--machine", "one.json")
    assert told.returncode == 3
    assert "miss  new@one  not in the folder" in told.stdout


def test_filling_a_folder_waits_for_another_process(filled: Folder, tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    (cache / "pallasc").mkdir(parents=True)
    with (cache / "pallasc" / "lock").open("w") as lock, ThreadPoolExecutor() as threads:
        fcntl.flock(lock, fcntl.LOCK_EX)
        filling = threads.submit(
            filled.warm, "programs.yaml", "--frozen", "--cache-dir", str(cache)
        )
        inode = (cache / "pallasc" / "lock").stat().st_ino
        while not re.search(rf"-> FLOCK .*:{inode} ", Path("/proc/locks").read_text()):
            assert not filling.done(), filling.result().stderr
            time.sleep(0.02)
        assert not (cache / "pallasc-warm.json").exists()
        fcntl.flock(lock, fcntl.LOCK_UN)
        assert filling.result().returncode == 0
    assert len(read_index(cache).entries) == 8


def test_an_entry_stays_while_another_program_has_it(filled: Folder, tmp_path: Path) -> None:
    both = PROGRAM + PROGRAM.splitlines()[-1].replace("name: program", "name: again") + "\n"
    folder = written(filled, tmp_path / "here", IDENTITY, both)
    folder.warm("programs.yaml", "--cache-dir", "cache")
    spec = folder.path / "programs.yaml"
    before, _, after = both.rpartition("f32[8]")
    spec.write_text(f"{before}f32[16]{after}")
    folder.warm("programs.yaml", "--cache-dir", "cache", "-k", "again")
    told = folder.warm("programs.yaml", "--verify", "cache", "--machine", "one.json")
    assert told.stdout == "hit   again@one\nhit   program@one\n"


def test_a_sharding_of_no_array_is_an_error(filled: Folder, tmp_path: Path) -> None:
    own = 'mesh: {data: 2}, shardings: {x.w: [data]}, args: {x: "f32[8]"}'
    folder = written(
        filled, tmp_path / "here", IDENTITY, PROGRAM.replace('args: {x: "f32[8]"}', own)
    )
    shutil.copy(filled.path / "two.json", folder.path / "one.json")
    done = folder.warm("programs.yaml")
    assert done.returncode == 2
    assert "no array is at 'x.w' in args" in done.stderr


def test_a_full_disk_leaves_no_file_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from pallasc.compiler.programs import cache_folder
    from pallasc.errors import SpecError

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(cache_folder.os, "replace", full)
    with pytest.raises(SpecError, match="No space left on device"):
        cache_folder.fill(tmp_path, [])
    assert not [*tmp_path.rglob(".pallasc-*")]


def test_flags_count_as_in_the_keys_of_jax() -> None:
    from jax._src import cache_key

    from pallasc.compiler.programs.describe import counted_flags

    left_out = cache_key.xla_flags_to_exclude_from_cache_key
    flags = [flag for flag in left_out if "_tpu_" not in flag]
    assert counted_flags(" ".join(f"{flag}=1" for flag in flags)) == ()
    counted = "--xla_dump_enable_mlir_pretty_form=false"
    assert counted_flags(f"--xla_dump_to=/tmp {counted}") == (counted,)


def test_mutated_folders_give_no_wrong_verdict(filled: Folder, tmp_path: Path) -> None:
    """Each of 100 changes of a folder is found, or leaves all entries as they were."""
    import contextlib

    from pallasc.compiler.programs.cache_folder import verify
    from pallasc.errors import PallascError
    from pallasc.specs.spec import read_machine

    machine = read_machine(filled.path / "one.json")
    pristine = {p.name: p.read_bytes() for p in (filled.path / "cache").glob("*-cache")}
    rng = random.Random(7)
    for number in range(100):
        folder = tmp_path / str(number)
        shutil.copytree(filled.path / "cache", folder)
        files = sorted(path for path in folder.rglob("*") if path.is_file() and path.stat().st_size)
        changed = rng.choice(files)
        data = bytearray(changed.read_bytes())
        match rng.randrange(4):
            case 0:
                data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)
            case 1:
                del data[rng.randrange(len(data)) :]
            case 2:
                changed = rng.choice(files)
            case _:
                changed = folder / f"jit_other-{number:064x}-cache"
        changed.write_bytes(data)
        with contextlib.suppress(PallascError):
            for verdict in verify(folder, machine, {}):
                name = f"{verdict.key}-cache"
                if verdict.status == "hit":
                    assert (folder / name).read_bytes() == pristine[name]
        shutil.rmtree(folder)


def test_no_gpu_means_no_machine_file(filled: Folder) -> None:
    done = filled.pallasc("machine", variables=standin_gpu.environment(devices=""))
    assert done.returncode == 4
    assert "JAX finds no GPU here" in done.stderr
    assert "Traceback" not in done.stderr
