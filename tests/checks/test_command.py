"""`pallasc check` as a command: what it takes, what is shared, how it ends."""

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import click
import pytest

from pallasc.checks.worker import Session
from pallasc.cli.main import root
from pallasc.errors import ToolError


@pytest.mark.parametrize(
    ("words", "limit_s"), [((), 600.0), (("--timeout", "none"), None), (("--timeout", "5"), 5.0)]
)
@pytest.mark.parametrize("name", ["check", "run"])
def test_what_executes_kernels_ends_by_itself_unless_told_otherwise(
    name: str, words: tuple[str, ...], limit_s: float | None
) -> None:
    above = click.Context(root, **root.context_settings)
    chosen = root.get_command(above, name)
    assert chosen is not None
    context = chosen.make_context(name, ["spec.yaml", *words], parent=above)
    assert context.params["timeout_s"] == limit_s


def test_another_seed_or_file_of_inputs_is_another_check(again: Path, checking: Any) -> None:
    only = ("-k", "name=sound", "--json")
    for from_store in (False, True):
        seeded = checking.check(again, "spec.yaml", *only, "--seed", "3")
        assert seeded.results["sound"]["from_store"] is from_store
    import numpy as np

    np.savez(again / "in.npz", **{"0": np.full(128, np.nan, np.float32)})
    named = checking.check(again, "spec.yaml", "--inputs", "in.npz")
    assert (named.code, named.out) == (2, "")
    (told,) = [line for line in named.err.splitlines() if "'0'" in line]
    assert told.endswith("@h100-sxm has no input '0' for " + str(again / "in.npz") + ".")


def test_inputs_that_do_not_fit_are_refused_once_before_anything_runs(
    project: Path, checking: Any
) -> None:
    import numpy as np

    kernels = [{"name": name, "args": {"x": "f32[128]"}} for name in ("sound", "doubled")]
    (project / "spec.yaml").write_text(checking.spec_of(*kernels))
    np.savez(project / "in.npz", x=np.zeros(100, np.float32))
    ran = checking.check(project, "spec.yaml", "--level", "all", "--inputs", "in.npz")
    assert (ran.code, ran.out) == (2, "")
    told = "holds float32[100], and the kernel takes f32[128]"
    assert ran.err.count(told) == 1
    assert "numpy's type float32.\n  Or choose other variants with -k.\n" in ran.err
    twice = checking.check(project, "spec.yaml", "--inputs", "in.npz", "--input", "x=x.npy")
    assert twice.code == 2
    assert "--input and --inputs in.npz both provide x." in twice.err


def test_small_sizes_are_checked_in_the_place_of_all_that_share_them(
    project: Path, checking: Any
) -> None:
    source = project / "kernels.py"
    of_any_size = "return kernel(body, n=x.shape[0])(x)"
    source.write_text(source.read_text().replace("return kernel(body)(x)", of_any_size))
    sizes = [1 << 22, 128, 1 << 23]
    sized = {"name": "sound", "args": ["f32[{n}]"], "check": {"n": 128, "$seed": 5}}
    others = {**sized, "name": "others", "entry": "kernels.py:sound"}
    kernels = [{**sized, "matrix": {"n": sizes}}, {**others, "matrix": {"n": sizes[::2]}}]
    (project / "spec.yaml").write_text(checking.spec_of(*kernels))
    ran = checking.check(project, "spec.yaml", "--json")
    assert ran.code == 0, ran.err
    checks = ran.report["variants"]
    ids = [f"sound[n={n}]" for n in sizes] + [f"others[n={n}]" for n in sizes[::2]]
    assert [check["id"] for check in checks] == [f"{name}@h100-sxm" for name in ids]
    _assert_noted(checks)
    assert "/2] compiled  sound[n=128]@h100-sxm" in ran.err
    stored = checking.check(project, "spec.yaml", "--json").report["variants"]
    assert all(result["from_store"] for check in stored for result in check["results"])
    _assert_noted(stored)


def _assert_noted(checks: Any) -> None:
    """Each variant passes, and tells of the small size where that is not its own."""
    for check in checks:
        (result,) = check["results"]
        small = f"{check['name']}[n=128]@h100-sxm"
        notes = [] if check["id"] == small else [f"for {small}"]
        assert (result["status"], result["notes"]) == ("passed", notes), check["id"]


def test_a_variant_that_does_not_compile_hangs_or_dies_is_lost_alone(
    project: Path, checking: Any
) -> None:
    source = project / "kernels.py"
    source.write_text(
        source.read_text()
        + "\n\ndef hangs(x):\n    import time\n    time.sleep(600)\n"
        + "\n\ndef dies(x):\n    import os\n    os.kill(os.getpid(), 11)\n"
        + "\n\ndef broken(x):\n    raise ValueError('no')\n"
    )
    lost: list[dict[str, object]] = [
        {"name": name, "entry": "kernels.py:sound", "reference": f"kernels.py:{name}"}
        for name in ("hangs", "dies")
    ]
    kernels = ({"name": "broken"}, *lost, {"name": "sound"})
    (project / "spec.yaml").write_text(checking.spec_of(*kernels))
    for timeout in ("6", "24", "250"):  # a busy machine takes longer over the others, too
        ran = checking.check(project, "spec.yaml", "--timeout", timeout)
        if ran.out.count("(--timeout)") == 1:
            break
    assert ran.code == 1
    told = {line.split("@")[0].split()[-1]: line for line in ran.out.splitlines() if "@" in line}
    start = "not checked  interpreter"
    line = "not checked  all          broken@h100-sxm: it did not compile: "
    assert told["broken"].startswith(line)
    assert "ValueError: no" in ran.out
    for name, why in (
        ("hangs", f"took longer than {timeout} s (--timeout)"),
        ("dies", "was killed by SIGSEGV"),
    ):
        assert told[name].startswith(f"{start}  {name}@h100-sxm: ")
        assert why in told[name]
    assert told["sound"].startswith("passed       interpreter  sound@h100-sxm")


def test_a_check_that_is_killed_leaves_no_half_result(project: Path, checking: Any) -> None:
    (project / "spec.yaml").write_text(checking.spec_of({"name": "sound"}, {"name": "doubled"}))
    words = [sys.executable, "-P", "-m", "pallasc", "check", "spec.yaml", "--store", "store"]
    process = subprocess.Popen(words, cwd=project, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert process.stdout is not None
    process.stdout.readline()  # the first result is there, and the second may be half done
    process.send_signal(signal.SIGKILL)
    process.communicate()
    ran = checking.check(project, "spec.yaml", "--json")
    statuses = {name: result["status"] for name, result in ran.results.items()}
    assert statuses == {"sound": "passed", "doubled": "found"}


def test_a_bundle_and_a_key_come_without_source(again: Path, checking: Any) -> None:
    bundle = again / "kernels.pallasc"
    words = ("bundle", "create", "spec.yaml", "--output", bundle, "-k", "name=sound")
    made = checking.pallasc(again, *words)
    assert made.code == 0, made.err
    key = checking.check(again, "spec.yaml", "--json", "-k", "name=sound").report["variants"][0]
    for what in (bundle, key["action_key"]):
        ran = checking.check(again, what, "--json", "--junit", "j.xml", "--sarif", "s.sarif")
        assert ran.code == 4, ran.err
        message = "nothing was checked: no level could check the variant."
        hint = "Each level says why. Name specs instead, or bundles made with --keep-ptx."
        assert ran.err.endswith(f"error: {message}\n  {hint}\n")
        assert (ran.report["error"]["message"], ran.report["error"]["exit_code"]) == (message, 4)
        assert message.encode() in (again / "j.xml").read_bytes()
        run = json.loads((again / "s.sarif").read_text())["runs"][0]
        assert run["invocations"][0]["executionSuccessful"] is False
        ((result,),) = [check["results"] for check in ran.report["variants"]]
        assert (result["status"], result["reason"]) == (
            "not checked",
            "it needs the source of the kernel; name the spec instead",
        )


def test_the_first_digits_of_a_key_name_what_the_store_has(checked: Any, checking: Any) -> None:
    rows = {row["name"]: row for row in checked.ran.report["variants"]}
    key = rows["sound"]["action_key"]
    ran = checking.check(checked.folder, key[:6], "--json")
    assert [row["id"] for row in ran.report["variants"]] == [key]
    short = checking.check(checked.folder, key[:5])
    assert (short.code, short.out) == (2, "")
    assert short.err == (
        f"error: {key[:5]} is neither a file nor a key: the first 6 digits of an action key are "
        "needed, but it has only 5.\n"
        "  pallasc inspect SPECS --json prints the action keys of variants.\n"
    )
    other = "0" * 8 if not key.startswith("0" * 8) else "1" * 8
    absent = checking.check(checked.folder, other)
    assert absent.code == 3
    assert f"{other} is not a file, and the store has no artifact whose" in absent.err


def test_errors_of_small_sizes_name_them_and_where_they_come_from(
    project: Path, checking: Any
) -> None:
    source = project / "kernels.py"
    of_any_size = "return kernel(body, n=x.shape[0])(x)"
    whole = "if x.shape[0] % 128:\n        raise ValueError('not whole')\n    "
    text = source.read_text().replace("return kernel(body)(x)", of_any_size)
    text = text.replace("def sound(x):\n    ", f"def sound(x):\n    {whole}", 1)
    text += "\n\ndef fails(x):\n    raise ValueError(x.shape)\n"
    source.write_text(text)
    kernels = [
        {"name": "sound", "args": ["f32[{n}]"], "matrix": {"n": [4096]}, "check": {"n": 100}},
        {"name": "doubled", "args": ["f32[4096]"], "check": {"$args": ["f32[128]"]},
         "reference": "kernels.py:fails"},
    ]  # fmt: skip
    lines = json.dumps(json.loads(checking.spec_of(*kernels)), indent=1)
    (project / "spec.yaml").write_text(lines)
    at = [n for n, line in enumerate(lines.splitlines(), 1) if '"check":' in line]
    ran = checking.check(project, "spec.yaml", "--json")
    assert ran.code == 1
    assert "nothing was checked" not in ran.err
    sound, doubled = ran.report["variants"]
    place = f"spec.yaml:{at[0]}:"
    assert sound["error"]["message"].startswith(f"with n=100 from check: in {place}")
    assert "ValueError: not whole" in sound["error"]["message"]
    assert "Change these sizes" in sound["error"]["hint"]
    (result,) = doubled["results"]
    place = f"spec.yaml:{at[1]}:"
    assert result["reason"].startswith(f"with 0: f32[128] from check: in {place}")
    assert "Change these sizes" in result["error"]["hint"]


def test_without_jax_a_level_that_calls_the_users_code_says_what_to_install(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(ToolError) as caught:
        Session().prepare((), {})
    assert caught.value.exit_code == 4
    assert caught.value.message == (
        "the level calls the kernel or its reference, and jax is not installed."
    )
    assert caught.value.hint == 'Install it with: pip install "pallasc[cuda13]"'


def test_without_numpy_stored_results_are_shown_and_others_say_what_to_install(
    again: Path, checking: Any
) -> None:
    hidden = "import sys; sys.modules['numpy'] = None; from pallasc.cli.main import main; "
    start = ("-c", f"{hidden}sys.exit(main())")
    words = ("check", "spec.yaml", "-k", "name=sound", "--level", "interpreter")
    assert checking.pallasc(again, *words, start=start).code == 0
    ran = checking.pallasc(again, *words, "--seed", "7", start=start)
    assert (ran.code, ran.out) == (4, "")
    assert ran.err.endswith(
        "error: the emulator requires numpy, not installed in this Python.\n"
        "  Install it with: pip install 'pallasc[emulate]'\n"
    )


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("-k", "name=sound"), "-k chooses variants of specs and bundles"),
        (("--target", "h100"), "--target chooses variants of specs and bundles"),
        (("--level", "artifact", "--level", "artifact"), "--level is given 2 times"),
    ],
)
def test_what_a_key_or_a_level_does_not_go_with_is_refused(
    project: Path, checking: Any, words: tuple[str, ...], told: str
) -> None:
    ran = checking.check(project, "0123456789ab", *words)
    assert (ran.code, ran.out) == (2, "")
    assert told in ran.err
