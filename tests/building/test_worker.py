"""What user code does to the process that compiles it, short of harm."""

from typing import Any

UNREADABLE = {
    "raises": "def run(x): raise ValueError('a' * 10**7)\n",
    "imports": "raise OSError('a' * 10**7)\ndef run(x): return x\n",
    "ours": "import pallasc\ndef run(x): raise pallasc.SpecError('a' * 10**7)\n",
    "silent": "class Silent(Exception):\n    def __str__(self): raise KeyError\n"
    "def run(x): raise Silent\n",
}


def test_what_a_kernel_raises_is_cut_or_named_if_it_cannot_be_read(
    project: Any, results: Any
) -> None:
    for name, text in UNREADABLE.items():
        project.write(f"{name}.py", text)
    entries = {name: f"{name}.py:run" for name in UNREADABLE} | {"package": "imports:run"}
    project.spec(*({"name": name, "entry": entry} for name, entry in entries.items()))
    found = {name: str(result.error) for name, result in results(project.build()).items()}
    assert all("aaaaaaaa" in found[name] for name in entries if name != "silent")
    assert all(len(message) < 10_000 for message in found.values())
    for name in ("imports", "ours", "package"):
        assert "characters cut" in found[name], name
    assert "Silent: its message cannot be read: KeyError" in found["silent"]


def test_a_models_description_may_hold_any_character_and_no_bytecode_is_left(project: Any) -> None:
    project.write("quoted.py", "import helper\ndef run(x): return x * helper.VALUE\n")
    project.write("helper.py", "VALUE = 7\n")
    models = {"mine": {"like": "h100-sxm", "description": 'A "big" \\ GPU {x} \u00e9'}}
    project.spec({"name": "k", "entry": "quoted.py:run"}, models=models, targets=["mine"])
    (result,) = project.build().results
    assert (result.status, result.error) == ("compiled", None)
    assert list(project.folder.rglob("*.pyc")) == []


def test_a_source_that_changes_while_it_is_compiled_is_not_remembered(project: Any) -> None:
    text = "import pathlib\npathlib.Path(__file__).touch()\ndef run(x): return x * 6\n"
    project.write("restless.py", text)
    project.spec({"name": "restless", "entry": "restless.py:run"})
    first = project.build()
    assert first.results[0].status == "compiled"
    assert first.notes == (
        "restless@h100-sxm will be lowered again: restless.py changed during compilation",
    )
    second = project.build()
    assert [(r.status, r.reason) for r in second.results] == [
        ("lowered", "never compiled with this spec and toolchain")
    ]


# ---- what modules do to themselves and to Python

SCALE = "def scale(x): return x * {}\n"
NO = "def no(*arguments, **options): raise ZeroDivisionError(arguments)\n"
ODD = {
    "deleted": "import os\nos.unlink(__file__)\ndef run(x): return x * 6\n",
    "forgetful": (
        "import sys, by_forgetful\ndel sys.modules[__name__], sys.modules['by_forgetful']\n"
        "def run(x): return by_forgetful.scale(x)\n"
    ),
    "finds": (
        f"import sys\n{NO}try: import never_there\nexcept ImportError: pass\n"
        "class Finder: find_spec = staticmethod(no)\n"
        "def run(x):\n    sys.meta_path.append(Finder())\n    return x * 11\n"
    ),
    "uses_nonsense": "import odd_file\ndef run(x): return odd_file.scale(x)\n",
    "uses_deleted": "import deletes_itself\ndef run(x): return deletes_itself.scale(x)\n",
}
HELPERS = {
    "by_forgetful": SCALE.format(9),
    "odd_file": "__file__ = ['odd']\n" + SCALE.format(12),
    "deletes_itself": "import os\nos.unlink(__file__)\n" + SCALE.format(13),
}
NOT_REMEMBERED = {
    "deleted": "deleted.py changed during compilation",
    "uses_deleted": "deletes_itself.py changed during compilation",
    "uses_nonsense": "cannot compute a digest of odd_file: no file",
    "finds": "cannot determine which files it read: ZeroDivisionError: ('never_there', None)",
}


def test_a_fault_in_recording_fails_no_build(project: Any, results: Any) -> None:
    for name, text in {**ODD, **HELPERS}.items():
        project.write(f"{name}.py", text)
    project.spec(*({"name": name, "entry": f"{name}.py:run"} for name in ODD))
    first = project.build(jobs=1)
    assert {(r.variant.name, r.status, str(r.error)) for r in first.results} == {
        (name, "compiled", "None") for name in ODD
    }
    assert set(first.notes) == {
        f"{name}@h100-sxm will be lowered again: {why}" for name, why in NOT_REMEMBERED.items()
    }
    for name, text in {**ODD, **HELPERS}.items():
        if "unlink" in text:
            project.write(f"{name}.py", text)
    project.write("by_forgetful.py", SCALE.format(16))
    second = results(project.build(jobs=1))
    assert {name for name, result in second.items() if not result.reason} == {
        *ODD
    } - NOT_REMEMBERED.keys() - {"forgetful"}
    compiled = [name for name, result in second.items() if result.status == "compiled"]
    assert compiled == ["forgetful"]


def test_a_fault_in_recording_fails_no_python_spec(project: Any) -> None:
    head = "import pallasc\n__file__ = 17\n@pallasc.kernel(args=['f32[8]'], targets=['sm_90a'])\n"
    project.write("spec.py", f"{head}def run(x): return x * 17\n")
    assert [variant.name for variant in project.variants("spec.py")] == ["run"]


# ---- ends
