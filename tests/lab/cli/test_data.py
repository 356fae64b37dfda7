"""``longtail data``, as a user types it."""

import dataclasses
import functools
import hashlib
import json
import os
import subprocess
import sys
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from PIL import Image
from rich.console import Console

from longtail.lab.cli import data, main, output
from longtail.lab.data import CATALOG, long_tailed_subset, open_dataset
from tests.lab.data.cifar_files import pack, write_release
from tests.lab.data.test_decode import bomb

LONGTAIL = Path(sys.executable).with_name("longtail")


def run(capsys, *arguments):
    """What a command prints to standard output and error, and its exit code."""
    try:
        main([str(argument) for argument in arguments])
        code = 0
    except SystemExit as exit_:
        code = exit_.code or 0
    return (*capsys.readouterr(), code)


def draw(path):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (8, 8)).save(path)


@pytest.fixture
def photos(tmp_path):
    root = tmp_path / "photos"
    for name, count in (("[bold]owl", 6), ("cat", 30)):
        for place in range(count):
            draw(root / name / f"{place}.png")
    return root


def test_list_tells_what_is_there(capsys, tmp_path):
    write_release(tmp_path, "cifar-100-binary")
    printed, _, code = run(capsys, "data", "list", "--data-dir", tmp_path, "--json")
    found = {row["name"]: row["found"] for row in json.loads(printed)["datasets"]}
    assert code == 0
    assert {name for name, there in found.items() if there} == {"digits", "cifar20", "cifar100"}
    printed, _, _ = run(capsys, "data", "list", "--data-dir", tmp_path)
    assert [line.split()[1] for line in printed.splitlines() if line.startswith("cifar")] == ["-", "found", "found"]


def test_show_prints_counts_groups_and_effective_numbers(capsys):
    printed, noted, code = run(capsys, "data", "show", "digits", "--imbalance", "10")
    assert (code, noted) == (0, "")
    lines = printed.splitlines()
    assert lines[0].startswith("digits at imbalance 10 (exponential, seed 0): 519 training images, 500 test images, 10")
    assert "many (> 100): 1 class, 128 images; medium (20-100): 7 classes" in printed
    first = next(line for line in lines if line.startswith("0 "))
    last = next(line for line in lines if line.startswith("9 "))
    assert first.split()[1] == "128"
    assert first.count("█") == 24
    assert last.split() == ["9", "12", "██", "50", "7.2", "11.4", "11.9", "12.0"]


def test_of_many_classes_the_largest_and_the_rarest_are_shown(capsys, tmp_path):
    sizes = {f"kind {place:02d}": 2 + 37 * place % 101 % 30 for place in range(30)}
    for name, count in sizes.items():
        for place in range(count):
            (tmp_path / name).mkdir(exist_ok=True)
            (tmp_path / name / f"{place}.png").touch()
    printed, _, _ = run(capsys, "data", "show", tmp_path, "--test-fraction", "0.01")
    shown = [int(line.split()[2]) for line in printed.splitlines() if line.startswith("kind ")]
    by_size = sorted((count - 1 for count in sizes.values()), reverse=True)
    assert shown == by_size[:12] + by_size[-12:]
    assert "6 more are left out" in printed
    assert "…" in printed


@pytest.mark.parametrize(
    ("imbalance", "why"),
    [
        ("50", "64, not 50: the smallest class has 2 images, 128 / 50 = 2.56 rounded down"),
        ("100", "128, not 100: the smallest class has 1 image, 128 / 100 = 1.28 rounded down"),
        ("64", "64"),
        ("1", "1.073"),
    ],
)
def test_an_imbalance_that_whole_images_cannot_have_is_explained(capsys, imbalance, why):
    printed, _, _ = run(capsys, "data", "show", "digits", "--imbalance", imbalance)
    assert printed.splitlines()[1] == f"largest class over smallest: {why}"


def test_json_says_the_same_as_the_table_and_more(capsys):
    printed, _, _ = run(capsys, "data", "show", "digits", "--imbalance", "10", "--json")
    summary = json.loads(printed)
    assert [row["train"] for row in summary["per_class"]] == [128, 99, 76, 59, 46, 35, 27, 21, 16, 12]
    assert summary["imbalance"] == pytest.approx(128 / 12)
    assert summary["groups"]["few"] == {"classes": 2, "images": 28}
    assert summary["subset"]["sha256"] == long_tailed_subset(open_dataset("digits").train.labels, 10).sha256
    assert summary["per_class"][9]["effective"]["0.9"] == pytest.approx((1 - 0.9**12) / 0.1)
    printed, _, _ = run(capsys, "data", "show", "digits", "--json")
    assert json.loads(printed)["subset"] is None


def test_a_manifest_is_written_with_the_class_index(capsys, tmp_path):
    manifest = tmp_path / "subset.json"
    run(capsys, "data", "show", "digits", "--imbalance", "20", "--subset-seed", "5", "--manifest", manifest)
    assert json.loads(manifest.read_text())["classes"] == list("0123456789")
    expected = long_tailed_subset(open_dataset("digits").train.labels, 20, 5)
    assert json.loads(manifest.read_text())["sha256"] == expected.sha256


def test_many_classes_are_shown_in_part(capsys, tmp_path):
    write_release(tmp_path, "cifar-100-binary")
    printed, noted, _ = run(capsys, "data", "show", "cifar100", "--data-dir", tmp_path)
    rows = [line for line in printed.splitlines() if line.startswith("fine_")]
    assert (len(rows), rows[0].split()[0], rows[-1].split()[0]) == (24, "fine_0", "fine_99")
    assert "the 12 largest and the 12 rarest classes; 76 more are left out: --json lists all" in printed
    assert "holds 100 images, the official release 50,000" in noted


def test_names_of_classes_are_shown_as_they_are(capsys, photos):
    printed, _, code = run(capsys, "data", "show", photos)
    assert code == 0
    assert "photos: 29 training images, 7 test images, 2 classes" in printed
    assert "\n[bold]owl " in printed


def test_unreadable_images_are_reported_or_stop_the_check(capsys, photos):
    (photos / "cat" / "3.png").write_bytes(b"broken")
    printed, error, code = run(capsys, "data", "check", photos)
    assert (printed, code) == ("", 2)
    assert error.startswith(f"error: {photos}/cat/3.png is not a readable image: ")
    assert error.count("\n") == 1
    printed, _, code = run(capsys, "data", "check", photos, "--on-error", "skip")
    assert code == 0
    assert printed.splitlines()[-1] == "36 images, 1 broken"
    printed, noted, code = run(capsys, "data", "show", photos, "--on-error", "skip")
    assert code == 0
    assert "skipped 1 of " in noted
    assert f"{photos}/cat/3.png is not a readable image" in noted
    (photos / "cat" / "3.png").unlink()
    assert run(capsys, "data", "check", photos)[0] == "35 images, 0 broken\n"


BAD_INPUT = {
    "missing folder": lambda root: (root / "gone", "gone does not exist"),
    "empty class": lambda root: ((root / "empty").mkdir() or root, "empty holds no images"),
    "truncated image": lambda root: ((root / "cat" / "x.png").write_bytes(b"\x89PNG") and root, "cat/x.png is no"),
    "image bomb": lambda root: ((root / "cat" / "x.png").write_bytes(bomb()) and root, "cat/x.png is refused"),
    "symlink loop": lambda root: ((root / "cat" / "up").symlink_to("..") or root, "cat/up is a link that leads back"),
    "label outside the names": lambda root: (
        (root / "classes.txt").write_text("a") and (root / "l.txt").write_text("cat/1.png 3") and root / "l.txt",
        "cat/1.png has label 3",
    ),
    "annotation of a missing image": lambda root: (
        (root / "l.txt").write_text("cat/none.png 0") and root / "l.txt",
        "l.txt names cat/none.png",
    ),
    "path that climbs out": lambda root: (
        (root / "l.txt").write_text("../x.png 0") and root / "l.txt",
        "l.txt, line 1",
    ),
}


@pytest.mark.parametrize("case", BAD_INPUT)
def test_bad_input_is_one_line_and_exit_code_2(capsys, photos, case):
    data, message = BAD_INPUT[case](photos)
    before = sorted(photos.parent.rglob("*"))
    printed, error, code = run(capsys, "data", "check", data)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert error.startswith("error: ")
    assert message in error
    assert sorted(photos.parent.rglob("*")) == before


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["show", "digits", "--imbalance", "0.5"], "imbalance must be a finite number >= 1"),
        (
            ["show", "digits", "--imbalance", "10", "--max-count", "500"],
            "max_count 500 is more than the 128 samples of class 0 (0)",
        ),
        (["show", "digits", "--imbalance", "1000"], "leaves class"),
        (["fetch", "imagenet"], "only available with an account"),
        (["fetch", "digits"], "nothing to fetch"),
        (["fetch", "cifar11"], "did you mean 'cifar10'"),
        (["show", "cifar10", "--data-dir", "nowhere"], "cifar10 is not in nowhere"),
    ],
)
def test_wrong_arguments_are_one_line_and_exit_code_2(capsys, arguments, message):
    printed, error, code = run(capsys, "data", *arguments)
    assert (printed, code, error.count("\n")) == ("", 2, 1)
    assert message in error


def test_debug_shows_the_traceback(capsys):
    with pytest.raises(ValueError, match="unknown data set"):
        main(["data", "show", "nothing", "--debug"])


def test_the_installed_command_helps_a_newcomer():
    def longtail(*arguments, **options):
        return subprocess.run([LONGTAIL, *arguments], capture_output=True, text=True, check=False, **options)

    alone, helped = longtail(), longtail("--help")
    assert alone.stdout == helped.stdout
    assert helped.returncode == 0
    assert "Start here:\n  longtail demo" in helped.stdout
    assert longtail("--version").stdout.startswith("longtail 0.")
    shown = longtail("data", "show", "--help").stdout
    for word in ("--imbalance", "--on-error", "--class-depth", "Example: longtail data show cifar10 --imbalance 100"):
        assert word in shown
    wrong = longtail("data", "show", "digits", "--imbalanse", "10")
    assert wrong.returncode == 2
    assert "--imbalance" in wrong.stderr
    plain = longtail("data", "show", "digits", env=os.environ | {"PYTHONIOENCODING": "ascii:replace"})
    assert plain.returncode == 0
    assert "########" in plain.stdout
    assert "\x1b[" not in plain.stdout


def test_a_reader_that_stops_early_is_no_error():
    command = f"{LONGTAIL} data show digits --json | head -n 1"
    finished = subprocess.run(["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, check=False)
    assert finished.stdout == "{\n"
    assert "Traceback" not in finished.stderr
    assert "Exception" not in finished.stderr


@pytest.mark.parametrize("missing", ["tyro", "filelock"])
def test_where_a_module_is_missing_the_command_says_what_to_do(monkeypatch, capsys, missing):
    loaded = ("longtail.lab.cli.", "longtail.lab.data", "longtail.lab.locks", missing)
    for module in [name for name in sys.modules if name.startswith(loaded)]:
        monkeypatch.delitem(sys.modules, module)
    monkeypatch.setitem(sys.modules, missing, None)
    _, error, code = run(capsys, "data", "list")
    assert code == 2
    assert error == f"error: {missing} is missing: pip install 'longtail[lab]'\n"


def test_fetch_downloads_verifies_and_unpacks_from_a_mirror(capsys, tmp_path, monkeypatch):
    """The whole way of an archive, from a real server on this machine."""
    (tmp_path / "site").mkdir()
    write_release(tmp_path / "made", "cifar-10-batches-bin")
    (archive,) = CATALOG["cifar10"].archives
    pack(tmp_path / "made", "cifar-10-batches-bin", tmp_path / "site" / archive.name)
    handler = functools.partial(SimpleHTTPRequestHandler, directory=str(tmp_path / "site"))
    monkeypatch.setattr(SimpleHTTPRequestHandler, "log_message", lambda *_: None)
    command = ["data", "fetch", "cifar10", "--data-dir", tmp_path / "data"]
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever).start()
        command += ["--mirror", f"http://127.0.0.1:{server.server_port}/"]
        _, error, code = run(capsys, *command)
        assert code == 2
        assert error.splitlines()[-1].startswith("error: http://127.0.0.1:")
        assert f"its md5 should be {archive.md5}, but is" in error
        assert list((tmp_path / "data").iterdir()) == []
        checksum = hashlib.md5((tmp_path / "site" / archive.name).read_bytes()).hexdigest()
        entry = dataclasses.replace(CATALOG["cifar10"], archives=(dataclasses.replace(archive, md5=checksum),))
        monkeypatch.setitem(CATALOG, "cifar10", entry)
        printed, _, code = run(capsys, *command)
        server.shutdown()
    assert (code, printed) == (0, f"cifar10 is in {tmp_path}/data\n")
    assert [path.name for path in (tmp_path / "data").iterdir()] == ["cifar-10-batches-bin"]
    assert run(capsys, "data", "show", "cifar10", "--data-dir", tmp_path / "data")[2] == 0


def test_all_unreadable_images_are_named(capsys, photos):
    for place in (3, 5):
        (photos / "cat" / f"{place}.png").write_bytes(b"broken")
    (photos / "cat" / "link.png").symlink_to("nowhere.png")
    _, error, code = run(capsys, "data", "check", photos)
    assert code == 2
    assert [line.split()[1] for line in error.splitlines()] == [
        f"{photos}/cat/{name}.png" for name in ("3", "5", "link")
    ]


def test_a_narrow_terminal_keeps_the_counts(capsys, monkeypatch):
    monkeypatch.setattr(output, "console", lambda: Console(width=60))
    monkeypatch.setattr(data, "console", lambda: Console(width=60))
    printed, _, _ = run(capsys, "data", "show", "digits")
    row = next(line for line in printed.splitlines() if line.startswith("0 "))
    assert row.split()[1] == "128"
    assert row.split()[3] == "50"
    assert len(row) <= 60


def test_ascii_and_closed_outputs_are_no_reason_to_fail():
    def longtail(arguments, **options):
        return subprocess.run(
            f"{LONGTAIL} {arguments}", shell=True, capture_output=True, text=True, check=False, **options
        )

    ascii_only = longtail("data show digits", env=os.environ | {"PYTHONIOENCODING": "ascii"})
    assert (ascii_only.returncode, ascii_only.stderr) == (0, "")
    full = longtail("--version > /dev/full")
    assert full.returncode == 2
    assert full.stderr.count("\n") == 1


def test_a_manifest_of_image_folder_names_them(capsys, photos, tmp_path):
    run(capsys, "data", "show", photos, "--manifest", tmp_path / "m.json")
    manifest = json.loads((tmp_path / "m.json").read_text())
    assert len(manifest["paths"]) == len(manifest["indices"]) == 29
    assert all((photos / path).is_file() for path in manifest["paths"])


def test_groups_are_counted(capsys, tmp_path):
    for name, animals in (("owl", 4), ("cat", 5)):
        for animal in range(animals):
            for photo in range(3 + (name == "owl" and animal == 2)):
                draw(tmp_path / name / f"{name}{animal}_{photo}.png")
    words = (tmp_path, "--group-pattern", "[a-z]+[0-9]_")
    printed, error, code = run(capsys, "data", "show", *words, "--json")
    assert code == 0, error
    groups = json.loads(printed)["image_groups"]
    assert groups["train"]["groups"] + groups["test"]["groups"] == 9
    assert {"groups": 7, "largest": "owl2_", "largest_images": 4} in groups.values()
    printed, _, _ = run(capsys, "data", "show", *words)
    assert "train images: 7 groups, the largest (owl2_) of 4 images\ntest images: 2 groups" in printed
    printed, _, code = run(capsys, "data", "check", *words)
    assert (code, printed) == (0, "28 images of 9 groups, 0 broken\n")
