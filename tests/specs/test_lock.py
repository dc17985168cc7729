"""The lock file: what is written, what is read, and how two locks differ."""

import hashlib
import os
import stat
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.artifacts.artifact import Resources
from pallasc.specs.loading.lock import (
    Component,
    Entry,
    Lock,
    differences,
    lock_text,
    merged,
    parse_lock,
    read_lock,
    write_lock,
)


def digest(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def entry(text: str) -> Entry:
    return Entry(*(digest(f"{field} {text}") for field in Entry._fields))


def shown(entry: Entry) -> str:
    return f"{{action: {entry.action}, artifact: {entry.artifact}, request: {entry.request}}}"


A, B, C = entry("a"), entry("b"), entry("c")
MATMUL = "matmul[m=1024,dtype=bf16]@h100-sxm"
JAX, LIBDEVICE = Component(digest("jax"), "0.12.0.1"), Component(digest("libdevice"))
TOOLCHAIN = {"jax": JAX, "libdevice": LIBDEVICE}
TAKEN = Resources(168, 0, 16, 65536, 8, 9512)
LOCK = Lock(TOOLCHAIN, {MATMUL: A, "add@b200": B}, {MATMUL: TAKEN})
NUMBERS = (
    "resources: {registers: 168, spill_bytes: 0, stack_bytes: 16, smem_bytes: 65536, "
    "occupancy: 8, cubin_bytes: 9512}"
)
TEXT = f"""\
# The artifact of each variant. Commit this file. `pallasc lock SPECS --update` writes it;
# `pallasc build --locked` and `pallasc build --frozen` require these artifacts.
schema: 3
toolchain:
  jax: {{version: "0.12.0.1", digest: {JAX.digest}}}
  libdevice: {{digest: {LIBDEVICE.digest}}}
variants:
  add@b200: {shown(B)}
  {MATMUL}: {shown(A)[:-1]}, {NUMBERS}}}
"""


def read(text: str) -> Lock:
    return parse_lock(text, "pallasc.lock")


def error(text: str) -> str:
    with pytest.raises(SpecError) as caught:
        read(text)
    assert caught.value.exit_code == 2
    return str(caught.value)


def test_a_variant_is_one_line_and_lines_are_sorted() -> None:
    assert lock_text(LOCK) == TEXT
    assert lock_text(Lock()).endswith("schema: 3\ntoolchain: {}\nvariants: {}\n")
    assert read(lock_text(Lock())) == Lock()


def test_what_is_written_is_read_and_is_yaml() -> None:
    assert read(TEXT) == LOCK
    data = yaml.safe_load(TEXT)
    assert data["variants"][MATMUL] == {**A._asdict(), "resources": TAKEN._asdict()}
    assert data["variants"]["add@b200"] == B._asdict()
    assert data["toolchain"]["jax"] == {"version": "0.12.0.1", "digest": JAX.digest}


@pytest.mark.parametrize(
    "name",
    [
        "rows[layout=a: b]@b200", 'rows[text="quoted" \\n]@b200', "rows[text=two\nlines\t]@b200",
        "rows[text=größe × 2 \U0001f600]@b200", "rows[text=\x85\u2028\ufeff\x00]@b200",
        f"rows[text={'long ' * 170}]@b200", "rows[text={m}, n: [1]]@b200", "null@b200", "_x",
    ],
)  # fmt: skip
def test_any_name_is_written_so_that_its_reader_gives_it_back(name: str) -> None:
    text = lock_text(Lock({"jax": JAX}, {name: A}))
    assert list(yaml.safe_load(text)["variants"]) in ([name], [None])
    assert read(text).variants == {name: A}


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]))))
def test_every_text_that_has_an_encoding_can_be_part_of_an_id(names: set[str]) -> None:
    tools = {f"{name}:": JAX._replace(version=name) for name in names}
    lock = Lock(tools, {f"{name}@b200": A for name in names})
    assert read(lock_text(lock)) == lock


@pytest.mark.parametrize(
    "form",
    [
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("variants:\n", "# the variants\nvariants:\n"),
        lambda text: text.removeprefix(text[: text.index("schema")]),
        lambda text: text.rstrip("\n"),
        lambda text: "\ufeff" + text.replace("\n", "\r\n"),
    ],
)
def test_comments_and_line_ends_do_not_matter(form: Callable[[str], str], tmp_path: Path) -> None:
    path = tmp_path / "pallasc.lock"
    assert read_lock(path) is None
    path.write_bytes(form(TEXT).encode())
    assert path.read_bytes() != TEXT.encode()
    assert read_lock(path) == LOCK


def test_what_cannot_be_read_or_written_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="this is a directory, not a file"):
        read_lock(tmp_path)
    path = tmp_path / "pallasc.lock"
    path.write_bytes(b"schema: 1\ntoolchain: \xff\n")
    with pytest.raises(SpecError, match=r"pallasc.lock:2: byte 0xff is not UTF-8") as caught:
        read_lock(path)
    assert caught.value.hint == "Give a lock file: pallasc lock SPECS --update writes it."
    with pytest.raises(SpecError, match="cannot be written: File exists"):
        write_lock(path / "pallasc.lock", LOCK)


DAMAGE = [
    (
        "variants:\n", "variants:\n<<<<<<< HEAD\n",
        "pallasc.lock:8: the lock holds the marks of a merge conflict.\n"
        "  Take either side, then run: pallasc lock SPECS --update",
    ),
    ("  add@b200", "=======\n  add@b200", "pallasc.lock:8: the lock holds the marks of a merge"),
    (f"  {MATMUL}", ">>>>>>> theirs\n  x", "pallasc.lock:9: the lock holds the marks of a merge"),
    (
        "schema: 3", "schema: 5",
        "lock:3: the lock has schema 5, and this pallasc reads schemas 1, 2, 3 and 4.",
    ),
    ("schema: 3", "schema: [1]", "pallasc.lock:3: the lock has schema [1], and"),
    ("schema: 3\n", "", "pallasc.lock: the lock lacks its schema"),
    ("variants:\n", "variant:\n", "pallasc.lock:7: invalid line: 'variant:'."),
    ("  add@b200", f"  {MATMUL}", f"pallasc.lock:9: {MATMUL!r} is in the lock twice."),
    ("  libdevice", "  jax", "pallasc.lock:6: 'jax' is in the lock twice."),
    (B.action, f"{A.action}, action: {B.action}", "pallasc.lock:8: invalid line: '  add@b200: "),
    (B.action, B.action[1:], "pallasc.lock:8: invalid line: "),
    (B.action, B.action.upper(), "pallasc.lock:8: "),
    ("action: ", "actoin: ", "pallasc.lock:8: "),
    (f", artifact: {B.artifact}", "", "pallasc.lock:8: "),
    (shown(B), "1", "pallasc.lock:8: invalid line: '  add@b200: 1'."),
    ("  add@b200", "\tadd@b200", "pallasc.lock:8: "),
    ("cubin_bytes: 9512}", "cubin_bytes: 9512}, cost: fast", "pallasc.lock:9: "),
    ("registers: 168", "registers: 168, registers: 9", "pallasc.lock:9: "),
    ("registers: 168", "warps: 9", "pallasc.lock:9: "),
    ("registers: 168", "registers: many", "pallasc.lock:9: "),
    (TEXT[TEXT.index("toolchain") :], "toolchain: []\nvariants: {}", "pallasc.lock:4: "),
    (TEXT[TEXT.index("variants") :], "variants: 1\n", "pallasc.lock:7: invalid line: 'variants: 1"),
]  # fmt: skip


@pytest.mark.parametrize(("good", "bad", "message"), DAMAGE)
def test_damage_is_named_with_file_and_line(good: str, bad: str, message: str) -> None:
    assert TEXT.count(good) >= 1
    assert message in error(TEXT.replace(good, bad, 1))


@pytest.mark.parametrize("text", ["# only notes\n", "[]", "text", "[" * 5000])
def test_what_is_no_lock_at_all_is_refused(text: str) -> None:
    assert error(text).startswith("pallasc.lock")


def test_a_lock_that_was_cut_off_is_refused_or_lacks_entries() -> None:
    for length in range(0, len(TEXT), 3):
        try:
            found = read(TEXT[:length])
        except SpecError:
            continue
        assert found.toolchain == LOCK.toolchain
        assert found.variants.items() <= LOCK.variants.items()


def test_writing_is_one_step_through_a_link_too_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path, link = tmp_path / "pallasc.lock", tmp_path.with_suffix(".link")
    path.write_text("old")
    link.symlink_to(path)
    before = path.stat().st_ino
    write_lock(link, LOCK)
    assert link.is_symlink()
    assert path.read_text() == TEXT
    assert path.stat().st_ino != before
    assert os.listdir(tmp_path) == ["pallasc.lock"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_locks_of_older_versions_lack_resources_or_have_compile_times() -> None:
    old = TEXT.replace("schema: 3", "schema: 1").replace(f", {NUMBERS}", "")
    assert read(old) == replace(LOCK, resources={})
    old = TEXT.replace("schema: 3", "schema: 2").replace(NUMBERS, "cost: 1.8")
    assert read(old) == replace(LOCK, resources={})
    assert read(TEXT.replace(NUMBERS, f"{NUMBERS}, cost: 0.32")) == LOCK


def test_a_lock_with_tables_has_schema_4_and_one_without_is_as_before() -> None:
    rows, more = digest("rows"), digest("more")
    lock = replace(LOCK, tables={"matmul@h100-sxm": rows, "a b@b200": more})
    section = f"tables:\n  a b@b200: {more}\n  matmul@h100-sxm: {rows}\nvariants:"
    text = lock_text(lock)
    assert text == TEXT.replace("schema: 3", "schema: 4").replace("variants:", section)
    assert read(text) == lock
    place = "pallasc.lock:9: invalid line: '  matmul@h100-sxm: abc'."
    assert error(text.replace(rows, "abc")).startswith(place)
    old = replace(LOCK, tables={"matmul@h100-sxm": A.action, "matmul@b200": B.action, "z@b200": ""})
    new = Lock(TOOLCHAIN, {MATMUL: A}, tables={"matmul@h100-sxm": C.action})
    assert merged(old, new, whole=False).tables == {**old.tables, "matmul@h100-sxm": C.action}
    assert merged(old, new, whole=True).tables == new.tables
    without = Lock(TOOLCHAIN, {MATMUL: A})
    assert "matmul@h100-sxm" not in merged(old, without, whole=False).tables


def test_resources_go_with_the_artifact_that_has_them() -> None:
    taken = {MATMUL: Resources(registers=9)}
    new = Lock({"jax": JAX}, {MATMUL: C}, taken)
    assert merged(LOCK, new, whole=False).resources == taken
    other = Lock(TOOLCHAIN, {"add@b200": C}, {"add@b200": TAKEN})
    assert merged(LOCK, other, whole=False).resources == {MATMUL: TAKEN, "add@b200": TAKEN}
    assert merged(LOCK, other, whole=True).resources == other.resources


def test_words_for_the_same_toolchain_stay() -> None:
    renamed = replace(LOCK, toolchain={**TOOLCHAIN, "jax": JAX._replace(version="0.12")})
    assert merged(LOCK, renamed, whole=True) == LOCK
    other = replace(LOCK, toolchain={"jax": JAX})
    assert merged(LOCK, other, whole=True) == replace(LOCK, toolchain=other.toolchain)


def made(version: str, content: str = "") -> Component:
    return Component(hashlib.sha256(f"{version}{content}".encode()).hexdigest(), version)


@pytest.mark.parametrize(
    ("locked", "now", "clauses"),
    [
        ({"jax": made("1")}, {"jax": made("1")}, []),
        (
            {"jax": made("1"), "jaxlib": made("1"), "pjrt": made("1"), "ptxas": made("13.5")},
            {"jax": made("2"), "jaxlib": made("2"), "pjrt": made("2"), "ptxas": made("13.5", "x")},
            ["jax, jaxlib and pjrt: 1 before, 2 here",
             "ptxas: other content of the same version, 13.5"],
        ),
        (
            {"libdevice": made(""), "variable XLA_FLAGS": made("")},
            {"libdevice": made("", "x"), "variable XLA_FLAGS": made("", "x")},
            ["libdevice and variable XLA_FLAGS: other content"],
        ),
        (
            {"packages": made("numpy 2.1, scipy 1.14"), "tracing packages": made("numpy 2.1")},
            {"packages": made("numpy 2.2, scipy 1.14"), "tracing packages": made("numpy 2.1, x 1")},
            ["packages: numpy 2.1 before, numpy 2.2 here",
             "tracing packages: nothing before, x 1 here"],
        ),
        ({"nvlink": made("")}, {}, ["nvlink: not here"]),
        ({}, {"nvlink": made("")}, ["nvlink: only here"]),
    ],
)  # fmt: skip
def test_how_toolchains_differ_is_said_in_words(
    locked: dict[str, Component], now: dict[str, Component], clauses: list[str]
) -> None:
    assert differences(locked, now) == clauses
