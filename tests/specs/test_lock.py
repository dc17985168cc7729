"""The lock file: what is written, what is read, and how two locks differ."""

from __future__ import annotations

import hashlib
import os
import random
import stat
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.loading.lock import (
    Change,
    Component,
    Entry,
    Lock,
    compare,
    lock_text,
    merged,
    parse_lock,
    read_lock,
    settled_cost,
    write_lock,
)
from pallasc.specs.resources import Resources


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
LOCK = Lock(TOOLCHAIN, {MATMUL: A, "add@b200": B}, {MATMUL: 1.8}, {MATMUL: TAKEN})
NUMBERS = (
    "resources: {registers: 168, spill_bytes: 0, stack_bytes: 16, smem_bytes: 65536, "
    "occupancy: 8, cubin_bytes: 9512}"
)
TEXT = f"""\
# What each variant was compiled to. Commit this file; `pallasc lock SPECS --update` writes
# it, `pallasc build --locked` and `pallasc build --frozen` hold to it.
schema: 3
toolchain:
  jax: {{version: "0.12.0.1", digest: {JAX.digest}}}
  libdevice: {{digest: {LIBDEVICE.digest}}}
variants:
  add@b200: {shown(B)}
  {MATMUL}: {shown(A)[:-1]}, {NUMBERS}, cost: 1.8}}
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


def test_equal_locks_give_equal_bytes_whatever_the_order_was() -> None:
    names = [f"k{i}@b200" for i in range(50)]
    shuffled = random.Random(0).sample(names, len(names))
    first = Lock({}, {name: entry(name) for name in names})
    second = Lock({}, {name: entry(name) for name in shuffled})
    assert lock_text(first) == lock_text(second)


def test_what_is_written_is_read_and_is_yaml() -> None:
    assert read(TEXT) == LOCK
    data = yaml.safe_load(TEXT)
    assert data["variants"][MATMUL] == {
        **A._asdict(),
        "resources": TAKEN._asdict(),
        "cost": 1.8,
    }
    assert data["variants"]["add@b200"] == B._asdict()
    assert data["toolchain"]["jax"] == {"version": "0.12.0.1", "digest": JAX.digest}


NAMES = [
    "rows[layout=row major]@b200",
    "rows[layout=a: b]@b200",
    "rows[layout=a #b]@b200",
    'rows[text="quoted" \\n]@b200',
    "rows[text=two\nlines\t]@b200",
    "rows[text=größe × 2 \U0001f600]@b200",
    "rows[text=\x85\u2028\ufeff\x00]@b200",
    f"rows[text={'long ' * 400}]@b200",
    "rows[text={m}, n: [1]]@b200",
    "null@b200",
    "_x",
]


@pytest.mark.parametrize("name", NAMES)
def test_any_name_is_written_so_that_both_readers_give_it_back(name: str) -> None:
    text = lock_text(Lock({"jax": JAX}, {name: A}))
    assert list(yaml.safe_load(text)["variants"]) in ([name], [None])
    assert read(text).variants == {name: A}
    assert read(text.replace("{action", "{ action")).variants == {name: A}


@given(st.sets(st.text(st.characters(exclude_categories=["Cs"]))))
def test_every_text_that_has_an_encoding_can_be_part_of_an_id(names: set[str]) -> None:
    lock = Lock({"jax": JAX}, {f"{name}@b200": A for name in names})
    assert read(lock_text(lock)) == lock


def test_a_lock_of_nothing_is_written_and_read() -> None:
    assert lock_text(Lock()).endswith("schema: 3\ntoolchain: {}\nvariants: {}\n")
    assert read(lock_text(Lock())) == Lock()


def as_prettier_has_it(text: str) -> str:
    return text.replace("{", "{ ").replace("}", " }").replace('"', "'")


def in_block_style(text: str) -> str:
    data = yaml.safe_load(text)
    return yaml.safe_dump(data, default_flow_style=False, sort_keys=False)


@pytest.mark.parametrize(
    "form",
    [
        as_prettier_has_it,
        in_block_style,
        lambda text: text.replace("\n", "\n\n"),
        lambda text: text.replace("variants:\n", "# the variants\nvariants:\n"),
        lambda text: text.removeprefix(text[: text.index("schema")]),
        lambda text: f"# mine\n{text}",
        lambda text: f"---\n{text}...\n",
        lambda text: text.rstrip("\n"),
    ],
)
def test_what_another_tool_made_of_it_is_read_the_same(form: object) -> None:
    changed = form(TEXT)  # type: ignore[operator]
    assert changed != TEXT
    assert read(changed) == LOCK


def test_line_ends_and_a_byte_order_mark_do_not_matter(tmp_path: Path) -> None:
    path = tmp_path / "pallasc.lock"
    path.write_bytes(b"\xef\xbb\xbf" + TEXT.replace("\n", "\r\n").encode())
    assert read_lock(path) == LOCK


def test_a_file_that_is_not_there_is_no_lock(tmp_path: Path) -> None:
    assert read_lock(tmp_path / "pallasc.lock") is None


def test_what_cannot_be_read_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(SpecError, match="cannot be read: Is a directory"):
        read_lock(tmp_path)
    path = tmp_path / "pallasc.lock"
    path.write_bytes(b"schema: 1\ntoolchain: \xff\n")
    with pytest.raises(SpecError, match=r"pallasc.lock:2: byte 0xff is not UTF-8") as caught:
        read_lock(path)
    assert caught.value.hint == (
        f"Restore the file, or remove it and run: pallasc lock SPECS --update --lock {path}"
    )


DAMAGE = [
    (
        "variants:\n",
        "variants:\n<<<<<<< HEAD\n",
        "pallasc.lock:8: the lock holds the marks of a merge conflict.\n"
        "  Take either side, then run: pallasc lock SPECS --update",
    ),
    ("  add@b200", "=======\n  add@b200", "pallasc.lock:8: the lock holds the marks of a merge"),
    (f"  {MATMUL}", ">>>>>>> theirs\n  x", "pallasc.lock:9: the lock holds the marks of a merge"),
    (
        "schema: 3",
        "schema: 5",
        "lock:3:9: schema: the lock has schema 5, and this pallasc reads schemas 1, 2, 3 and 4.",
    ),
    ("schema: 3", "schema: [1]", "pallasc.lock:3:9: schema: the lock has schema a list, and"),
    ("schema: 3\n", "", "pallasc.lock:3:1: field 'schema' is missing."),
    ("variants:\n", "variant:\n", "pallasc.lock:7:1: unknown field 'variant'."),
    ("schema: 3", "schema: 3\nmore: 2", "pallasc.lock:4:1: unknown field 'more'."),
    ("  add@b200", f"  {MATMUL}", "is given twice, first at pallasc.lock:8:3."),
    ("  libdevice", "  jax", "pallasc.lock:6:3: key 'jax' is given twice, first"),
    (B.action, B.action[1:], "expected a digest of 64 hexadecimal digits, got"),
    (B.action, B.action.upper(), "pallasc.lock:8:22: "),
    ("action: ", "actoin: ", "pallasc.lock:8:14: variants.add@b200: unknown field 'actoin'."),
    (
        f", artifact: {B.artifact}",
        "",
        "lock:8:13: variants.add@b200: field 'artifact' is missing.",
    ),
    (shown(B), "1", "8:13: variants.add@b200: expected a mapping, got 1."),
    (B.action, f"[{B.action}]", "pallasc.lock:8:22: variants.add@b200.action: expected a digest"),
    ("  add@b200:", "  [add]:", "pallasc.lock:8:3: a key must be text."),
    ("  add@b200", "\tadd@b200", "pallasc.lock:8:1: not YAML: "),
    ("  jax: {", "  jax: {{", "pallasc.lock:5:9: a key must be text."),
    ("add@b200", "add@b200\x07", "pallasc.lock:8: not YAML: "),
    ("cost: 1.8", "cost: fast", "cost: expected a number of at least 0, got 'fast'."),
    ("cost: 1.8", "cost: -1", "cost: expected a number of at least 0, got -1."),
]


@pytest.mark.parametrize(
    ("bad", "advice"),
    [
        ("variants:\n<<<<<<< HEAD\n", "Take either side, then"),
        ("variants: {{\n", "Restore the file, or remove it and"),
        ("variants: 1\n", "Restore the file, or remove it and"),
        ("", "Restore the file, or remove it and"),
    ],
)
def test_advice_on_damage_names_the_file_to_write_anew(bad: str, advice: str) -> None:
    text = f"schema: 1\ntoolchain: {{}}\n{bad}" if bad else ""
    with pytest.raises(SpecError) as caught:
        parse_lock(text, "my locks/ci.lock")
    assert caught.value.hint == (
        f"{advice} run: pallasc lock SPECS --update --lock 'my locks/ci.lock'"
    )


@pytest.mark.parametrize(("good", "bad", "message"), DAMAGE)
def test_damage_is_named_with_file_and_line(good: str, bad: str, message: str) -> None:
    assert TEXT.count(good) >= 1
    assert message in error(TEXT.replace(good, bad, 1))


def test_a_key_twice_in_one_line_is_seen() -> None:
    text = TEXT.replace(f"action: {B.action}", f"action: {A.action}, action: {B.action}")
    assert "pallasc.lock:8:88: key 'action' is given twice, first at" in error(text)


@pytest.mark.parametrize("text", ["", "# only notes\n", "[]", "text", "a: " * 30, "[" * 5000])
def test_what_is_no_lock_at_all_is_refused(text: str) -> None:
    assert error(text).startswith("pallasc.lock")


@pytest.mark.parametrize("field", ["toolchain", "variants"])
@pytest.mark.parametrize("value", ["[]", "", "1"])
def test_a_section_of_another_kind_is_refused(field: str, value: str) -> None:
    text = "schema: 1\ntoolchain: {}\nvariants: {}\n".replace(f"{field}: {{}}", f"{field}: {value}")
    assert f"{field}: expected a mapping of " in error(text)


def test_a_lock_that_was_cut_off_is_refused_or_lacks_entries() -> None:
    for length in range(len(TEXT)):
        try:
            found = read(TEXT[:length])
        except SpecError:
            continue
        assert found.toolchain == LOCK.toolchain
        assert found.variants.items() <= LOCK.variants.items()


def test_writing_is_one_step_and_leaves_nothing_behind(tmp_path: Path) -> None:
    path = tmp_path / "pallasc.lock"
    path.write_text("old")
    before = path.stat().st_ino
    write_lock(path, LOCK)
    assert path.read_text() == TEXT
    assert path.stat().st_ino != before
    assert os.listdir(tmp_path) == ["pallasc.lock"]
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_lock_that_is_a_link_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    link = tmp_path / "pallasc.lock"
    link.symlink_to(tmp_path / "real" / "pallasc.lock")
    write_lock(link, LOCK)
    assert link.is_symlink()
    assert read_lock(tmp_path / "real" / "pallasc.lock") == LOCK


def test_a_lock_that_cannot_be_written_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "none" / "pallasc.lock"
    with pytest.raises(SpecError, match="cannot be written: No such file or directory"):
        write_lock(path, LOCK)


def test_changes_are_sorted_and_name_what_was_and_what_is() -> None:
    after = {"z": A, "a": B, "m": C}
    assert compare({"m": A, "a": B, "gone": C}, after, whole=True) == [
        Change("dropped", "gone", C),
        Change("changed", "m", A, C),
        Change("added", "z", None, A),
    ]


def test_without_everything_nothing_is_dropped() -> None:
    assert compare({"gone": C}, {"z": A}, whole=False) == [Change("added", "z", None, A)]
    assert compare({"z": A, "gone": C}, {"z": A}, whole=False) == []


def test_other_entries_stay_unless_the_new_ones_are_all() -> None:
    new = Lock({"jax": JAX}, {"z": A})
    assert merged(LOCK, new, whole=False).variants == {**LOCK.variants, "z": A}
    assert merged(LOCK, new, whole=True).variants == {"z": A}


def test_a_lock_of_the_first_schema_is_one_without_costs() -> None:
    old = TEXT.replace("schema: 3", "schema: 1").replace(f", {NUMBERS}, cost: 1.8", "")
    assert read(old) == read(old.replace("{", "{ ")) == replace(LOCK, costs={}, resources={})


def test_a_lock_of_the_second_schema_is_one_without_resources() -> None:
    old = TEXT.replace("schema: 3", "schema: 2").replace(f", {NUMBERS}", "")
    assert read(old) == read(old.replace("{", "{ ")) == replace(LOCK, resources={})


def test_a_lock_with_tables_has_schema_4_and_one_without_is_as_before() -> None:
    lock = replace(LOCK, tables={"matmul@h100-sxm": digest("rows"), "a b@b200": digest("more")})
    section = f"tables:\n  a b@b200: {digest('more')}\n  matmul@h100-sxm: {digest('rows')}\n"
    text = lock_text(lock)
    assert text == TEXT.replace("schema: 3", "schema: 4").replace(
        "variants:", f"{section}variants:"
    )
    assert read(text) == read(text.replace("{", "{ ")) == lock
    assert error(text.replace(digest("rows"), "abc")).startswith(
        "pallasc.lock:9:20: tables.matmul@h100-sxm: expected a digest"
    )


def test_tables_of_what_was_not_locked_again_stay() -> None:
    old = replace(LOCK, tables={"matmul@h100-sxm": A.action, "matmul@b200": B.action, "z@b200": ""})
    new = Lock(TOOLCHAIN, {MATMUL: A}, tables={"matmul@h100-sxm": C.action})
    assert merged(old, new, whole=False).tables == {**old.tables, "matmul@h100-sxm": C.action}
    assert merged(old, new, whole=True).tables == new.tables
    without = Lock(TOOLCHAIN, {MATMUL: A})
    assert "matmul@h100-sxm" not in merged(old, without, whole=False).tables


def test_what_is_not_known_of_a_variant_is_left_out_of_its_line() -> None:
    lock = Lock({"jax": JAX}, {"z": A, "y": A}, {}, {"z": Resources(registers=8), "y": Resources()})
    assert "resources: {registers: 8}}\n" in lock_text(lock)
    assert read(lock_text(lock)) == read(lock_text(lock).replace("{", "{ ")) == lock


@pytest.mark.parametrize(
    ("numbers", "message"),
    [
        ("registers: 8, registers: 9", "key 'registers' is given twice"),
        ("registers: 8, warps: 9", "unknown field 'warps'"),
        ("registers: many", "expected a whole number of at least 0, got 'many'."),
    ],
)
def test_damaged_resources_are_told_with_their_line(numbers: str, message: str) -> None:
    line = f"  k: {shown(A)[:-1]}, resources: {{{numbers}}}}}"
    text = f"schema: 3\ntoolchain: {{}}\nvariants:\n{line}\n"
    assert error(text).startswith("pallasc.lock:4:")
    assert message in error(text)


def test_resources_go_with_the_artifact_that_has_them() -> None:
    assert merged(LOCK, Lock({"jax": JAX}, {MATMUL: A}), whole=True).resources == {MATMUL: TAKEN}
    assert merged(LOCK, Lock({"jax": JAX}, {MATMUL: C}), whole=True).resources == {}
    taken = {MATMUL: Resources(registers=9)}
    new = Lock({"jax": JAX}, {MATMUL: C}, {}, taken)
    assert merged(LOCK, new, whole=False).resources == taken


@pytest.mark.parametrize(
    ("before_s", "now_s", "expected"),
    [
        (None, 1.8372, "1.8"),
        (None, 0.32499, "0.32"),
        (None, 137.2, "140"),
        (None, 0.0001, "0.01"),
        (None, 1e12, "90000"),
        (1.8, 0.9, "1.8"),
        (1.8, 3.6, "1.8"),
        (1.8, 0.89, "0.89"),
        (0.13, 0.62, "0.13"),
        (0.13, 0.64, "0.64"),
        (0.6, 0.11, "0.6"),
        (1.8, 3.71, "3.7"),
        (1.8374, 2, "1.8374"),
    ],
)
def test_a_cost_is_rounded_and_stays_while_a_new_time_is_near_it(
    before_s: float | None, now_s: float, expected: str
) -> None:
    before = Lock({}, {"z": A}, {} if before_s is None else {"z": before_s})
    lock = merged(before, Lock({}, {"z": A}, {"z": now_s}), whole=True)
    assert f", cost: {expected}}}\n" in lock_text(lock)
    assert read(lock_text(lock)).costs == lock.costs


@given(st.floats(0.01, 9e4), st.floats(0.5, 2))
def test_a_cost_does_not_change_twice_by_times_that_are_alike(now_s: float, noise: float) -> None:
    first = settled_cost(None, now_s)
    assert settled_cost(first, first * noise) == first


def test_costs_go_with_their_variants_and_stay_without_a_new_time() -> None:
    kept = merged(LOCK, Lock({"jax": JAX}, {MATMUL: C}), whole=True)
    assert (kept.variants, kept.costs) == ({MATMUL: C}, {MATMUL: 1.8})
    assert merged(LOCK, Lock({"jax": JAX}, {"z": A}), whole=True).costs == {}
    assert merged(LOCK, Lock({"jax": JAX}, {"z": A}), whole=False).costs == {MATMUL: 1.8}


def test_words_for_the_same_toolchain_stay() -> None:
    renamed = Lock({**TOOLCHAIN, "jax": JAX._replace(version="0.12")}, LOCK.variants)
    assert merged(LOCK, renamed, whole=True) == LOCK
    other = Lock({"jax": JAX}, LOCK.variants)
    assert merged(LOCK, other, whole=True) == replace(LOCK, toolchain=other.toolchain)


def test_a_lock_of_ten_thousand_entries_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "pallasc.lock"
    variants = {f"matmul[m={i},layout=row major]@b200": entry(str(i)) for i in range(10_000)}
    costs = {name: index / 8 for index, name in enumerate(variants) if index % 3}
    resources = {name: Resources(registers=i) for i, name in enumerate(variants) if i % 5}
    write_lock(path, Lock({"jax": JAX}, variants, costs, resources))
    lock = read_lock(path)
    assert lock is not None
    assert (lock.variants, lock.costs, lock.resources) == (variants, costs, resources)
    assert compare(lock.variants, variants, whole=True) == []


def test_a_lock_in_the_form_that_is_written_needs_no_yaml(tmp_path: Path) -> None:
    write_lock(tmp_path / "pallasc.lock", LOCK)
    code = (
        "import sys, pathlib\nfrom pallasc.specs.loading.lock import read_lock\n"
        "read_lock(pathlib.Path('pallasc.lock'))\nprint('yaml' in sys.modules)"
    )
    result = subprocess.run(
        [sys.executable, "-P", "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=tmp_path,
    )
    assert result.stdout == "False\n"
