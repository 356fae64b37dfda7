"""What comes from outside is printed as it is, but for characters that a terminal acts on."""

import csv
import io
import json
import re
from pathlib import Path
from types import SimpleNamespace

import pytest
from PIL import Image

import longtail.lab.cli
from longtail.lab.cli.escape import escaped
from longtail.lab.cli.output import _Console
from longtail.lab.config import DataConfig, RunConfig
from longtail.lab.report.tables import Cell, Column, Table
from longtail.lab.training.display import Display
from tests.lab.cli.test_data import run

CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""All but the ends of our own lines."""

NAMES = {
    "\x1b[2Jevil": r"\x1b[2Jevil",
    "c1\x9b31m": r"c1\x9b31m",
    "bidi\u202efdp": r"bidi\u202efdp",
    "two\nlines": r"two\nlines",
    "[red]markup[/red]": "[red]markup[/red]",
    ":smile:": ":smile:",
    "Füchse 狐": "Füchse 狐",
}


@pytest.fixture(scope="module")
def photos(tmp_path_factory):
    """Classes with such names, in a folder with another one."""
    root = tmp_path_factory.mktemp("data") / "photos\x1b[31m"
    for shade, name in enumerate(NAMES):
        for place in range(3):
            path = root / name / f"{place}.png"
            path.parent.mkdir(parents=True, exist_ok=True)
            Image.new("RGB", (8, 8), (30 * shade, 10 * place, 0)).save(path)
    return root


def refuses_control(text):
    assert not CONTROL.search(text), CONTROL.search(text)
    return text


@pytest.mark.parametrize("name", ["\x00", "\x1b", "\t", "\x7f", "\x85", "\x9b", "\u202e", "\u2066", "\u2028", "\udcff"])
def test_control_characters_are_escaped(name):
    assert escaped(f"a{name}b") == f"a{name!r}b".replace("'", "")


def test_letters_of_all_kinds_and_backslashes_are_not():
    text = "β Füchse 狐 👩‍👧 naïve C:\\new [bold]x[/]"
    assert escaped(text) == text


def test_weights_print_labels_escaped(capsys, monkeypatch):
    labels = "\n".join(name.replace("\n", "") for name in NAMES)
    shown = [name.replace(r"\n", "") for name in NAMES.values()]

    def printed(*flags):
        monkeypatch.setattr("sys.stdin", io.StringIO(labels))
        return refuses_control(run(capsys, "weights", *flags)[0])

    assert all(any(line.startswith(name) for line in printed().splitlines()) for name in shown)
    assert {row["class"] for row in csv.DictReader(io.StringIO(printed("--csv")))} == set(shown)
    names = {row["class"] for row in json.loads(printed("--json"))["classes"]}
    assert names == {name.replace("\n", "") for name in NAMES}


def test_data_commands_print_class_names_and_paths_escaped(capsys, photos):
    out, error, code = run(capsys, "data", "show", photos)
    assert code == 0
    assert all(any(line.startswith(name) for line in refuses_control(out).splitlines()) for name in NAMES.values())
    refuses_control(error)
    out, _, _ = run(capsys, "data", "show", photos, "--json")
    assert {row["name"] for row in json.loads(refuses_control(out))["per_class"]} == set(NAMES)
    broken = photos / "\x1b[2Jevil" / "broken.png"
    broken.write_bytes(b"")
    for flags in ((), ("--on-error", "skip")):
        out, error, _ = run(capsys, "data", "check", photos, *flags)
        assert r"photos\x1b[31m/\x1b[2Jevil/broken.png is not a readable image" in refuses_control(out + error)
    broken.unlink()


def test_runs_print_class_names_and_paths_escaped(capsys, photos, tmp_path):
    runs = tmp_path / "runs\x1b[31m"
    flags = [
        "--data",
        photos,
        "--model",
        "resnet8",
        "--image-size",
        8,
        "--epochs",
        1,
        "--runs",
        runs,
        "--set",
        "workers=0",
    ]
    for _ in range(2):  # the second says that there is nothing to train
        out, error, code = run(capsys, "train", *flags)
        assert code == 0, error
        refuses_control(out + error)
    (path,) = runs.iterdir()
    out, _, _ = run(capsys, "evaluate", path)
    assert all(any(line.startswith(name) for line in refuses_control(out).splitlines()) for name in NAMES.values())
    out, _, _ = run(capsys, "predict", path, photos, "--top", len(NAMES))
    rows = list(csv.DictReader(io.StringIO(refuses_control(out))))
    assert {row["class"] for row in rows} == set(NAMES.values())
    out, _, _ = run(capsys, "predict", path, photos, "--json")
    paths = [Path(image["path"]) for image in json.loads(refuses_control(out))]
    assert {path.relative_to(photos).parent.as_posix() for path in paths} == set(NAMES)
    for words in (("results", runs), ("results", runs, "--per-run"), ("report", runs, "-o", runs / "page.html")):
        out, error, code = run(capsys, *words)
        assert code == 0
        refuses_control(out + error)
    config = path / "config.json"
    config.write_text(config.read_text().replace('"softmax"', '"[b]\\u001b[2J"'))
    for words in (("evaluate", path), ("results", runs), ("train", "--config", path)):
        out, error, _ = run(capsys, *words)
        assert r"'[b]\x1b[2J'" in refuses_control(out + error)


def test_a_configuration_is_shown_with_json_s_own_escapes(capsys, tmp_path):
    config = RunConfig(data=DataConfig(name="\x1b[2J\u202ephotos"))
    file = tmp_path / "config.json"
    file.write_text(config.to_json())
    out, _, code = run(capsys, "train", "--config", file, "--show-config")
    assert code == 0
    assert RunConfig.from_json(refuses_control(out)) == config


def test_curves_of_a_training_have_lines_of_their_own_in_a_terminal():
    file = io.StringIO()
    console = _Console(file=file, width=200, force_terminal=True)
    with Display(None, console, epochs=2, steps=1, start=SimpleNamespace(epoch=0, step=0)) as bar:
        line = {"epoch": 1, "train_loss": 4.0, "error": 40.0, "lr": 0.1, "images_per_second": 9.0}
        bar.epoch([line])
        bar.epoch([line, line | {"epoch": 2, "train_loss": 1.0, "error": 10.0}])
    assert file.getvalue().splitlines()[-2:] == ["training loss 4 █▁ 1", "test error    40% █▁ 10%"]


def test_no_command_prints_past_the_place_that_escapes():
    for path in Path(longtail.lab.cli.__file__).parent.glob("*.py"):
        if path.name not in ("output.py", "plain.py", "__init__.py"):
            assert not re.search(r"rich\.text|Console\(|csv\.writer|sys\.std(out|err)\.write", path.read_text()), path


def setting_rows():
    """Settings as ``longtail results`` shows them."""
    names = [
        "loss",
        "n",
        "balanced accuracy %",
        "error %",
        "rarest quarter %",
        "many %",
        "few %",
        "Δ balanced accuracy",
    ]
    rows = [["class-balanced focal, β 0.999, γ 0.5", "3", "92.1 ± 1.2", "7.93 ± 1.21", "80.0", "100.0", "86.4", "–"]]
    rows += [["class-balanced softmax, β 0.999", *rows[0][1:-1], "+4.3 [+2.0, +6.5]"]]
    return Table([Column(name, numeric=name != "loss") for name in names], [list(map(Cell, row)) for row in rows])


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(60, "rarest quarter %, many %, few %, Δ balanced accuracy"), (80, "rarest quarter %"), (100, "")],
)
def test_a_narrow_terminal_gets_fewer_columns_and_whole_numbers(width, left_out):
    file = io.StringIO()
    _Console(file=file, width=width).print(setting_rows().to_rich(width))
    lines = file.getvalue().splitlines()
    assert max(map(len, lines)) <= width
    text = " ".join(file.getvalue().split())
    told = text.partition("a wider terminal also shows ")[2]
    assert told == left_out
    for word in ("class-balanced", "focal,", "softmax,", "0.999", "92.1 ± 1.2", "7.93 ± 1.21"):
        assert word in text
    assert ("+4.3 [+2.0, +6.5]" in text) == ("Δ" not in left_out)
    assert ("80.0" in text) == (not left_out)


def test_a_table_that_fits_is_not_changed():
    wide, unlimited = io.StringIO(), io.StringIO()
    _Console(file=wide, width=160).print(setting_rows().to_rich(160))
    _Console(file=unlimited, width=160).print(setting_rows().to_rich())
    assert wide.getvalue() == unlimited.getvalue()
    assert "rarest quarter %" in wide.getvalue().splitlines()[0]
