"""Nothing that a test does may reach the user's own folders; tiny networks are fastest with one thread."""

import os

import pytest
import torch

os.environ.setdefault("OMP_NUM_THREADS", "1")  # of processes that tests start
torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def own_cache(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("cache")
    monkeypatch.setenv("XDG_CACHE_HOME", str(folder))
    return folder
