"""Choosing variants."""

from __future__ import annotations

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
        ("matmul", 8),
        ("MatMul", 8),
        ("ma", 10),
        ("m", 11),
        ("*max", 2),
        ("s?ftmax", 2),
        ("[mr]*", 9),
        ("name=matmul", 8),
        ("m=1024", 4),
        ("m=10*", 4),
        ("dtype=bf16", 4),
        ("dtype=*f16", 8),
        ("target=h200", 4),
        ("target=sm_90a", 8),
        ("target=b200 or target=h200", 7),
        ("matmul and m=1024 and not dtype=bf16", 2),
        ("not (matmul or softmax)", 1),
        ("not not matmul", 8),
        ("matmul or softmax and layout=column", 9),
        ("(matmul or softmax) and layout=column", 1),
        ('layout="row major"', 1),
        ("layout=row*", 1),
        ("rms_norm@b200", 1),
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
        ("q=bf16[32,*", 4),
        ("q=bf16[*]", 12),
        ('q="bf16[1, 64]"', 4),
        ("q=bf16?9]", 4),
        ("bias=f32[512] and q=bf16[32,512,16,128]", 2),
        ("attention[q=bf16[32,512,16,128],bias=f32[512]]@h200", 1),
        ("attention[q=bf16[32,512,16,128],bias=f32[512]]", 2),
        ("attention[q=bf16[32,*]@h200", 2),
    ],
)
def test_brackets_of_a_value_are_themselves(expression: str, count: int) -> None:
    assert len(select(ARRAYS, expression)) == count


def test_a_suggestion_can_be_used_as_it_stands() -> None:
    with pytest.raises(SpecError) as caught:
        select(ARRAYS, "q=bf16[1,64]")
    assert caught.value.hint is not None
    assert caught.value.hint.startswith("""Did you mean 'q="bf16[1, 64]"'? Values of q: """)
    assert len(select(ARRAYS, 'q="bf16[1, 64]"')) == 4


@pytest.mark.parametrize(
    ("expression", "text"),
    [
        ("matmull", "-k 'matmull' selects none of 11 variants.\n  Did you mean 'matmul'?"),
        (
            "a=f32[1024]",
            "-k 'a=f32[1024]' selects none of 11 variants.\n"
            "  Parameters: dtype, layout, m, target, name.",
        ),
        (
            "m=1025",
            "-k 'm=1025' selects none of 11 variants.\n"
            "  Did you mean 'm=1024'? Values of m: 1024, 4096.",
        ),
        ("m=7", "-k 'm=7' selects none of 11 variants.\n  Values of m: 1024, 4096."),
        (
            "dtyp=f16",
            "-k 'dtyp=f16' selects none of 11 variants.\n"
            "  Did you mean 'dtype=f16'? Values of dtype: bf16, f16.",
        ),
        (
            "layuot=z",
            "-k 'layuot=z' selects none of 11 variants.\n"
            "  Did you mean 'layout'? Values of layout: column, row major.",
        ),
        (
            "block=64",
            "-k 'block=64' selects none of 11 variants.\n"
            "  Parameters: dtype, layout, m, target, name.",
        ),
        (
            "target=h20",
            "-k 'target=h20' selects none of 11 variants.\n  Did you mean 'target=h200'? "
            "Values of target: b200, h100-sxm, h200, sm_100a, sm_90a.",
        ),
        ("f16", "-k 'f16' selects none of 11 variants.\n  Did you mean 'dtype=f16'?"),
        (
            "xyz",
            "-k 'xyz' selects none of 11 variants.\n  Kernels: matmul, rms_norm, softmax.",
        ),
        (
            "matmul and softmax",
            "-k 'matmul and softmax' selects none of 11 variants."
            "\n  Each term selects some variant, but no variant fits all of them.",
        ),
    ],
)
def test_no_match_names_the_nearest(expression: str, text: str) -> None:
    with pytest.raises(SpecError) as caught:
        select(VARIANTS, expression)
    assert str(caught.value) == text


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("", "it is empty"),
        ("  ", "it is empty"),
        ("a and", "a term is missing at the end"),
        ("and a", "a term is missing before 'and'"),
        ("a b", "unexpected 'b'"),
        ("(a", "a ')' is missing"),
        ("a)", "unexpected ')'"),
        ("()", "a term is missing before ')'"),
        ("not", "a term is missing at the end"),
        ('"a', "a quote is not closed"),
        ("(" * 200 + "a" + ")" * 200, "it is nested too deeply"),
    ],
)
def test_a_wrong_expression_is_refused(expression: str, what: str) -> None:
    with pytest.raises(SpecError) as caught:
        select(VARIANTS, expression)
    assert caught.value.message == f"-k {expression!r}: {what}."


@pytest.mark.parametrize(
    ("expression", "what"),
    [
        ("n==4096", "n==4096 is not param=value"),
        ("m=1 and n!=4", "n!=4 is not param=value"),
        ("n<=4", "n<=4 is not param=value"),
        ("n=", "n= is not param=value"),
        ("=4", "=4 is not param=value"),
    ],
)
def test_a_malformed_comparison_is_refused_with_what_to_write(expression: str, what: str) -> None:
    with pytest.raises(SpecError) as caught:
        select(VARIANTS, expression)
    assert caught.value.message == f"-k {expression!r}: {what}."
    assert caught.value.hint == "Write m=1024, m=1*, or not m=1024."


def test_a_quoted_value_may_be_empty_or_hold_signs() -> None:
    for expression in ('layout=""', 'layout="a<b"', 'layout="=="', '"matmul[m=1024]@h100"'):
        with pytest.raises(SpecError, match="selects none of"):
            select(VARIANTS, expression)


def test_a_very_long_expression_is_refused() -> None:
    with pytest.raises(SpecError, match="at most 2000 characters"):
        select(VARIANTS, "a" * 2001)


@given(st.lists(st.sampled_from(["and", "or", "not", "(", ")", "m", '"', "m=1*"]), max_size=8))
def test_any_expression_selects_or_is_refused(words: list[str]) -> None:
    with suppress(SpecError):
        assert select(VARIANTS, " ".join(words))


def test_retarget_puts_other_targets_in_place() -> None:
    ids = [variant.id for variant in expand(retarget(SPECS[2:], ["sm_80", "mine"]))]
    assert ids == ["rms_norm@a100-sxm", "rms_norm@mine"]


def test_retarget_counts_a_model_once() -> None:
    (spec,) = retarget(SPECS[2:], ["sm_90a", "h100-sxm", "sm_90a"])
    assert spec.targets == ("h100-sxm",)


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


def test_retarget_without_names_changes_nothing() -> None:
    assert retarget(SPECS, []) == SPECS


def test_retarget_refuses_an_unknown_target() -> None:
    with pytest.raises(SpecError) as caught:
        retarget(SPECS, ["sm_90"])
    assert str(caught.value) == ("unknown target 'sm_90'.\n  Did you mean 'sm_90a'?")
