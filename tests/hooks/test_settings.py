"""What pyproject.toml may say about bundles, and how a mistake is told."""

import os
from pathlib import Path

import pytest

from pallasc.errors import SpecError
from pallasc.hooks.settings import FIELDS, Setting, has_settings, read_settings

HEAD = '[project]\nname = "mylib"\n\n'
PLACE = "mylib/kernels.pallasc"


def read(folder: Path, text: str, **variables: str) -> tuple[Setting, ...]:
    (folder / "pyproject.toml").write_text(HEAD + text)
    return read_settings(folder, variables)


def read_value(folder: Path, value: str, **variables: str) -> Setting:
    (setting,) = read(folder, f'[tool.pallasc.bundles]\n"{PLACE}" = {value}\n', **variables)
    return setting


@pytest.mark.parametrize(
    ("value", "specs", "bundle"),
    [
        ('"kernels/"', ("kernels/",), None),
        ('["a.yaml", "b/c.py"]', ("a.yaml", "b/c.py"), None),
        ('{specs = "kernels"}', ("kernels",), None),
        ('"made/k.pallasc"', (), "made/k.pallasc"),
        ('{bundle = "made/k.pallasc"}', (), "made/k.pallasc"),
    ],
)
def test_specs_are_one_path_or_many_and_a_bundle_made_before_stands_in_for_them(
    value: str, specs: tuple[str, ...], bundle: str | None, tmp_path: Path
) -> None:
    setting = read_value(tmp_path, value)
    assert (setting.specs, setting.bundle) == (specs, bundle)
    assert (setting.place, setting.folder, setting.name) == (PLACE, "mylib", "kernels.pallasc")
    assert (setting.targets, setting.select, setting.lock) == ((), None, None)
    assert (setting.source, setting.keep_debug) == ("compile", False)


def test_a_table_says_everything_and_a_wheel_may_have_several_bundles(tmp_path: Path) -> None:
    text = f"""
    [tool.pallasc.bundles."{PLACE}"]
    specs = ["kernels/"]
    targets = ["sm_90a", "h200"]
    select = "matmul"
    from = "store"
    lock = "locks/pallasc.lock"
    keep-debug = true

    [tool.pallasc.bundles]
    "a/b/y.pallasc" = "y"
    """
    setting, other = read(tmp_path, text)
    assert setting.targets == ("sm_90a", "h200")
    assert (setting.select, setting.source) == ("matmul", "store")
    assert (setting.lock, setting.keep_debug) == ("locks/pallasc.lock", True)
    assert other.folder == "a/b"
    assert has_settings(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "wheels.md").read_text()
    assert [field.name for field in FIELDS if f"`{field.name}`" not in page] == []


def test_a_project_that_asks_for_nothing_has_no_settings(tmp_path: Path) -> None:
    assert not has_settings(tmp_path)
    with pytest.raises(SpecError, match=r"pyproject\.toml: there is no such file"):
        read_settings(tmp_path, os.environ)
    assert read(tmp_path, "") == ()
    assert not has_settings(tmp_path)
    for text in ("tool = 3", "[tool]\npallasc = 3", "tool = [", "\N{BELL}"):
        (tmp_path / "pyproject.toml").write_text(text)
        assert not has_settings(tmp_path)


def test_a_misspelled_table_is_an_error_not_a_wheel_without_kernels(tmp_path: Path) -> None:
    (tmp_path / "pyproject.toml").write_text('[tool.pallasc.bundle]\n"a/x.pallasc" = "x.yaml"\n')
    assert has_settings(tmp_path)
    with pytest.raises(SpecError) as caught:
        read_settings(tmp_path, {})
    assert str(caught.value.hint) == "Did you mean 'bundles'?"


def test_a_variable_freezes_whatever_is_set(tmp_path: Path) -> None:
    for value in ("", "0", "off"):
        assert read_value(tmp_path, '"k"', PALLASC_FROZEN=value).source == "compile"
    for value, source in (("1", "compile"), ("true", "store"), ("Yes", "frozen")):
        setting = f'{{specs = "k", from = "{source}"}}'
        assert read_value(tmp_path, setting, PALLASC_FROZEN=value).source == "frozen"
    with pytest.raises(SpecError, match=r"PALLASC_FROZEN is 'perhaps'\.\n  Set it to 1 or to 0\."):
        read_value(tmp_path, '"k"', PALLASC_FROZEN="perhaps")


AT = f"pyproject.toml:5: tool.pallasc.bundles.{PLACE}"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        ('{spec = "k"}', f"{AT}: unknown key 'spec'.\n  Did you mean 'specs'?"),
        (
            '{specs = "k", from = "stor"}',
            f"{AT}.from: expected 'compile', 'store' or 'frozen', got 'stor'.",
        ),
        ('{specs = "k", keep-debug = "no"}', f"{AT}.keep-debug: expected true or false, got 'no'."),
        ("3", f"{AT}: expected a mapping, got 3."),
        ("{}", f"{AT}: expected exactly one of 'specs' and 'bundle'.\n  It names the content."),
        (
            '{bundle = "k.pallasc", targets = "sm_90a"}',
            f"{AT}.targets: this key is for specs; 'bundle' is used as it is.\n  Remove it.",
        ),
        ("[]", f"{AT}.specs: the list of paths is empty.\n  Leave the field out, or add an item."),
        (
            '"../kernels"',
            f"{AT}: '../kernels' is outside of the project.\n"
            "  Put it below the folder of pyproject.toml, so that the sdist can contain it.",
        ),
        (
            '{specs = "k", lock = "/pallasc.lock"}',
            f"{AT}.lock: '/pallasc.lock' is outside of the project.\n"
            "  Put it below the folder of pyproject.toml, so that the sdist can contain it.",
        ),
    ],
)
def test_a_mistake_is_told_with_file_line_and_key(value: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read_value(tmp_path, value)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("place", "complaint"),
    [
        ("mylib/kernels", "the name of a bundle must end with .pallasc."),
        ("mylib/.pallasc", "the name of a bundle must end with .pallasc."),
        ("kernels.pallasc", "a bundle must be in a package."),
        ("/mylib/kernels.pallasc", "a bundle must be in a package."),
        ("../mylib/kernels.pallasc", "a bundle must be in a package."),
        ("my-lib/kernels.pallasc", "a bundle must be in a package."),
    ],
)
def test_a_place_that_no_package_has_is_refused(place: str, complaint: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, f'[tool.pallasc.bundles]\n"{place}" = "k"\n')
    assert caught.value.message == f"tool.pallasc.bundles.{place}: {complaint}"
    assert caught.value.hint == 'Write the place in the wheel, such as "mylib/kernels.pallasc".'


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            '[tool.pallasc.bundels]\n"a/b.pallasc" = "k"\n',
            "pyproject.toml:4: tool.pallasc: unknown key 'bundels'.\n  Did you mean 'bundles'?",
        ),
        (
            '[tool.pallasc]\nbundles = "k"\n',
            "pyproject.toml:5: tool.pallasc.bundles: expected a table of bundles, got 'k'.\n"
            '  Write the place in the wheel, such as "mylib/kernels.pallasc".',
        ),
    ],
)
def test_a_mistake_in_the_table_is_told(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    assert str(caught.value) == message


def test_the_line_is_that_of_the_bundle_at_fault(tmp_path: Path) -> None:
    text = (
        '[tool.pallasc.bundles."a/x.pallasc"]\nspecs = "x"\nfrom = "store"\n\n'
        '[tool.pallasc.bundles."a/y.pallasc"]\nspecs = "y"\nfrom = "stroe"\n'
    )
    with pytest.raises(SpecError) as caught:
        read(tmp_path, text)
    assert str(caught.value.location) == "pyproject.toml:10"
