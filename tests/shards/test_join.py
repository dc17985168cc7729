"""Parts joined: everything once, and whatever does not fit together is named."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import merge_kills
import pytest

from pallasc.cache.store import Store
from pallasc.compiler.inputs.remembered_toolchain import remembered_toolchains
from pallasc.compiler.shards.join import join, publish
from pallasc.errors import CorruptError, SpecError, ToolError
from pallasc.specs.lock import Component, Entry

EVERY = "a b c d e"


def three(parts: Any, **changed: Any) -> list[Path]:
    """Write the parts of three shards; `changed` changes the second."""
    return [
        parts.write("1/3", "a d", EVERY),
        parts.write("2/3", "b", EVERY, **changed),
        parts.write("3/3", "c e", EVERY),
    ]


def test_all_parts_together_are_everything_once(parts: Any, store: Store) -> None:
    joined = join(list(reversed(three(parts))))
    assert (joined.order, joined.missing, joined.notes) == (tuple(EVERY.split()), None, ())
    assert [part.head.shard.number for part in joined.parts] == [1, 2, 3]
    assert joined.lock.variants == {word: parts.entry(word) for word in EVERY.split()}
    assert joined.lock.costs == dict.fromkeys(EVERY.split(), 0.5)
    publish(joined, store)
    for word, entry in joined.lock.variants.items():
        artifact = store.get_artifact(entry.action, verify=True)
        assert artifact is not None
        assert artifact.blob("cubin") == word.encode() * 100
        manifest = store.get_manifest(entry.request)
        assert manifest is not None
        assert manifest.action == entry.action
    assert [known.versions for known in remembered_toolchains(store)] == [{"jax": "0.12.0"}]


def test_merging_again_changes_nothing(parts: Any, store: Store) -> None:
    joined = join(three(parts))
    publish(joined, store)
    before = {path: path.stat().st_mtime_ns for path in store.folder.rglob("*") if path.is_file()}
    publish(joined, store)
    after = {path: path.stat().st_mtime_ns for path in store.folder.rglob("*") if path.is_file()}
    assert after == before


def test_a_shard_without_a_part_is_missing_with_its_variants(parts: Any, store: Store) -> None:
    files = three(parts)
    joined = join([files[0], files[2]])
    missing = joined.missing
    assert missing is not None
    assert missing.exit_code == 3
    assert missing.message == "there is no part of shard 2/3; 1 variant is in no part: b."
    publish(joined, store)
    assert store.get_artifact(parts.entry("a").action) is not None
    several = join([files[1]]).missing
    assert several is not None
    assert several.message == (
        "there is no part of shards 1/3 and 3/3; 4 variants are in no part: a, c, d, e."
    )


def test_an_empty_shard_that_is_absent_is_missing_too(parts: Any) -> None:
    missing = join([parts.write("1/2", "a", "a")]).missing
    assert missing is not None
    assert missing.message == "there is no part of shard 2/2."


def test_a_variant_that_one_job_lists_and_none_builds_is_missing(parts: Any) -> None:
    joined = join([parts.write("1/2", "a", "a new"), parts.write("2/2", "b", "a b")])
    missing = joined.missing
    assert missing is not None
    assert missing.message == "1 variant is in no part: new."
    assert "The jobs did not see the same variants" in str(missing)
    assert joined.order == ("a", "new", "b")


def test_a_copy_of_a_part_counts_once(parts: Any, tmp_path: Path) -> None:
    files = three(parts)
    (tmp_path / "copy").write_bytes(files[0].read_bytes())
    assert join([*files, tmp_path / "copy"]).missing is None


def test_two_parts_of_one_shard_are_refused(parts: Any) -> None:
    files = three(parts)
    again = parts.write("2/3", "b", EVERY, name="again", costs_s={"b": 0.7})
    with pytest.raises(SpecError, match=r"2-3.part and .*again.part are both of shard 2/3"):
        join([*files, again])


OTHER = Component("f" * 64, "0.11.0")


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"costs": "e" * 64}, "divided by different costs (dddddddddddd, eeeeeeeeeeee)"),
        ({"costs": ""}, "divided by different costs (dddddddddddd, none)"),
        ({"rule": 2}, "another version of pallasc divided the variants"),
        ({"listed": {"a": "0", "b": "1"}}, "the specs of a, b differ"),
        ({"own": ["b", "d"]}, "both shards have d"),
    ],
)
def test_parts_that_do_not_belong_together_are_refused(
    parts: Any, changed: dict[str, object], message: str
) -> None:
    with pytest.raises(SpecError) as caught:
        join(three(parts, **changed))
    assert message in str(caught.value)
    assert "1-3.part and " in str(caught.value)
    assert "2-3.part do not belong together: " in str(caught.value)
    assert caught.value.hint


def test_another_toolchain_is_named(parts: Any) -> None:
    head = parts.head("2/3", ["b"], EVERY.split())
    other = head.toolchain._replace(components={"jax": OTHER})
    with pytest.raises(SpecError) as caught:
        join(three(parts, toolchain=other))
    assert "compiled with jax 0.12.0, but 0.11.0 is installed" in str(caught.value)
    nothing = head.toolchain._replace(components={}, identity={})
    assert join(three(parts, toolchain=nothing)).missing is None


def test_parts_of_different_numbers_of_shards_are_refused(parts: Any) -> None:
    with pytest.raises(SpecError, match="one is shard 1/3, the other 1/4"):
        join([*three(parts), parts.write("1/4", "a", EVERY)])
    with pytest.raises(SpecError, match="one is shard 1/3, the other 4/4"):
        join([three(parts)[0], parts.write("4/4", "a", EVERY)])


def test_one_action_key_with_two_artifacts_is_not_deterministic(parts: Any) -> None:
    entry = Entry(parts.entry("a").action, "9" * 64, parts.entry("b").request)
    with pytest.raises(CorruptError) as caught:
        join(three(parts, entries={"b": entry}))
    assert caught.value.exit_code == 5
    assert "shards have different artifacts under one action key" in str(caught.value)
    assert "  a and b: " in str(caught.value)


def test_a_store_with_another_record_is_not_deterministic(parts: Any, store: Store) -> None:
    store.put_artifact(parts.entry("b").action, {"of": "b"}, {"cubin": b"other"})
    with pytest.raises(CorruptError) as caught:
        publish(join(three(parts)), store)
    assert "the store and the parts have different artifacts under one action key" in str(
        caught.value
    )
    assert f"  b: {store.root} has another one" in str(caught.value)
    held = store.get_artifact(parts.entry("b").action, verify=True)
    assert held is not None
    assert held.blob("cubin") == b"other"


def test_a_damaged_pack_stores_nothing_of_any_part(parts: Any, store: Store) -> None:
    files = three(parts)
    data = files[2].read_bytes()
    files[2].write_bytes(data[:60] + bytes([data[60] ^ 1]) + data[61:])
    joined = join(files)
    with pytest.raises(CorruptError, match=r"3-3.part is damaged: its pack .* has another SHA"):
        publish(joined, store)
    assert not store.folder.exists()


def test_a_part_that_names_what_it_lacks_is_told(parts: Any, store: Store) -> None:
    files = [parts.write("1/1", "a", "a", entries={"a": parts.entry("a"), "b": parts.entry("b")})]
    with pytest.raises(CorruptError, match=r"the parts lack artifacts of variants .*: b"):
        publish(join(files), store)


def test_files_that_differ_between_shards_are_a_warning(parts: Any) -> None:
    label = "matmul file:kernels/matmul.py"
    files = [
        parts.write("1/2", "a", "a b", sources={label: "1" * 64, "k file:k.py": "3" * 64}),
        parts.write("2/2", "b", "a b", sources={label: "2" * 64, "k file:k.py": "3" * 64}),
    ]
    assert join(files).notes == (
        "matmul was compiled from different versions of kernels/matmul.py in shards 1/2 and 2/2: "
        "build all shards from the same commit",
    )


def test_a_store_that_cannot_be_written_is_an_error(parts: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ToolError, match="cannot be written"):
        publish(join(three(parts)), Store(tmp_path / "file"))


def test_a_merge_that_is_killed_leaves_a_valid_store(tmp_path: Path) -> None:
    outcome = merge_kills.run(tmp_path, kills=40, seed=17)
    assert outcome.wrong == []
    assert outcome.partial > 5
