"""The journal of a search, whose processes die."""

import json
import multiprocessing
import os
import signal

import pytest

from longtail.lab.config import ConfigError
from longtail.lab.experiments.journal import Journal
from longtail.lab.experiments.search import SearchOptions

SEARCH = SearchOptions(losses=("softmax",), betas=(0.9,))


def die_with_the_lock(folder):
    with Journal(folder, SEARCH) as journal:
        journal.next()
        journal.study._storage._backend._lock.acquire()
        os.kill(os.getpid(), signal.SIGKILL)


def claim_all(folder, names):
    with Journal(folder, SearchOptions()) as journal:
        while trial := journal.next():
            names.put(journal.loss(trial).label)


def drained(journal):
    """The labels of all trials that are left."""
    labels = []
    while trial := journal.next():
        labels.append(journal.loss(trial).label)
    return sorted(labels)


def test_several_processes_never_take_each_others_trials(tmp_path):
    context = multiprocessing.get_context("spawn")
    names = context.Queue()
    processes = [context.Process(target=claim_all, args=(tmp_path, names)) for _ in range(2)]
    for process in processes:
        process.start()
    claimed = [names.get(timeout=300) for _ in range(25)]
    for process in processes:
        process.join(300)
        assert process.exitcode == 0
    assert len(set(claimed)) >= 24


def test_a_process_that_dies_with_the_lock_stops_nobody_and_its_trial_is_begun_anew(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)  # with a relative folder, as the command has it
    folder = tmp_path.relative_to(tmp_path)
    process = multiprocessing.get_context("spawn").Process(target=die_with_the_lock, args=(folder,))
    process.start()
    process.join(300)
    assert process.exitcode == -signal.SIGKILL
    with Journal(folder, SEARCH) as journal:
        assert drained(journal) == ["softmax", "softmax_0.9"]


def test_a_line_that_was_not_finished_stops_nobody(tmp_path):
    file = tmp_path / "journal.log"
    for _ in range(2):
        with Journal(tmp_path, SEARCH) as journal:
            assert drained(journal) == ["softmax", "softmax_0.9"]
        file.write_bytes(file.read_bytes()[:-20])
    with Journal(tmp_path, SEARCH) as journal:
        assert drained(journal) == ["softmax", "softmax_0.9"]
    assert all(json.loads(line) for line in file.read_text().splitlines())


def test_a_journal_that_cannot_be_read_is_one_clear_line(tmp_path):
    with Journal(tmp_path, SEARCH) as journal:
        journal.next()
    file = tmp_path / "journal.log"
    file.write_bytes(b"{garbage\n" + file.read_bytes())
    journal = Journal(tmp_path, SEARCH)
    with pytest.raises(ConfigError, match=r"journal.log is damaged: .*: without it, .* begins anew"):
        journal.__enter__()
    assert not list(tmp_path.glob("process-*.lock"))  # nobody takes it for one that is at the search
