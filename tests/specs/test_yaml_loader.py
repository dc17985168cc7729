"""Spec files and folders."""

import shutil
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.select import retarget
from pallasc.specs.loading.yaml_loader import load_specs, load_yaml, parse_yaml, spec_files
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
    mesh: {y: "{m}", x: 4}
    env: [KERNEL_TILE]
    check: {m: 1, $args: {c: "f32[2]"}, $seed: 3}
    vmap: plain
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
    assert (plain.args, plain.targets) == (["f32[]"], ("sm_90a",))
    assert (plain.tolerance, plain.budget) == ({"rtol": 0.01}, {"registers": 168})
    assert str(plain.where("budget", "registers")) == f"{folder}/full.yaml:5:23"


def test_models_are_targets_and_values_are_filled_with_their_types(
    folder: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    found = expand(load_specs([folder / "full.yaml"]))
    models = ("my-h20", "slower", "h200")
    decode = [f"decode[m={m}]@{model}" for m in (32, 64) for model in models]
    assert [variant.id for variant in found] == [*decode, "plain@h100-sxm"]
    slower = found[1].target
    assert (slower.sm_count, slower.clock_ghz, slower.description) == (78, 1.2, "Slow")
    assert found[0].request()["args"] == {
        "c": None, "cache": [{"k": "i4[8]"}, None], "x": "bf16[32, 16]",
    }  # fmt: skip
    config = {"$call": "json:JSONDecoder", "deep": [{"$ref": "math:pi"}, 32], "strict": True}
    assert found[0].static == {"config": config, "label": "m is 32"}
    assert (found[0].budget["registers"], found[0].mesh) == (32, (("y", 32), ("x", 4)))
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    again = expand(load_specs([shutil.copytree(folder, elsewhere / "x") / "full.yaml"]))
    assert [v.request() for v in again] == [v.request() for v in found]


KERNEL = 'schema: 1\ntargets: [sm_80]\nkernels: [{{name: {}, entry: "json:loads", args: {{}}}}]\n'


def test_files_and_folders_are_read_in_order(tmp_path: Path) -> None:
    for name in ("b.yaml", "a.yml", "c.txt", "d.py"):
        (tmp_path / name).write_text(KERNEL.format(name[0]))
    single = tmp_path / "sub" / "z.yaml"
    single.parent.mkdir()
    single.write_text(KERNEL.format("z"))
    specs = load_specs([single, tmp_path, tmp_path / "a.yml"])
    assert [spec.name for spec in specs] == ["z", "a", "b"]
    (collected,) = load_specs([tmp_path / "d.py"], collect_python=lambda path: specs[:1])
    assert collected.name == "z"


def twins(*targets: str) -> list[str]:
    """Write a kernel of one name into a file for each list of targets; return the files."""
    for number, own in enumerate(targets):
        text = KERNEL.format("twin").replace("sm_80", own)
        Path(f"twin{number}.yaml").write_text(text)
    return [f"twin{number}.yaml" for number in range(len(targets))]


def test_one_kernel_may_be_in_a_file_for_each_architecture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    specs = load_specs(twins("sm_80", "h100-sxm, h200", "b200"))
    ids = ["twin@a100-sxm", "twin@h100-sxm", "twin@h200", "twin@b200"]
    assert [variant.id for variant in expand(specs)] == ids
    again = expand(retarget(specs, ["gh200", "sm_100a"]))
    assert [variant.id for variant in again] == ["twin@gh200", "twin@b200"]


def test_two_files_may_not_give_one_variant(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SpecError) as caught:
        expand(load_specs(twins("sm_80", "sm_90a", "a100-sxm")))
    assert str(caught.value) == (
        "twin2.yaml:3:11: two variants have the id twin@a100-sxm."
        "\n  The other is declared at twin0.yaml:3:11. Rename or remove one."
    )


@pytest.mark.parametrize(
    ("path", "text"),
    [
        ("missing.yaml", "missing.yaml: there is no such file.\n  Did you mean 'mising.yaml'?"),
        ("nowhere/a.yaml", "nowhere/a.yaml: there is no such file."),
        (
            "empty",
            "empty: no spec files (*.yaml, *.yml, or *.py that declares kernels) in this folder."
            "\n  Subfolders are not searched. pallasc init writes an example.",
        ),
        (
            "notes.txt",
            "notes.txt: not a spec file.\n"
            "  Specs are *.yaml, *.yml or *.py files; pallasc bundle create makes bundles of them.",
        ),
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


LINES = FULL.splitlines()


def _here(text: str) -> list[Spec]:
    """Parse with the files that are here."""
    text = text.replace("table.json", "kernels.py").replace("./json.py:loads", "kernels.py:double")
    return parse_yaml(text, base_dir=Path(__file__).parent / "wrong")


@given(st.data())
def test_a_damaged_spec_is_read_or_refused(data: st.DataObject) -> None:
    index = data.draw(st.integers(0, len(LINES) - 1))
    cut = data.draw(st.integers(0, len(LINES[index])))
    rubbish = data.draw(st.text(alphabet="ab1 -:[]{}\"'$,.~", max_size=6))
    line = LINES[index][:cut] + rubbish + LINES[index][cut + len(rubbish) :]
    text = "\n".join([*LINES[:index], line, *LINES[index + 1 :]])
    with suppress(SpecError):
        assert expand(_here(text))
    assert len(expand(_here(FULL))) == 7


YAML = "schema: 1\nkernels: []\n"
DECORATED = "import pallasc\n@pallasc.kernel(args={})\ndef f(x): ...\n"


def found(folder: Path) -> list[str]:
    """Return the names of what a folder stands for."""
    return [Path(file).name for file in spec_files([folder])]


@pytest.mark.parametrize(
    "text",
    [
        "import pallasc as p\n@p.kernel(args={})\nasync def f(x): ...\n",
        "from pallasc import kernel as k\nk(args={})(print)\n",
        "from pallasc.specs.loading.decorator import kernel\n"
        "class A:\n    kernel(args={})(print)\n",
        "import pallasc\nif True:\n    for n in (1, 2):\n        pallasc.declare(entry='a:b')\n",
        "from pallasc import declare\n[declare(entry=e) for e in ()]\n",
        "import pallasc\npallasc.kernel(\n",
        f"import pallasc  # kernel\nx = {'1 + ' * 20_000}1\n",
    ],
    ids=range(7),
)
def test_python_files_that_declare_kernels_are_specs(text: str, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "b.py").write_text(text)
    (tmp_path / "c.yml").write_text(YAML)
    assert found(tmp_path) == ["a.yaml", "b.py", "c.yml"]


def test_folders_inside_are_not_searched(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(YAML)
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "b.yaml").write_text(YAML)
    (tmp_path / "sub" / "c.py").write_text(DECORATED)
    assert found(tmp_path) == ["a.yaml"]
    (tmp_path / "a.yaml").unlink()
    with pytest.raises(SpecError, match="Subfolders are not searched"):
        found(tmp_path)
