"""Files are whole or not there, also when the writer is killed."""

import os
import signal
import subprocess
import sys
import time

import pytest

from longtail.lab.files import write_atomically


def test_a_file_is_replaced_as_a_whole(tmp_path):
    write_atomically(tmp_path / "new" / "a.txt", "first")
    write_atomically(tmp_path / "new" / "a.txt", b"second")
    assert (tmp_path / "new" / "a.txt").read_text() == "second"
    assert os.listdir(tmp_path / "new") == ["a.txt"]


def test_the_file_has_the_rights_that_any_new_file_has(tmp_path):
    write_atomically(tmp_path / "a", "x")
    (tmp_path / "b").write_text("x")
    assert (tmp_path / "a").stat().st_mode == (tmp_path / "b").stat().st_mode


def test_a_failed_write_leaves_the_old_file_and_nothing_else(tmp_path):
    write_atomically(tmp_path / "a", "old")
    with pytest.raises(UnicodeEncodeError):
        write_atomically(tmp_path / "a", "\udcff")
    (tmp_path / "folder").mkdir()
    with pytest.raises(OSError, match="folder"):
        write_atomically(tmp_path / "folder", "x")
    assert sorted(os.listdir(tmp_path)) == ["a", "folder"]
    assert (tmp_path / "a").read_text() == "old"


def test_a_killed_writer_leaves_one_of_the_whole_files(tmp_path):
    program = """
import sys
from pathlib import Path
from longtail.lab.files import write_atomically
for number in range(10**9):
    write_atomically(Path(sys.argv[1]), str(number % 10) * 2_000_000)
    if not number:
        print("ready", flush=True)
"""
    for pause in (0.05, 0.11, 0.2):
        writer = subprocess.Popen([sys.executable, "-c", program, str(tmp_path / "a")], stdout=subprocess.PIPE)
        writer.stdout.readline()
        time.sleep(pause)
        writer.send_signal(signal.SIGKILL)
        writer.communicate()
        content = (tmp_path / "a").read_bytes()
        assert len(content) == 2_000_000
        assert len(set(content)) == 1


def test_a_link_stays_and_what_it_leads_to_is_replaced(tmp_path):
    (tmp_path / "real").write_text("old")
    (tmp_path / "link").symlink_to("real")
    write_atomically(tmp_path / "link", "new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_text() == "new"


def test_what_is_no_file_is_not_replaced(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", tmp_path):
        with pytest.raises(OSError, match="Not a file that can be replaced"):
            write_atomically(path, "x")
    assert os.listdir(tmp_path) == ["pipe"]
