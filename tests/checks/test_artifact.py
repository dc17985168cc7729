"""The artifact level on real kernels, all checked by one run: findings have the user's lines."""

import re
import shutil
from importlib import metadata
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pallasc.checks.faults import fault_finding
from pallasc.checks.findings import ARTIFACT_RULES
from pallasc.emulator.machine.machine import Machine
from pallasc.emulator.machine.memory import Actor, Fault

NEW = not metadata.version("jax").startswith("0.10.")
spelled_for_later = pytest.mark.skipif(not NEW, reason="the kernels are written for JAX 0.11")
MORE = """

def no_wait(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x, smem, bar)
        o[...] = smem[...]  # reads what no wait is over for

    return kernel(body)(x)


def old_and_new(x):
    def body(x, o, bar, smem):
        smem[...] = jnp.zeros((128,), jnp.float32)
        plgpu.commit_smem()
        plgpu.copy_gmem_to_smem(x, smem, bar)
        o[...] = smem[...]  # the copy may not be there yet
        plgpu.barrier_wait(bar)

    return kernel(body)(x)


def beside(x):
    return sound(x * 2) / 2


def half(x):
    def body(x, o, bar, smem):
        first = pl.ds(0, 64)
        plgpu.copy_gmem_to_smem(x.at[first], smem.at[first], bar)  # announces half, too
        plgpu.barrier_wait(bar)
        o[...] = smem[...]  # of which nothing has written the second half

    return kernel(body)(x)


def partly(x):
    def body(x, o, bar, smem):
        plgpu.copy_gmem_to_smem(x, smem, bar)
        plgpu.barrier_wait(bar)
        o[pl.ds(0, 128)] = smem[...]

    memory = [plgpu.Barrier(), plgpu.SMEM((128,), jnp.float32)]
    return made(body, shape=(256,), memory=memory)(x)

def temporaries(x):
    return jnp.sort(x), jnp.sort(-x), jnp.sort(x * x)


def summed(x, start):
    def body(a, b, c, o, bar, smem):
        first = jax.lax.axis_index("i") + start
        o[...] = a[pl.ds(first, 128)] + b[pl.ds(first, 128)] + c[pl.ds(first, 128)]  # the loads

    return kernel(body)(*temporaries(x))


def within(x):
    return summed(x, 0)


def past_the_end(x):
    return summed(x, 64)


def added(x):
    return sum(temporaries(x))


def too_early(x):
    def first(x):
        def body(x, o, bar, smem):
            smem[...] = jnp.zeros((128,), jnp.float32)
            plgpu.commit_smem()
            plgpu.copy_gmem_to_smem(x, smem, bar)
            o[...] = smem[...]  # FIRST
            plgpu.barrier_wait(bar)

        return kernel(body)(x)

    def second(x):
        def body(x, o, bar, smem):
            smem[...] = jnp.ones((128,), jnp.float32)
            plgpu.commit_smem()
            plgpu.copy_gmem_to_smem(x, smem, bar)
            o[...] = smem[...] * 2  # SECOND
            plgpu.barrier_wait(bar)

        return kernel(body)(x)

    return second(first(x))


TILED = (plgpu.TilingTransform((8, 64)), plgpu.SwizzleTransform(128))
LANE = plgpu.CompilerParams(lowering_semantics=plgpu.LoweringSemantics.Lane)


def through_tiles(fill):
    def body(x, o, tiles):
        value = plgpu.load(x, layout=plgpu.Layout.WGMMA, optimized=False).astype(jnp.bfloat16)
        fill(tiles, value)
        plgpu.commit_smem()
        plgpu.copy_smem_to_gmem(tiles, o)
        plgpu.wait_smem_to_gmem(0)

    memory = [plgpu.SMEM((64, 64), jnp.bfloat16, transforms=TILED)]
    options = {"dtype": jnp.bfloat16, "memory": memory, "compiler_params": LANE}
    return lambda x: run(body, x, shape=(64, 64), **options)


def swapped(x):
    def fill(tiles, value):
        tiles[...] = value  # JAX lowers it to a swap, whose old value nobody uses

    return through_tiles(fill)(x)


def old_is_used(x):
    def fill(tiles, value):
        old = plgpu.load(tiles, layout=plgpu.Layout.WGMMA)
        tiles[...] = value + old * 0  # OLD

    return through_tiles(fill)(x)


def halved(x):
    return x.astype(jnp.bfloat16)

"""
NAMES = ("sound", "doubled", "waits_twice", "three_of_two", "no_wait", "old_and_new", "beside",
         "too_early")  # fmt: skip
HALVED = {"args": ["f32[64, 64]"], "reference": "kernels.py:halved"}
KERNELS: list[dict[str, Any]] = [
    *({"name": name} for name in NAMES),
    *({"name": name, "reference": None} for name in ("half", "partly")),
    *({"name": name, "reference": "kernels.py:added"} for name in ("within", "past_the_end")),
    *({"name": name, **HALVED} for name in ("swapped", "old_is_used") if NEW),
]
WORDS = ("--level", "artifact", "--schedules", "2")


@pytest.fixture(scope="module")
def checked(tmp_path_factory: pytest.TempPathFactory, checking: Any) -> Any:
    return checking.check_kernels(tmp_path_factory.mktemp("artifact"), MORE, KERNELS, *WORDS)


@pytest.fixture
def results(checked: Any) -> Any:
    return checked.results


def only(result: dict[str, Any]) -> dict[str, Any]:
    """Return the only finding of a result that is no race."""
    assert result["status"] == "found", result
    (finding,) = [each for each in result["findings"] if each["rule"] != "race"]
    return dict(finding)


@pytest.mark.parametrize("name", ["sound", "beside"])
def test_a_sound_kernel_passes_with_what_xla_makes_around_it(name: str, results: Any) -> None:
    assert (results[name]["status"], results[name]["reason"]) == ("passed", "")


def test_wrong_numbers_have_the_instruction_that_wrote_them(results: Any, checked: Any) -> None:
    finding = only(results["doubled"])
    assert finding["rule"] == "wrong-numbers"
    pattern = r"\[0\] is (\S+), expected (\S+); 128 of 128 elements differ"
    ((got, right),) = [map(float, each) for each in re.findall(pattern, finding["message"])]
    assert got == pytest.approx(2 * right)
    assert "warp 0 of block (0, 0, 0) wrote it in body_mosaic_gpu_kernel" in finding["message"]
    assert finding["instruction"].startswith("st.global")
    assert finding["location"]["line"] == checked.line("o[...] = smem[...] + smem[...]")


@pytest.mark.parametrize(
    ("name", "text"),
    [("no_wait", "reads what no wait"), ("old_and_new", "the copy may not be there yet")],
)
def test_a_wait_that_is_missing_is_found_at_the_users_line(
    name: str, text: str, results: Any, checked: Any
) -> None:
    *races, numbers = results[name]["findings"]
    assert numbers["rule"] in ("wrong-numbers", "uninitialized-read")
    assert "a wait is missing" in numbers["hint"]
    assert "race" in {race["rule"] for race in races}
    assert numbers["location"]["line"] == checked.line(text)
    assert checked.line(text) in {race["location"]["line"] for race in races}
    assert {Path(race["location"]["file"]).name for race in races} == {"kernels.py"}


@pytest.mark.parametrize(
    ("name", "text", "arrivals", "warps"),
    [
        ("waits_twice", "nobody arrives again", "0 of 128", 4),
        ("three_of_two", "three arrivals are asked for", "256 of 384", 8),
    ],
)
def test_a_deadlock_is_told_with_barrier_arrivals_and_line(
    name: str, text: str, arrivals: str, warps: int, results: Any, checked: Any
) -> None:
    finding = only(results[name])
    assert finding["rule"] == "deadlock"
    assert f"{arrivals} arrivals (num_arrivals=" in finding["message"]
    assert finding["location"]["line"] == checked.line(text)
    place, *context = finding["places"]
    assert f"and {warps - 1} more wait for" in place["text"]
    assert place["location"]["line"] == checked.line(text)
    told = {each["text"].partition(":")[0]: each["location"]["line"] for each in context}
    before = [each for each in context if each["text"].startswith("earlier in warp 0:")]
    assert before[0]["location"]["line"] == checked.line(text) - 1
    expected = arrivals.partition(" of ")[2]
    initialised = told[f"the mbarrier is initialized for {expected} arrivals"]
    if NEW:  # the tables of JAX 0.10 give it the line of the first copy
        assert initialised > checked.line(text)
    signals = {at for what, at in told.items() if what.startswith("signals it")}
    assert signals
    assert max(signals) < checked.line(text)


def test_wrong_numbers_name_the_copies_that_they_come_from(results: Any, checked: Any) -> None:
    places = only(results["doubled"])["places"]
    copies = [each for each in places if "cp.async.bulk.tensor" in each["text"]]
    assert [each["text"].partition(":")[0] for each in copies] == ["the value comes from"]
    assert copies[0]["location"]["line"] < checked.line("o[...] = smem[...] + smem[...]")


def test_a_copy_that_is_read_too_early_is_named(results: Any, checked: Any) -> None:
    numbers = results["old_and_new"]["findings"][-1]
    assert "was in flight when its result was read" in numbers["message"]
    early = [each for each in numbers["places"] if "in flight" in each["text"]]
    (place,) = early
    assert place["location"]["line"] == checked.line("the copy may not be there yet") - 1


def test_a_race_names_what_its_warps_did_between_the_accesses(results: Any, checked: Any) -> None:
    races = [each for each in results["no_wait"]["findings"] if each["rule"] == "race"]
    here = checked.line("reads what no wait")
    for race in races:
        assert {each["location"]["line"] for each in race["places"]} <= {here - 1, here}
        assert any(
            each["text"].startswith("last before the next access:") for each in race["places"]
        )
    keys = [(r["location"]["line"], r["message"].partition(",")[0]) for r in races]
    assert len(set(keys)) == len(keys), "findings of one line are told once"


def test_without_a_reference_what_nobody_wrote_is_found(results: Any) -> None:
    finding = only(results["partly"])
    assert finding["rule"] == "uninitialized-read"
    assert "; no kernel wrote it" in finding["message"]
    texts = [each["text"] for each in finding["places"]]
    assert any(text.startswith("writes other elements: st.global") for text in texts)
    assert re.search(r"\[128\] .* never written: it is nan in one run", finding["message"])
    assert results["partly"]["notes"] == [
        "the spec names no reference, so numbers are not compared"
    ]


def test_without_a_reference_a_copy_that_is_too_small_is_found(results: Any, checked: Any) -> None:
    """Its barrier expects what it copies, so that nothing else is wrong with it."""
    finding = only(results["half"])
    assert finding["rule"] == "uninitialized-read"
    assert re.search(r"\[64\] .* never written: it is nan in one run", finding["message"])
    assert finding["location"]["line"] == checked.line("nothing has written the second half")
    sources = {each["location"]["line"] for each in finding["places"]}
    assert checked.line("announces half, too") in sources


def test_unchanged_code_is_not_checked_again_and_has_its_lines(
    checked: Any, checking: Any, results: Any, tmp_path: Path
) -> None:
    modules = tmp_path / "modules"
    ran = checking.check(checked.folder, "spec.yaml", "--json", *WORDS, modules=modules)
    assert ran.results == {n: {**each, "from_store": True} for n, each in results.items()}
    loaded = set(modules.read_text().splitlines())
    assert not loaded & {"jax", "pallasc.compiler.workers.pool"}


def test_lines_are_looked_for_again_where_the_file_has_changed(
    checked: Any, checking: Any, tmp_path: Path
) -> None:
    folder = Path(shutil.copytree(checked.folder, tmp_path / "moved"))
    source = folder / "kernels.py"
    source.write_text(f"# a line more\n{source.read_text()}")
    ran = checking.check(folder, "spec.yaml", "--json", *WORDS, "-k", "name=no_wait")
    moved = ran.results["no_wait"]
    assert not moved["from_store"]
    assert moved["findings"][-1]["location"]["line"] == checked.line("reads what no wait") + 1


def test_a_bundle_is_executed_without_its_source(checked: Any, checking: Any) -> None:
    folder = checked.folder
    words = ["bundle", "create", "spec.yaml", "--output", "kernels.pallasc", "--keep-ptx"]
    chosen = "name=sound or name=waits_twice or name=beside or name=partly or name=doubled"
    made = checking.pallasc(folder, *words, "-k", chosen)
    assert made.code == 0, made.err
    again = checking.check(folder, "kernels.pallasc", "--json", "--level", "artifact")
    variants = again.report["variants"]
    found = {check["id"].partition("@")[0]: check["results"][0] for check in variants}
    assert {name: result["status"] for name, result in found.items()} == {
        "sound": "passed",
        "doubled": "passed",  # its numbers have nothing to be compared with
        "waits_twice": "found",
        "partly": "found",
        "beside": "not checked",
    }
    assert found["sound"]["notes"] == ["there is no source, so numbers are not compared"]
    assert re.fullmatch(
        r"there is no PTX of the kernel \w+: it is an XLA kernel, and bundles never contain its "
        "PTX; name the spec instead",
        found["beside"]["reason"],
    )


def test_every_fault_has_a_rule_of_the_level() -> None:
    emulator = Path(__file__).resolve().parents[2] / "emulator"
    pattern = re.compile(r'(?:Fault\(\s*|rule=|rule: str = )"([a-z-]+)"')
    named = {n for f in emulator.rglob("*.py") for n in pattern.findall(f.read_text())}
    assert {"misaligned", "invalid-operand", "tensor-allocation"} < named
    known = {rule.name for rule in ARTIFACT_RULES}
    for name in named:
        fault = Fault(name, "does it", actor=Actor(0, (1, 0, 0), 2))
        finding = fault_finding(fault, Machine())
        assert finding.rule in known
        assert finding.message == "warp 2 of block (1, 0, 0): does it"
    assert np.all([rule.help for rule in ARTIFACT_RULES])


def test_a_temporary_is_read_to_its_end_and_not_further(results: Any, checked: Any) -> None:
    assert results["within"]["status"] == "passed", results["within"]
    (finding,) = results["past_the_end"]["findings"]
    assert finding["rule"] == "out-of-bounds"
    assert finding["location"]["line"] == checked.line("# the loads")


def test_a_finding_in_each_kernel_of_one_name_has_its_line(results: Any, checked: Any) -> None:
    told = [each for each in results["too_early"]["findings"] if each["rule"] == "race"]
    assert len({each["kernel"] for each in told}) == 1
    cubins: dict[str, set[int]] = {}
    for each in told:
        places = (each["location"], *(place["location"] for place in each["places"]))
        cubins.setdefault(each["cubin"], set()).update(at["line"] for at in places if at)
    assert len(cubins) == 2
    for text, other in (("FIRST", "SECOND"), ("SECOND", "FIRST")):
        line = checked.line(text)
        (own,) = [lines for lines in cubins.values() if line in lines]
        assert checked.line(other) not in own
        at = {each["location"]["line"] for each in told}
        assert at & {line - 1, line}  # the copy, or the access that does not wait for it


def test_a_wrong_number_names_what_the_kernel_before_has_made_of_it(
    results: Any, checked: Any
) -> None:
    found = results["too_early"]["findings"]
    (finding,) = [each for each in found if each["rule"] == "wrong-numbers"]
    first, second = (checked.line(text) for text in ("FIRST", "SECOND"))
    assert finding["location"]["line"] == second
    lines: dict[bool, set[int]] = {True: set(), False: set()}
    for place in finding["places"]:
        if place["text"].startswith("the value comes from"):
            assert place["cubin"] != finding["cubin"]
            lines[bool(place["cubin"])].add(place["location"]["line"])
    assert lines[False] <= {second - 3, second - 1, second}
    assert lines[True] <= {first - 3, first - 1, first}
    assert second - 1 in lines[False]
    assert {first - 1, first} <= lines[True]


@spelled_for_later
def test_the_load_of_a_swap_whose_old_value_nobody_uses_is_no_fault(results: Any) -> None:
    result = results["swapped"]
    assert (result["status"], result["findings"]) == ("passed", []), result


@spelled_for_later
def test_an_old_value_that_is_used_is_an_uninitialized_read(results: Any, checked: Any) -> None:
    findings = results["old_is_used"]["findings"]
    assert {finding["rule"] for finding in findings} == {"uninitialized-read"}
    line = checked.line("  # OLD")
    assert {f["location"]["line"] for f in findings} & {line - 1, line}
