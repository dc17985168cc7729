"""Choosing variants."""

from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pallasc.errors import SpecError
from pallasc.specs.loading.matrix import expand
from pallasc.specs.loading.select import retarget, select
from pallasc.specs.loading.yaml_loader import parse_yaml

TEXT = """\
schema: 1
targets: [h100-sxm, h200]
models: {mine: {arch: sm_90a, sm_count: 78}}
kernels:
  - name: matmul
    entry: json:loads
    args: {a: "{dtype}[{m}]"}
    matrix: {m: [1024, 4096], dtype: [f16, bf16]}
  - name: softmax
    entry: json:loads
    args: {}
    static: {layout: "{layout}"}
    matrix: {layout: [row major, column]}
    targets: [b200]
  - name: rms_norm
    entry: json:loads
    args: {}
    targets: [b200]
"""
SPECS = parse_yaml(TEXT)
VARIANTS = expand(SPECS)


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("MatMul", 8),
        ("ma", 10),
        ("s?ftmax", 2),
        ("[mr]*", 9),
        ("m=1024", 4),
        ("m=10*", 4),
        ("dtype=*f16", 8),
        ("target=sm_90a", 8),
        ("target=b200 or target=h200", 7),
        ("matmul and m=1024 and not dtype=bf16", 2),
        ("not (matmul or softmax)", 1),
        ("(matmul or softmax) and layout=column", 1),
        ('layout="row major"', 1),
        ("matmul[m=1024,dtype=f16]@h200", 1),
        ("matmul*@h200", 4),
        ("rms_norm@*", 1),
    ],
)
def test_an_expression_selects(expression: str, count: int) -> None:
    chosen = select(VARIANTS, expression)
    assert len(chosen) == count
    assert chosen == [variant for variant in VARIANTS if variant in chosen]


ARRAYS = expand(
    parse_yaml("""\
schema: 1
targets: [h100-sxm, h200]
kernels:
  - name: attention
    entry: json:loads
    args: {q: "{q}", bias: "{bias}"}
    matrix: {q: ["bf16[32,512,16,128]", "bf16[1, 64]", "bf16[9]"], bias: [null, "f32[512]"]}
""")
)


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("q=bf16[32,512,16,128]", 4),
        ('q="bf16[1, 64]"', 4),
        ("q=bf16?9]", 4),
        ("attention[q=bf16[32,512,16,128],bias=f32[512]]@h200", 1),
        ("attention[q=bf16[32,*]@h200", 2),
    ],
)
def test_brackets_of_a_value_are_themselves(expression: str, count: int) -> None:
    assert len(select(ARRAYS, expression)) == count


def test_an_id_selects_its_variant_and_needs_no_quotes() -> None:
    for variant in (*VARIANTS, *ARRAYS):
        assert [each.id for each in select((*VARIANTS, *ARRAYS), variant.id)] == [variant.id]


@pytest.mark.parametrize(
    ("expression", "hint"),
    [
        ("matmull", "Did you mean 'matmul'?"),
        ("a=f32[1024]", "Parameters: dtype, layout, m, name, target."),
        ("m=1025", "Did you mean 'm=1024'? Values of m: 1024, 4096."),
        ("m=7", "Values of m: 1024, 4096."),
        ("dtyp=f16", "Did you mean 'dtype'?"),
        ("layout=rowmajor",
         "Did you mean 'layout=\"row major\"'? Values of layout: column, row major."),
        ('layout="a<b"', "Values of layout: column, row major."),
        ("xyz", "Kernels: matmul, rms_norm, softmax."),
        ("matmul and softmax", "Each term selects some variant, but no variant fits all of them."),
    ],
)  # fmt: skip
def test_no_match_names_the_nearest(expression: str, hint: str) -> None:
    with pytest.raises(SpecError) as caught:
        select(VARIANTS, expression)
    message = f"-k {expression!r} selects none of 11 variants."
    assert (caught.value.message, caught.value.hint) == (message, hint)


WRONG = "names and parameters are not combined correctly"


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("  ", WRONG),
        ("a and", WRONG),
        ("and a", WRONG),
        ("a b", WRONG),
        ("(a", WRONG),
        ("a)", WRONG),
        ("a (b)", WRONG),
        ("(a) (b)", WRONG),
        ("a or ()", WRONG),
        ('"a', "a quote is not closed"),
        ("(" * 250 + "a" + ")" * 250, WRONG),
        ("m=1 and n!=4", "n!=4 is not param=value"),
        ("n<=4", "n<=4 is not param=value"),
        ("n=", "n= is not param=value"),
        ("=4", "=4 is not param=value"),
    ],
)
def test_a_wrong_expression_is_refused(expression: str, what: str) -> None:
    with pytest.raises(SpecError) as caught:
        select(VARIANTS, expression)
    assert caught.value.message == f"-k {expression!r}: {what}."
    hint = "Write m=1024, m=1*, or not m=1024."
    assert (caught.value.hint == hint) is what.endswith("param=value")


def test_a_very_long_expression_is_refused() -> None:
    with pytest.raises(SpecError, match="at most 2000 characters"):
        select(VARIANTS, "a" * 2001)


@given(st.lists(st.sampled_from(["and", "or", "not", "(", ")", "m", '"', "m=1*"]), max_size=8))
def test_any_expression_selects_or_is_refused(words: list[str]) -> None:
    with suppress(SpecError):
        assert select(VARIANTS, " ".join(words))


def test_retarget_gives_a_target_to_those_of_one_name_that_declare_its_architecture() -> None:
    text = """\
schema: 1
kernels:
  - {name: gemm, entry: "json:load", args: {}, targets: [sm_90a]}
  - {name: gemm, entry: "json:dump", args: {}, targets: [b200]}
  - {name: other, entry: "json:loads", args: {}, targets: [b200]}
"""
    specs = parse_yaml(text)

    def entries(*names: str) -> dict[str, str]:
        return {variant.id: variant.entry for variant in expand(retarget(specs, names))}

    hopper = {"gemm@h200": "json:load", "other@h200": "json:loads"}
    blackwell = {"gemm@b200": "json:dump", "other@b200": "json:loads"}
    assert entries("h200") == hopper
    assert entries("sm_100a", "h200") == hopper | blackwell
    with pytest.raises(SpecError, match=r"two variants have the id gemm@a100-sxm"):
        entries("sm_80")


def test_retarget_puts_other_targets_in_place_each_once() -> None:
    ids = [variant.id for variant in expand(retarget(SPECS[2:], ["sm_80", "mine", "a100-sxm"]))]
    assert ids == ["rms_norm@a100-sxm", "rms_norm@mine"]
    assert retarget(SPECS, []) == SPECS
    with pytest.raises(SpecError, match=r"^unknown target 'sm_90'"):
        retarget(SPECS, ["sm_90"])
