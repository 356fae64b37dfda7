"""Downloads from web servers on this machine, each with its own way to fail, and archives that mean harm."""

import hashlib
import importlib
import io
import os
import random
import re
import signal
import socket
import stat
import subprocess
import sys
import tarfile
import threading
import time
import zipfile
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace

import pytest
from rich.console import Console

from longtail.lab.data.errors import DataError
from longtail.lab.data.fetch import Archive, fetch, unpack

FETCH = importlib.import_module("longtail.lab.data.fetch")
OWL = random.Random(0).randbytes(300_000)
# Without the __init__ files, which import torch: a process then starts in a tenth of the time.
CHILD = """
import signal, sys, types
from pathlib import Path
signal.signal(signal.SIGINT, signal.default_int_handler)  # also where the tests run in the background
url, md5, folder, source = sys.argv[1:]
for name in ("longtail", "longtail.lab", "longtail.lab.data"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(Path(source, *name.split(".")))]
from rich.console import Console
from longtail.lab.data.fetch import Archive, fetch
fetch(Archive(url=url, md5=md5, holds=("owls",)), Path(folder), console=Console(stderr=True))
"""


def tar_of(*members):
    """A .tar.gz of (name, content) pairs and of TarInfo objects."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for member in members:
            if isinstance(member, tarfile.TarInfo):
                archive.addfile(member)
            else:
                info = tarfile.TarInfo(member[0])
                info.size = len(member[1])
                archive.addfile(info, io.BytesIO(member[1]))
    return packed.getvalue()


def zip_of(*members):
    """A .zip of (name or ZipInfo, content) pairs."""
    packed = io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in members:
            archive.writestr(name, content)
    return packed.getvalue()


OWLS = tar_of(("owls/1.bin", OWL), ("owls/names.txt", b"snowy\n"))


def archive_of(content, url="http://127.0.0.1:9/a/owls.tar.gz", holds=("owls",)):
    return Archive(url=url, md5=hashlib.md5(content).hexdigest(), holds=holds)


def assert_owls(folder):
    assert (folder / "owls" / "1.bin").read_bytes() == OWL
    assert (folder / "owls" / "names.txt").read_text() == "snowy\n"


def listing(folder):
    return sorted(os.listdir(folder))


class Request(BaseHTTPRequestHandler):
    def do_GET(self):
        self.server.requests.append(self.headers["Range"])
        answers = self.server.answers
        answer = answers.pop(0) if len(answers) > 1 else answers[0]
        answer(self)

    def start(self):
        return int(re.fullmatch(r"bytes=(\d+)-|", self.headers["Range"] or "")[1] or 0)

    def head(self, status, **headers):
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), str(value))
        self.end_headers()

    def send(self, content):
        self.wfile.write(content)
        self.server.sent += len(content)

    def log_message(self, *args):
        pass


class Site(ThreadingHTTPServer):
    """A web server that answers each request with the next of ``answers``, and then always with the last."""

    daemon_threads = True
    block_on_close = False

    def __init__(self, content, *answers):
        super().__init__(("127.0.0.1", 0), Request)
        self.content, self.answers, self.requests, self.sent = content, list(answers), [], 0
        self.released = threading.Event()
        self.url = f"http://127.0.0.1:{self.server_port}/a/owls.tar.gz"

    def handle_error(self, request, client_address):
        pass


@pytest.fixture
def site():
    sites = []

    def start(*answers, content=OWLS):
        sites.append(Site(content, *answers))
        threading.Thread(target=sites[-1].serve_forever, args=(0.01,), daemon=True).start()
        return sites[-1]

    yield start
    for one in sites:
        one.released.set()
        one.shutdown()
        one.server_close()


@pytest.fixture(autouse=True)
def _neither_proxies_nor_long_pauses(monkeypatch):
    monkeypatch.setenv("no_proxy", "*")
    monkeypatch.setattr(FETCH, "PAUSE", 0.001)


def serving(limit=None, ranges=True, then=lambda request: None):
    """The content from where it is asked for, at most ``limit`` bytes of it; ``then`` before the connection closes."""

    def answer(request):
        content = request.server.content
        start = request.start() if ranges else 0
        if start >= len(content):
            return request.head(416, Content_Range=f"bytes */{len(content)}")
        where = {"Content_Range": f"bytes {start}-{len(content) - 1}/{len(content)}"} if start else {}
        request.head(206 if start else 200, Content_Length=len(content) - start, **where)
        request.send(content[start:][:limit])
        return then(request)

    return answer


def failing(status):
    return lambda request: request.send_error(status)


def hold(request):
    request.wfile.flush()
    request.server.released.wait(300)


def wait_until(condition):
    deadline = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < deadline, "waited in vain"
        time.sleep(0.005)


def part_of(folder):
    return folder / "owls.tar.gz.part"


def test_a_data_set_is_downloaded_and_unpacked_into_a_new_folder_and_nothing_else_stays(site, tmp_path):
    server = site(serving())
    fetch(archive_of(OWLS, server.url), tmp_path / "new" / "data")
    assert_owls(tmp_path / "new" / "data")
    assert listing(tmp_path / "new" / "data") == ["owls"]
    assert server.requests == [None]


def test_a_zip_is_unpacked_too_and_only_what_it_is_said_to_hold(site, tmp_path):
    content = zip_of(("owls/1.bin", OWL), ("owls/names.txt", b"snowy\n"), ("list.txt", b"1"), ("other/2.bin", b"2"))
    server = site(serving(), content=content)
    fetch(archive_of(content, server.url.replace("tar.gz", "zip"), ("owls", "list.txt")), tmp_path)
    assert_owls(tmp_path)
    assert listing(tmp_path) == ["list.txt", "owls"]


def test_of_a_tar_only_what_it_is_said_to_hold_is_unpacked(tmp_path):
    content = tar_of(("./owls/1.bin", b"1"), ("other/" + "a" * 300, b"too long to unpack"), ("owls.txt", b"3"))
    (tmp_path / "owls.tar.gz").write_bytes(content)
    unpack(archive_of(content), tmp_path)
    assert listing(tmp_path) == ["owls", "owls.tar.gz"]
    assert listing(tmp_path / "owls") == ["1.bin"]


def test_what_is_unpacked_already_is_neither_downloaded_nor_touched(site, tmp_path):
    server = site(serving())
    (tmp_path / "owls").mkdir()
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert server.requests == []
    assert listing(tmp_path) == ["owls"]
    assert listing(tmp_path / "owls") == []


def test_of_several_folders_only_the_missing_one_is_added(tmp_path):
    content = tar_of(("owls/1.bin", b"new"), ("cats/1.bin", b"new"))
    (tmp_path / "owls.tar.gz").write_bytes(content)
    (tmp_path / "owls").mkdir()
    unpack(archive_of(content, holds=("owls", "cats")), tmp_path)
    assert listing(tmp_path / "owls") == []
    assert listing(tmp_path / "cats") == ["1.bin"]


def test_an_archive_that_was_there_is_unpacked_without_a_download_and_kept(site, tmp_path):
    server = site(serving())
    (tmp_path / "owls.tar.gz").write_bytes(OWLS)
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == []
    assert listing(tmp_path) == ["owls", "owls.tar.gz"]


@pytest.mark.parametrize("call", [fetch, unpack])
def test_an_archive_that_was_there_with_another_checksum_is_refused_and_kept(tmp_path, call):
    (tmp_path / "owls.tar.gz").write_bytes(b"mine")
    with pytest.raises(DataError) as error:
        call(archive_of(OWLS), tmp_path)
    for part in (str(tmp_path / "owls.tar.gz"), hashlib.md5(OWLS).hexdigest(), hashlib.md5(b"mine").hexdigest()):
        assert part in str(error.value)
    assert (tmp_path / "owls.tar.gz").read_bytes() == b"mine"
    assert listing(tmp_path) == ["owls.tar.gz"]


def test_to_unpack_an_archive_that_is_not_there_names_it(tmp_path):
    with pytest.raises(DataError, match=re.escape(f"{tmp_path / 'owls.tar.gz'}: No such file")):
        unpack(archive_of(OWLS), tmp_path)
    assert listing(tmp_path) == []


def test_another_address_serves_the_same_archive(site, tmp_path):
    server = site(serving())
    fetch(archive_of(OWLS), tmp_path, url=server.url.replace("owls.tar.gz", "mirror?file=7"))
    assert_owls(tmp_path)
    assert server.requests == [None]


def test_a_connection_that_breaks_off_again_and_again_is_taken_up_where_it_broke(site, tmp_path, monkeypatch):
    monkeypatch.setattr(FETCH, "ATTEMPTS", 1)
    server = site(serving(limit=70_000))
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [None, *(f"bytes={start}-" for start in range(70_000, len(OWLS), 70_000))]
    assert server.sent == len(OWLS)


def test_a_server_that_sends_pieces_is_asked_for_the_next_one(site, tmp_path):
    def piece(request):
        start = request.start()
        content = OWLS[start : start + 100_000]
        request.head(
            206,
            Content_Range=f"bytes {start}-{start + len(content) - 1}/{len(OWLS)}",
            Content_Length=len(content),
        )
        request.send(content)

    server = site(piece)
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [None, "bytes=100000-", "bytes=200000-", "bytes=300000-"]


def test_a_server_that_stalls_is_asked_anew_for_the_rest(site, tmp_path, monkeypatch):
    monkeypatch.setattr(FETCH, "TIMEOUT", 3)
    server = site(serving(limit=100_000, then=hold), serving())
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    # On a slow machine the first chunk can be late, too: then all of it is asked for again.
    assert server.requests in ([None, "bytes=100000-"], [None, None])


def test_a_server_that_never_answers_is_given_up(site, tmp_path, monkeypatch):
    monkeypatch.setattr(FETCH, "TIMEOUT", 0.2)
    monkeypatch.setattr(FETCH, "ATTEMPTS", 2)
    server = site(hold)
    with pytest.raises(DataError, match=r"2 attempts without progress: timed out$"):
        fetch(archive_of(OWLS, server.url), tmp_path)
    wait_until(lambda: server.requests == [None, None])
    assert listing(tmp_path) == []


def test_a_server_that_hangs_up_without_an_answer_is_asked_anew(site, tmp_path):
    server = site(lambda request: None, serving())
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [None, None]


def test_attempts_without_progress_end_the_download_after_longer_and_longer_pauses(site, tmp_path, monkeypatch):
    monkeypatch.setattr(FETCH, "ATTEMPTS", 3)
    pauses = []
    monkeypatch.setattr(FETCH, "PAUSE", 1.0)
    monkeypatch.setattr(FETCH, "time", SimpleNamespace(sleep=pauses.append))
    server = site(serving(limit=100_000), serving(limit=0))
    with pytest.raises(DataError, match=r"3 attempts without progress: the connection was lost; .* 100000 bytes in "):
        fetch(archive_of(OWLS, server.url), tmp_path)
    assert pauses == [0, 0, 1, 2]
    assert server.requests == [None, *["bytes=100000-"] * 3]
    assert part_of(tmp_path).read_bytes() == OWLS[:100_000]


def test_a_server_that_ignores_ranges_is_read_from_the_start(site, tmp_path):
    server = site(serving(limit=100_000), serving(ranges=False))
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [None, "bytes=100000-"]


def test_a_server_that_ignores_ranges_and_always_breaks_off_is_given_up(site, tmp_path, monkeypatch):
    monkeypatch.setattr(FETCH, "ATTEMPTS", 3)
    server = site(serving(limit=100_000, ranges=False))
    with pytest.raises(DataError, match="3 attempts without progress"):
        fetch(archive_of(OWLS, server.url), tmp_path)
    assert len(server.requests) == 4
    assert part_of(tmp_path).read_bytes() == OWLS[:100_000]


def test_an_answer_in_chunks_of_unknown_length_is_read_to_its_end(site, tmp_path):
    def chunked(request, end=b"0\r\n\r\n"):
        request.protocol_version = "HTTP/1.1"
        request.head(200, Transfer_Encoding="chunked")
        half = len(OWLS) // 2
        request.wfile.write(b"%x\r\n%b\r\n" % (half, OWLS[:half]))
        request.wfile.write(b"%x\r\n%b\r\n" % (len(OWLS) - half, OWLS[half:]) + end if end else b"")

    server = site(lambda request: chunked(request, b""), chunked)
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [None, f"bytes={len(OWLS) // 2}-"]


@pytest.mark.parametrize("content_range", ["bytes 7-{last}/{size}", "bytes 0-{last}/{size}", "nonsense", None])
def test_a_rest_that_starts_elsewhere_is_not_appended(site, tmp_path, content_range):
    def elsewhere(request):
        where = content_range and content_range.format(last=len(OWLS) - 1, size=len(OWLS))
        request.head(206, Content_Length=len(OWLS) - 7, **({"Content_Range": where} if where else {}))
        request.send(OWLS[7:])

    part_of(tmp_path).write_bytes(OWLS[:100])
    server = site(elsewhere, serving())
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == ["bytes=100-", None]


def test_a_part_that_is_the_whole_archive_is_recognised(site, tmp_path):
    part_of(tmp_path).write_bytes(OWLS)
    server = site(serving())
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [f"bytes={len(OWLS)}-"]
    assert server.sent == 0


def test_a_part_that_is_too_long_is_dropped(site, tmp_path):
    part_of(tmp_path).write_bytes(OWLS + b"?")
    server = site(serving())
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [f"bytes={len(OWLS) + 1}-", None]


def test_a_server_that_never_has_what_follows_is_given_up(site, tmp_path, monkeypatch):
    monkeypatch.setattr(FETCH, "ATTEMPTS", 3)

    def either(request):
        (failing(416) if request.start() else serving(limit=100_000))(request)

    server = site(either)
    with pytest.raises(DataError, match="attempts without progress"):
        fetch(archive_of(OWLS, server.url), tmp_path)
    assert server.requests == [None, "bytes=100000-", None, "bytes=100000-"]


@pytest.mark.parametrize("wrong", [OWLS[:-1] + b"?", OWLS[:-1], OWLS + b"?", b""])
def test_wrong_bytes_are_removed_and_both_checksums_are_named(site, tmp_path, wrong):
    server = site(serving(), content=wrong) if wrong else site(lambda request: request.head(200, Content_Length=0))
    with pytest.raises(DataError) as error:
        fetch(archive_of(OWLS, server.url), tmp_path)
    for part in (server.url, hashlib.md5(OWLS).hexdigest(), hashlib.md5(wrong).hexdigest()):
        assert part in str(error.value)
    assert listing(tmp_path) == []


@pytest.mark.parametrize(("status", "reason"), [(404, "404: Not Found"), (500, "500: Internal"), (416, "416: Req")])
def test_a_refusal_is_one_line_with_address_and_reason(site, tmp_path, status, reason):
    server = site(failing(status))
    with pytest.raises(DataError, match=re.escape(reason)) as error:
        fetch(archive_of(OWLS, server.url), tmp_path)
    assert str(error.value).startswith(f"{server.url}: ")
    assert "\n" not in str(error.value)
    assert server.requests == [None]
    assert listing(tmp_path) == []


def test_a_refusal_in_the_middle_says_where_the_next_call_goes_on(site, tmp_path):
    server = site(serving(limit=100_000), failing(503), serving())
    archive = archive_of(OWLS, server.url)
    with pytest.raises(DataError, match=re.escape(f"resumes from the 100000 bytes in {part_of(tmp_path)}")):
        fetch(archive, tmp_path)
    fetch(archive, tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [None, "bytes=100000-", "bytes=100000-"]


def test_a_server_that_cannot_be_reached_is_named(tmp_path):
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{unused.getsockname()[1]}/owls.tar.gz"
        with pytest.raises(DataError, match=f"^{re.escape(url)}: Connection refused$"):
            fetch(archive_of(OWLS, url), tmp_path)
    assert listing(tmp_path) == []


def test_a_name_that_does_not_exist_is_named(tmp_path, monkeypatch):
    def unknown(*args, **kwargs):
        raise socket.gaierror(-2, "Name or service not known")

    monkeypatch.setattr(socket, "getaddrinfo", unknown)
    with pytest.raises(DataError, match=r"^http://no\.invalid/owls\.tar\.gz: Name or service not known$"):
        fetch(archive_of(OWLS, "http://no.invalid/owls.tar.gz"), tmp_path)


@pytest.mark.parametrize(
    "url", ["file://{}", "{}", "ftp://127.0.0.1/o", "data:,owls", "http://", "http://a b/", "http://[", "http://h:p/"]
)
def test_only_addresses_of_the_web_are_opened(tmp_path, url):
    (tmp_path / "local").write_bytes(OWLS)
    with pytest.raises(DataError) as error:
        fetch(archive_of(OWLS), tmp_path, url=url.format(tmp_path / "local"))
    assert str(error.value).startswith(f"{url.format(tmp_path / 'local')}: ")
    assert url.startswith("http") or "unknown url type" in str(error.value)
    assert listing(tmp_path) == ["local"]


def redirecting(place):
    return lambda request: request.head(302, Location=place.format(request.server.url))


def test_redirections_are_followed_and_the_rest_is_asked_for_at_the_end_of_them(site, tmp_path):
    server = site(redirecting("{}/moved"), serving(limit=100_000), redirecting("{}/moved"), serving())
    fetch(archive_of(OWLS, server.url), tmp_path)
    assert_owls(tmp_path)
    assert server.requests == [None, None, "bytes=100000-", "bytes=100000-"]


@pytest.mark.parametrize("place", ["file:///etc/hostname", "ftp://127.0.0.1/owls", "{}"])
def test_redirections_out_of_the_web_or_in_circles_are_refused_in_one_line(site, tmp_path, place):
    server = site(redirecting(place))
    with pytest.raises(DataError) as error:
        fetch(archive_of(OWLS, server.url), tmp_path)
    assert str(error.value).startswith(f"{server.url}: ")
    assert "\n" not in str(error.value)
    assert listing(tmp_path) == []


def test_while_it_is_downloaded_nothing_is_at_the_place_of_the_archive(site, tmp_path):
    seen = []

    def slowly(request):
        request.head(200, Content_Length=len(OWLS))
        for start in range(0, len(OWLS), 50_000):
            seen.append(listing(tmp_path))
            request.send(OWLS[start : start + 50_000])
            if start:
                wait_until(lambda: part_of(tmp_path).stat().st_size)

    fetch(archive_of(OWLS, site(slowly).url), tmp_path)
    assert len(seen) == 7
    assert {tuple(names) for names in seen} == {("owls.tar.gz.lock", "owls.tar.gz.part")}
    assert listing(tmp_path) == ["owls"]


def start_child(server, folder):
    md5 = hashlib.md5(OWLS).hexdigest()
    with (folder.parent / f"{time.monotonic_ns()}.log").open("wb") as log:
        arguments = [server.url, md5, str(folder), str(Path(FETCH.__file__).parents[3])]
        child = subprocess.Popen([sys.executable, "-c", CHILD, *arguments], stderr=log)
    return child, Path(log.name)


@pytest.mark.parametrize("end", [signal.SIGKILL, signal.SIGINT])
def test_after_the_end_of_a_process_only_the_missing_bytes_are_asked_for(site, tmp_path, end):
    folder = tmp_path / "data"
    server = site(serving(limit=200_000, then=hold), serving())
    child, _ = start_child(server, folder)
    wait_until(lambda: part_of(folder).exists() and part_of(folder).stat().st_size > 150_000)
    child.send_signal(end)
    assert child.wait(300) != 0
    reached = part_of(folder).stat().st_size
    assert "owls.tar.gz" not in listing(folder)
    fetch(archive_of(OWLS, server.url), folder)
    assert_owls(folder)
    assert listing(folder) == ["owls"]
    assert server.requests == [None, f"bytes={reached}-"]
    assert server.sent == 200_000 + len(OWLS) - reached


def test_of_two_processes_one_downloads_and_the_other_waits_for_it(site, tmp_path):
    folder = tmp_path / "data"
    server = site(serving(limit=100_000, then=hold), serving())
    children = [start_child(server, folder) for _ in range(2)]
    wait_until(lambda: any("waiting for another process" in log.read_text() for _, log in children))
    wait_until(lambda: server.requests)
    server.released.set()
    assert [child.wait(300) for child, _ in children] == [0, 0]
    assert_owls(folder)
    assert listing(folder) == ["owls"]
    assert server.requests == [None, "bytes=100000-"]


def test_many_threads_fetch_one_after_the_other(site, tmp_path):
    server = site(serving(limit=100_000))
    errors = []

    def run():
        try:
            fetch(archive_of(OWLS, server.url), tmp_path)
        except Exception as error:
            errors.append(error)

    threads = [threading.Thread(target=run) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert_owls(tmp_path)
    assert listing(tmp_path) == ["owls"]
    assert server.sent == len(OWLS)


def test_what_a_killed_process_left_of_its_unpacking_is_cleared_away(tmp_path):
    (tmp_path / "owls.tar.gz").write_bytes(OWLS)
    (tmp_path / "owls.tar.gz.lock").touch()
    (tmp_path / "owls.tar.gz.unpacking" / "owls" / "1.bin").mkdir(parents=True)
    unpack(archive_of(OWLS), tmp_path)
    assert_owls(tmp_path)
    assert listing(tmp_path) == ["owls", "owls.tar.gz"]


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(DataError, match=re.escape(str(tmp_path / "file"))):
        fetch(archive_of(OWLS), tmp_path / "file" / "data")


@pytest.mark.skipif(not Path("/sys/kernel").exists(), reason="needs a folder that not even root may write to")
def test_a_folder_that_may_not_be_written_to_is_named():
    with pytest.raises(DataError, match=r"^/sys/kernel.*: (Permission denied|Operation not permitted|Read-only .*)$"):
        fetch(archive_of(OWLS), Path("/sys/kernel"))


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="needs a disk that is always full")
def test_a_full_disk_is_named(site, tmp_path):
    part_of(tmp_path).symlink_to("/dev/full")
    with pytest.raises(DataError, match=f"^{re.escape(str(tmp_path))}.*: No space left on device$"):
        fetch(archive_of(OWLS, site(serving()).url), tmp_path)
    assert listing(tmp_path) == ["owls.tar.gz.part"]


def tar_member(name, kind=tarfile.REGTYPE, link="owls/1.bin"):
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def zip_member(name, mode=0):
    info = zipfile.ZipInfo(name)
    info.external_attr = mode << 16
    return info


HOSTILE_TARS = {
    "above": tar_member("../evil"),
    "above from within": tar_member("owls/../../evil"),
    "inside by a detour": tar_member("owls/../evil"),
    "absolute": tar_member("/tmp/longtail-evil"),
    "symbolic link": tar_member("owls/evil", tarfile.SYMTYPE, "1.bin"),
    "symbolic link in place of the folder": tar_member("owls", tarfile.SYMTYPE, "/etc"),
    "hard link": tar_member("owls/evil", tarfile.LNKTYPE),
    "device": tar_member("owls/evil", tarfile.CHRTYPE),
    "pipe": tar_member("owls/evil", tarfile.FIFOTYPE),
    "line break": tar_member("owls/evil\n", tarfile.FIFOTYPE),
}
HOSTILE_ZIPS = {
    "above": zip_member("../evil"),
    "above from within": zip_member("owls/../../evil"),
    "absolute": zip_member("/tmp/longtail-evil"),
    "symbolic link": zip_member("owls/evil", stat.S_IFLNK | 0o777),
    "device": zip_member("owls/evil", stat.S_IFCHR | 0o777),
}


def assert_refused(content, name, folder, why):
    path = folder / name
    path.write_bytes(content)
    with pytest.raises(DataError, match=why) as error:
        unpack(archive_of(content, f"http://127.0.0.1:9/{name}"), folder)
    assert str(error.value).startswith(str(folder))
    assert "\n" not in str(error.value)
    assert listing(folder) == [name]
    assert listing(folder.parent) == [folder.name]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "data").mkdir()
    return tmp_path / "data"


@pytest.mark.parametrize("member", HOSTILE_TARS.values(), ids=HOSTILE_TARS)
def test_a_tar_that_means_harm_is_refused_and_leaves_nothing(folder, member):
    content = tar_of(("owls/1.bin", b"1"), member)
    assert_refused(content, "owls.tar.gz", folder, re.escape(f"owls.tar.gz cannot be unpacked: {member.name!r} in it"))
    assert not Path("/tmp/longtail-evil").exists()


@pytest.mark.parametrize("member", HOSTILE_ZIPS.values(), ids=HOSTILE_ZIPS)
def test_a_zip_that_means_harm_is_refused_and_leaves_nothing(folder, member):
    content = zip_of(("owls/1.bin", b"1"), (member, b"evil"))
    assert_refused(content, "owls.zip", folder, re.escape(f"owls.zip cannot be unpacked: {member.filename!r} in it"))
    assert not Path("/tmp/longtail-evil").exists()


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_a_name_that_is_too_long_for_the_disk_is_refused(folder, pack):
    name = "owls.zip" if pack is zip_of else "owls.tar.gz"
    assert_refused(pack(("owls/1.bin", b"1"), ("owls/" + "a" * 300, b"")), name, folder, "File name too long")


def test_a_member_gives_no_rights_away(folder):
    member = tar_member("owls/run")
    member.mode, member.uid = 0o6777, 12345
    content = tar_of(("owls/1.bin", b"1"), member)
    (folder / "owls.tar.gz").write_bytes(content)
    unpack(archive_of(content), folder)
    run, plain = ((folder / "owls" / name).stat() for name in ("run", "1.bin"))
    os.umask(mask := os.umask(0))
    assert run.st_mode == plain.st_mode == stat.S_IFREG | (0o666 & ~mask)
    assert run.st_uid == os.getuid()


def test_folders_of_an_archive_are_made_whatever_their_rights_are(folder):
    inner = tar_member("owls/snowy", tarfile.DIRTYPE)
    inner.mode = 0
    content = tar_of(inner, tar_member("owls/empty", tarfile.DIRTYPE), ("owls/snowy/1.bin", b"1"))
    (folder / "owls.tar.gz").write_bytes(content)
    unpack(archive_of(content), folder)
    assert (folder / "owls" / "snowy" / "1.bin").read_bytes() == b"1"
    assert os.access(folder / "owls" / "empty", os.R_OK | os.W_OK | os.X_OK)


OLD_PYTHON = "/usr/bin/python3.11"
OLD = """
import hashlib, sys, types
from pathlib import Path
source, folder = map(Path, sys.argv[1:])
for name in ("longtail", "longtail.lab", "longtail.lab.data"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [str(source.joinpath(*name.split(".")))]
from longtail.lab.data.fetch import Archive, unpack
for path in folder.glob("*/data/owls.tar.gz"):
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    try:
        unpack(Archive(url="http://127.0.0.1:9/owls.tar.gz", md5=md5, holds=("owls",)), path.parent)
    except ValueError as error:
        path.with_name("error").write_text(str(error))
"""


def is_old(python):
    """Whether there is such a Python, without the filters that came to tarfile with 3.11.4."""
    code = "import sys, tarfile; sys.exit(hasattr(tarfile, 'data_filter') or sys.version_info < (3, 11))"
    return Path(python).exists() and subprocess.run([python, "-c", code]).returncode == 0


@pytest.mark.skipif(not is_old(OLD_PYTHON), reason=f"{OLD_PYTHON} is not there, or 3.11.4 or newer")
def test_the_first_pythons_3_11_unpack_and_refuse_the_same(tmp_path):
    for harm, members in {"none": [], **{harm: [member] for harm, member in HOSTILE_TARS.items()}}.items():
        (tmp_path / harm / "data").mkdir(parents=True)
        (tmp_path / harm / "data" / "owls.tar.gz").write_bytes(tar_of(("owls/1.bin", b"1"), *members))
    environment = {**os.environ, "PYTHONPATH": str(Path(sys.modules["rich"].__file__).parents[1])}
    source = Path(FETCH.__file__).parents[3]
    subprocess.run([OLD_PYTHON, "-c", OLD, str(source), str(tmp_path)], env=environment, check=True)
    assert (tmp_path / "none" / "data" / "owls" / "1.bin").read_bytes() == b"1"
    for harm, member in HOSTILE_TARS.items():
        assert f"{member.name!r} in it is not a file or folder" in (tmp_path / harm / "data" / "error").read_text()
        assert listing(tmp_path / harm) == ["data"]
        assert listing(tmp_path / harm / "data") == ["error", "owls.tar.gz"]


def encrypted(content):
    """Only said to be: a bit in the head of the member, and in that of the list of members."""
    content = bytearray(content)
    content[content.index(b"PK\3\4") + 6] |= 1
    content[content.index(b"PK\1\2") + 8] |= 1
    return bytes(content)


GREY_OWL = tar_of(("owls/1.bin", bytes(pixel & 15 for pixel in OWL)))
BROKEN = {
    "tar, cut off in the middle": ("owls.tar.gz", OWLS[: len(OWLS) // 2]),
    "tar, cut off in its head": ("owls.tar.gz", OWLS[:8]),
    "tar, damaged": ("owls.tar.gz", OWLS[:100_000] + bytes(100) + OWLS[100_100:]),
    "tar, damaged where it is compressed": ("owls.tar.gz", GREY_OWL[:1000] + b"\xff" * 500 + GREY_OWL[1500:]),
    "tar, empty": ("owls.tar.gz", b""),
    "tar, a web page": ("owls.tar.gz", b"<html>Please log in</html>"),
    "zip, cut off": ("owls.zip", zip_of(("owls/1.bin", OWL))[:-50]),
    "zip, damaged": ("owls.zip", zip_of(("owls/1.bin", OWL)).replace(OWL[1000:1010], b"0123456789")),
    "zip, encrypted": ("owls.zip", encrypted(zip_of(("owls/1.bin", b"1")))),
    "zip, a web page": ("owls.zip", b"<html>Please log in</html>"),
}


@pytest.mark.parametrize(("name", "content"), BROKEN.values(), ids=BROKEN)
def test_a_broken_archive_is_named_and_leaves_nothing(folder, name, content):
    assert_refused(content, name, folder, re.escape(f"{name} cannot be unpacked: "))


@pytest.mark.parametrize("pack", [tar_of, zip_of])
def test_an_archive_without_what_it_should_hold_is_refused(folder, pack):
    name = "owls.zip" if pack is zip_of else "owls.tar.gz"
    assert_refused(pack(("cats/1.bin", b"1")), name, folder, f"{name} cannot be unpacked: there is no 'owls' in it")


def test_if_one_folder_cannot_be_put_in_its_place_none_is(folder):
    content = tar_of(("owls/1.bin", b"1"), ("cats/1.bin", b"1"))
    (folder / "owls.tar.gz").write_bytes(content)
    (folder / "cats").symlink_to("nowhere")
    with pytest.raises(DataError, match="Not a directory"):
        unpack(archive_of(content, holds=("owls", "cats")), folder)
    assert listing(folder) == ["cats", "owls.tar.gz"]


def test_a_downloaded_archive_that_cannot_be_unpacked_is_kept(site, tmp_path):
    content = tar_of(("cats/1.bin", b"1"))
    with pytest.raises(DataError, match="there is no 'owls' in it"):
        fetch(archive_of(content, site(serving(), content=content).url), tmp_path)
    assert (tmp_path / "owls.tar.gz").read_bytes() == content
    assert listing(tmp_path) == ["owls.tar.gz"]


def test_a_plain_console_gets_lines_and_no_bar(site, tmp_path):
    shown = io.StringIO()
    server = site(serving())
    fetch(archive_of(OWLS, server.url), tmp_path, console=Console(file=shown, width=20))
    assert shown.getvalue() == f"downloading {server.url}\nunpacking {tmp_path / 'owls.tar.gz'}\n"


def test_a_terminal_gets_a_bar_that_is_gone_in_the_end(site, tmp_path):
    shown = io.StringIO()
    archive = Archive(url=site(serving()).url, md5=hashlib.md5(OWLS).hexdigest(), holds=("owls",), bytes=len(OWLS))
    fetch(archive, tmp_path, console=Console(file=shown, force_terminal=True, width=200))
    assert "300.4/300.4 kB" in shown.getvalue()
    erase_line = "\x1b[2K"
    assert shown.getvalue().endswith(f"{erase_line}unpacking {tmp_path / 'owls.tar.gz'}\n")


def test_without_a_console_nothing_is_written(site, tmp_path, capfd):
    fetch(archive_of(OWLS, site(serving()).url), tmp_path)
    assert capfd.readouterr() == ("", "")


def test_the_name_of_an_archive_is_the_last_part_of_its_address():
    assert Archive(url="https://a.org/b/c.zip?download=1#d", md5="", holds=()).name == "c.zip"
