"""Locks: one process at a time, also when the file of the lock is deleted, and also without fcntl."""

import subprocess
import sys

import pytest
from filelock import FileLock

from longtail.lab import locks
from longtail.lab.locks import Lock


def test_one_at_a_time_and_free_again_at_the_end(tmp_path):
    path = tmp_path / "a.lock"
    first = Lock(path)
    assert first.acquire()
    assert first.is_held()
    assert not Lock(path).acquire(wait=False)
    first.release()
    assert not first.is_held()
    assert Lock(path).acquire(wait=False)


def test_a_lock_whose_file_is_deleted_or_replaced_knows_it(tmp_path):
    path = tmp_path / "a.lock"
    first, second = Lock(path), Lock(path)
    assert first.acquire(wait=False)
    path.unlink()
    assert not first.is_held()
    path.touch()
    assert not first.is_held()
    assert second.acquire(wait=False)
    first.release()
    assert second.is_held()
    assert not Lock(path).acquire(wait=False)


def test_a_filelock_that_calls_nobody_back_is_no_reason_to_wait_for_ever(tmp_path, monkeypatch):
    """Versions before 3.30 drop the argument without a word."""

    def old(path, **options):
        return FileLock(path, **options | {"on_acquired": None})

    monkeypatch.setattr(locks, "FileLock", old)
    path = tmp_path / "a.lock"
    first = Lock(path)
    assert first.acquire(wait=False)
    assert first.is_held()
    assert not Lock(path).acquire(wait=False)
    first.release()
    assert first.acquire(wait=False)


@pytest.mark.parametrize("replaced", [True, False])
def test_a_lock_on_a_file_that_is_deleted_meanwhile_is_none(tmp_path, monkeypatch, replaced):
    """Between the lock and the look at it: whoever locks the new file would be the second."""
    path, acquire, calls = tmp_path / "a.lock", FileLock.acquire, []

    def late(self, *arguments, **options):
        found = acquire(self, *arguments, **options)
        calls.append(self)
        if len(calls) == 1:
            path.unlink()
            if replaced:
                path.touch()
        return found

    monkeypatch.setattr(FileLock, "acquire", late)
    lock = Lock(path)
    assert lock.acquire(wait=False)
    assert len(calls) == 2
    assert lock.is_held()
    monkeypatch.undo()
    assert not Lock(path).acquire(wait=False)


def test_a_file_that_is_not_to_stay_is_deleted_with_the_lock_and_never_that_of_another(tmp_path):
    path = tmp_path / "a.lock"
    first, second = Lock(path), Lock(path)
    first.acquire()
    path.unlink()
    assert second.acquire(wait=False)
    first.release(delete=True)
    assert second.is_held()
    second.release(delete=True)
    assert not path.exists()


HOLDER = """
import sys, time
from pathlib import Path
from longtail.lab.locks import Lock
lock = Lock(Path(sys.argv[1]))
lock.acquire()
print("held", flush=True)
sys.stdin.read()
"""


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path):
    path = tmp_path / "a.lock"
    command = [sys.executable, "-c", HOLDER, str(path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout.readline() == b"held\n"
        assert not Lock(path).acquire(wait=False)
        holder.kill()
    assert Lock(path).acquire(wait=False)


WINDOWS = """
import importlib, os, pkgutil, signal, sys

import longtail.lab

names = [module.name for module in pkgutil.walk_packages(longtail.lab.__path__, "longtail.lab.")]
names = [name for name in names if not name.endswith("__main__")]
for name in names:
    importlib.import_module(name)  # with all that it needs of other packages, which are their own concern

for name in [name for name in sys.modules if name.split(".")[0] == "longtail"]:
    del sys.modules[name]
for name in ("fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"):
    sys.modules[name] = None
for name in ("fork", "forkpty", "getpgid", "getuid", "killpg", "register_at_fork", "sched_getaffinity", "setsid"):
    delattr(os, name)
for name in ("SIGALRM", "SIGCHLD", "SIGHUP", "SIGKILL", "SIGPIPE", "SIGQUIT", "SIGUSR1", "SIGUSR2", "SIGXFSZ"):
    delattr(signal, name)
for name in names:
    importlib.import_module(name)
print(len(names))
"""


def test_the_lab_can_be_imported_where_there_is_no_posix():
    finished = subprocess.run([sys.executable, "-c", WINDOWS], capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert int(finished.stdout) > 50
