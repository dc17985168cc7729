"""Spec files and folders."""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.select import retarget
from pallasc.specs.loading.yaml_loader import load_specs, load_yaml, parse_yaml
from pallasc.specs.spec import Spec

FULL = """\
schema: 1
targets: [sm_90a]
defaults:
  tolerance: {rtol: 1.0e-2}
  budget: {registers: 168}
models:
  my-h20: {arch: sm_90a, sm_count: 78, like: h100-sxm}
  slower: {like: my-h20, clock_ghz: 1.2, description: Slow}
kernels:
  - name: decode
    entry: ./json.py:loads
    targets: [my-h20, slower, h200]
    args: {x: "bfloat16[{m}, {m // 2}]", c: null, cache: [{k: "i4[8]"}, null]}
    static:
      config: {$call: "json:JSONDecoder", strict: true, deep: [{$ref: "math:pi"}, "{m}"]}
      label: "m is {m}"
    matrix: {m: [16, 32]}
    exclude: [{m: 16}]
    include: [{m: 64}]
    reference: json:dumps
    tolerance: {rtol: 0.1, atol: 1}
    budget: {registers: "{m}", spill_bytes: 0}
    files: [table.json]
  - name: plain
    entry: json:loads
    args: ["f32[]"]
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "json.py").write_text("def loads(): ...\n")
    (tmp_path / "table.json").write_text("{}")
    (tmp_path / "full.yaml").write_text(FULL)
    return tmp_path


def test_every_field_arrives(folder: Path) -> None:
    spec, plain = load_yaml(folder / "full.yaml")
    assert (spec.name, spec.entry, spec.reference) == ("decode", "json.py:loads", "json:dumps")
    assert spec.targets == ("my-h20", "slower", "h200")
    assert spec.matrix == {"m": (16, 32)}
    assert (spec.exclude, spec.include) == (({"m": 16},), ({"m": 64},))
    assert spec.tolerance == {"rtol": 0.1, "atol": 1}
    assert spec.budget == {"registers": "{m}", "spill_bytes": 0}
    assert spec.files == ("table.json",)
    assert spec.base_dir == str(folder)
    assert str(spec.location) == f"{folder}/full.yaml:10:5"
    assert str(spec.where("args", "cache", 0, "k")) == f"{folder}/full.yaml:13:63"
    assert plain.args == ["f32[]"]


def test_a_kernels_own_field_replaces_the_default(folder: Path) -> None:
    spec, plain = load_yaml(folder / "full.yaml")
    assert spec.tolerance == {"rtol": 0.1, "atol": 1}
    assert (plain.tolerance, plain.budget) == ({"rtol": 0.01}, {"registers": 168})
    assert plain.targets == ("sm_90a",)
    assert str(plain.where("budget", "registers")) == f"{folder}/full.yaml:5:23"


def test_models_of_the_file_are_targets(folder: Path) -> None:
    variants = {v.id: v for v in expand(load_specs([folder / "full.yaml"]))}
    assert list(variants) == [
        "decode[m=32]@my-h20",
        "decode[m=32]@slower",
        "decode[m=32]@h200",
        "decode[m=64]@my-h20",
        "decode[m=64]@slower",
        "decode[m=64]@h200",
        "plain@h100-sxm",
    ]
    slower = variants["decode[m=32]@slower"].target
    assert (slower.sm_count, slower.clock_ghz, slower.description) == (78, 1.2, "Slow")


def test_values_are_filled_with_their_types(folder: Path) -> None:
    variant = expand(load_specs([folder / "full.yaml"]))[0]
    assert variant.request()["args"] == {
        "c": None,
        "cache": [{"k": "i4[8]"}, None],
        "x": "bf16[32, 16]",
    }
    assert variant.static == {
        "config": {"$call": "json:JSONDecoder", "deep": [{"$ref": "math:pi"}, 32], "strict": True},
        "label": "m is 32",
    }
    assert variant.budget.registers == 32


KERNEL = 'schema: 1\ntargets: [sm_80]\nkernels: [{{name: {}, entry: "json:loads", args: {{}}}}]\n'


def names(specs: list[Spec]) -> list[str]:
    return [spec.name for spec in specs]


def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.txt", "d.py"):
        (tmp_path / name).write_text(KERNEL.format(name[0]))
    single = tmp_path / "sub" / "z.yaml"
    single.parent.mkdir()
    single.write_text(KERNEL.format("z"))
    assert names(load_specs([single, tmp_path])) == ["z", "a", "b"]


def test_a_file_given_twice_is_read_once(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(KERNEL.format("a"))
    assert names(load_specs([tmp_path / "a.yaml", tmp_path])) == ["a"]


def test_the_same_name_in_two_files_is_refused_with_both_places(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.yaml", "b.yaml"):
        Path(name).write_text(KERNEL.format("twin"))
    with pytest.raises(SpecError) as caught:
        load_specs(["a.yaml", "b.yaml"])
    assert str(caught.value) == (
        "b.yaml:3:18: kernel 'twin' is declared in two files for sm_80."
        "\n  The other is at a.yaml:3:18. Two files may declare one kernel for different "
        "architectures."
    )


def twins(*targets: str) -> list[str]:
    """Write a kernel of one name into a file for each list of targets; return the files."""
    for number, own in enumerate(targets):
        text = KERNEL.format("twin").replace("sm_80", own)
        Path(f"twin{number}.yaml").write_text(text)
    return [f"twin{number}.yaml" for number in range(len(targets))]


def test_one_kernel_may_lie_in_a_file_for_each_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    specs = load_specs(twins("sm_80", "h100-sxm, h200", "b200"))
    ids = ["twin@a100-sxm", "twin@h100-sxm", "twin@h200", "twin@b200"]
    assert [variant.id for variant in expand(specs)] == ids
    assert [v.id for v in expand(retarget(specs, ["gh200", "sm_100a"]))] == [
        "twin@gh200",
        "twin@b200",
    ]


@pytest.mark.parametrize(
    ("targets", "message"),
    [
        (("sm_80, h200", "b200, h100-sxm"), "twin1.yaml:3:18: .* two files for sm_90a"),
        (("sm_80", "sm_90a", "a100-pcie"), "twin2.yaml:3:18: .* two files for sm_80"),
    ],
)
def test_files_may_not_share_a_kernel_for_one_architecture(
    targets: tuple[str, ...], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError, match=message) as caught:
        load_specs(twins(*targets))
    assert "The other is at twin0.yaml:3:18." in str(caught.value)


def test_files_that_share_a_kernel_need_its_kernel_for_batches(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    files = twins("sm_80", "sm_90a")
    Path("many.yaml").write_text(KERNEL.format("many"))
    for file in files:
        text = Path(file).read_text()
        Path(file).write_text(text.replace("name: twin", "name: twin, vmap: many"))
    specs = load_specs([*files, "many.yaml"])
    assert [spec.vmap for spec in specs] == ["many", "many", None]
    with pytest.raises(SpecError, match=r"twin0.yaml:3:30: twin.vmap: there is no kernel 'many'"):
        load_specs(files)


def test_files_that_leave_targets_open_share_no_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    first, second = twins("sm_80", "sm_90a")
    text = Path(second).read_text()
    Path(second).write_text(text.replace("targets: [sm_90a]\n", ""))
    for order in ([first, second], [second, first]):
        with pytest.raises(SpecError, match=r"is declared in two files\."):
            load_specs(order)


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("missing.yaml", "missing.yaml: there is no such file.\n  Did you mean 'mising.yaml'?"),
        ("nowhere/a.yaml", "nowhere/a.yaml: there is no such file."),
        (
            "empty",
            "empty: no spec files (*.yaml, *.yml, or *.py that declares kernels) in this folder."
            "\n  pallasc init writes an example.",
        ),
        ("notes.txt", "notes.txt: not a spec file.\n  Specs are *.yaml, *.yml or *.py files."),
        ("code.py", "code.py: a Python spec file cannot be read here.\n  Use YAML."),
    ],
)
def test_a_path_that_gives_no_spec_is_refused(
    path: str, text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    for name in ("notes.txt", "code.py", "mising.yaml"):
        (tmp_path / name).touch()
    with pytest.raises(SpecError) as caught:
        load_specs([path])
    assert str(caught.value) == text


def test_python_files_go_to_the_collector(tmp_path: Path) -> None:
    (tmp_path / "code.py").touch()
    declared = parse_yaml(KERNEL.format("a"))
    assert load_specs([tmp_path / "code.py"], collect_python=lambda path: declared) == declared


def test_the_same_text_gives_the_same_requests_in_every_folder(tmp_path: Path) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "json.py").write_text("def loads(): ...\n")
        (tmp_path / name / "table.json").write_text("{}")
        (tmp_path / name / "full.yaml").write_text(FULL)
    first, two = (
        [v.request() for v in expand(load_specs([tmp_path / name]))] for name in ("one", "two")
    )
    assert first == two


def test_an_unreadable_file_is_an_error_of_ours(tmp_path: Path) -> None:
    fifo = tmp_path / "loop.yaml"
    os.symlink(fifo, fifo)
    with pytest.raises(SpecError):
        load_specs([fifo])


LINES = FULL.splitlines()


@given(st.data())
def test_a_damaged_spec_is_read_or_refused(data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(LINES) - 1))
    cut = data.draw(st.integers(0, len(LINES[index])))
    rubbish = data.draw(st.text(alphabet="ab1 -:[]{}\"'$,.~", max_size=6))
    line = LINES[index][:cut] + rubbish + LINES[index][cut + len(rubbish) :]
    text = "\n".join([*LINES[:index], line, *LINES[index + 1 :]])
    text = text.replace("table.json", "kernels.py").replace("./json.py:loads", "kernels.py:double")
    with suppress(SpecError):
        assert expand(parse_yaml(text, base_dir=Path(__file__).parent / "wrong"))


def test_the_spec_that_is_damaged_is_right_when_whole() -> None:
    text = FULL.replace("table.json", "kernels.py").replace("./json.py:loads", "kernels.py:double")
    assert len(expand(parse_yaml(text, base_dir=Path(__file__).parent / "wrong"))) == 7
