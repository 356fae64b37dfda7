"""Archives of public data sets: downloaded, verified and unpacked, completely or not at all."""

from __future__ import annotations

import gzip
import hashlib
import os
import re
import shutil
import ssl
import stat
import tarfile
import time
import urllib.request as web
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from http.client import HTTPException, HTTPResponse, InvalidURL
from io import BufferedIOBase
from pathlib import Path, PurePosixPath
from typing import cast
from urllib.error import HTTPError, URLError
from urllib.parse import urlsplit

from rich.console import Console
from rich.progress import DownloadColumn, Progress, TransferSpeedColumn

from longtail.lab.data.errors import DataError
from longtail.lab.locks import Lock

CHUNK = 1 << 18
TIMEOUT = 30.0  # seconds of silence after which a connection is made anew
ATTEMPTS = 5  # in a row without progress, after which a download is given up
PAUSE = 1.0  # seconds before the attempt that follows one without progress, twice as many after two, and so on
CONNECTION_LOST = (ConnectionError, TimeoutError, HTTPException, ssl.SSLError)
BROKEN = (tarfile.TarError, zipfile.BadZipFile, gzip.BadGzipFile, zlib.error, EOFError, RuntimeError, ValueError)


@dataclass(frozen=True, kw_only=True)
class Archive:
    """A ``.tar.gz`` or ``.zip`` that can be downloaded."""

    url: str
    md5: str
    holds: tuple[str, ...]
    """Top-level files and folders to unpack; what else is in it is left out."""
    bytes: int = 0
    """Size of the archive for the progress bar, 0 if unknown."""

    @property
    def name(self) -> str:
        """The file name."""
        return PurePosixPath(urlsplit(self.url).path).name


def fetch(archive: Archive, folder: Path, *, url: str | None = None, console: Console | None = None) -> None:
    """Download, check and unpack ``archive`` into ``folder``, as far as that is still to be done.

    The download (from ``url`` if given) resumes where an earlier one stopped. A connection that breaks off or is silent
    is made anew, until several in a row got no further than any before. An archive that was there already is kept, a
    downloaded one is removed. Another process that fetches the same one is waited for.
    """
    if not _missing(archive, folder):
        return
    path = folder / archive.name
    console = console or Console(quiet=True)
    with _disk_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    with _locked(path, console):
        is_downloaded = bool(_missing(archive, folder)) and not path.exists()
        if is_downloaded:
            _download(archive, path, url or archive.url, console)
        _unpack(archive, folder, console)
        if is_downloaded:
            path.unlink()


def unpack(archive: Archive, folder: Path) -> None:
    """Check the archive that is in ``folder``, and unpack beside it what is missing."""
    console = Console(quiet=True)
    with _locked(folder / archive.name, console):
        _unpack(archive, folder, console)


def _say(console: Console, text: str) -> None:
    console.print(text, highlight=False, markup=False, soft_wrap=True)


def _missing(archive: Archive, folder: Path) -> list[str]:
    return [name for name in archive.holds if not (folder / name).exists()]


def _reason(error: BaseException | str) -> str:
    return " ".join((getattr(error, "strerror", None) or str(error) or type(error).__name__).split())


@contextmanager
def _disk_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise DataError(f"{error.filename or path}: {_reason(error)}") from error


@contextmanager
def _locked(path: Path, console: Console) -> Iterator[None]:
    """Let one process after the other work on ``path``; the lock of one that was killed is free at once."""
    lock = Lock(path.with_name(f"{path.name}.lock"))
    with _disk_errors(path):
        if not lock.acquire(wait=False):
            _say(console, f"waiting for another process that is busy with {path}")
            lock.acquire()
        try:
            yield
        finally:
            lock.release(delete=True)


def _md5(file: BufferedIOBase) -> str:
    file.seek(0)
    return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def _download(archive: Archive, path: Path, url: str, console: Console) -> None:
    part = path.with_name(f"{path.name}.part")
    _say(console, f"downloading {url}")
    columns = (*Progress.get_default_columns(), DownloadColumn(), TransferSpeedColumn())
    bar = Progress(*columns, console=console, transient=True, disable=console.quiet or not console.is_terminal)
    task = bar.add_task(archive.name, total=archive.bytes or None)
    with bar, part.open("ab+") as file:
        try:
            _complete(file, archive.md5, url, lambda: bar.update(task, completed=file.tell()))
        except DataError as error:
            if file.tell():
                raise DataError(f"{error}; the next call resumes from the {file.tell()} bytes in {part}") from error
            part.unlink()
            raise
        os.fsync(file.fileno())
        os.replace(part, path)


def _complete(file: BufferedIOBase, md5: str, url: str, show: Callable[[], None]) -> None:
    furthest, fruitless, reason = file.tell(), 0, ""
    while fruitless < ATTEMPTS:
        time.sleep(PAUSE * fruitless)
        try:
            followed = _continue(file, url, show)
            if (found := _md5(file)) == md5:
                return
            file.truncate(file.seek(0))
            if followed:
                raise DataError(f"{url}: its md5 should be {md5}, but is {found}")
            reason = "the server does not resume where the download stopped"
        except CONNECTION_LOST as error:
            reason = _reason(error)
        fruitless = 0 if file.tell() > furthest else fruitless + 1
        furthest = max(furthest, file.tell())
    raise DataError(f"{url}: {ATTEMPTS} attempts without progress: {reason}")


def _continue(file: BufferedIOBase, url: str, show: Callable[[], None]) -> bool:
    """Append what the server sends from there on; False if that is nothing, or from elsewhere."""
    start = file.tell()
    with _connect(url, start) as response:
        sent = re.match(r"bytes (\d+)-\d+/(\d*)", response.headers["Content-Range"] or "")
        if response.status == 416 or (response.status == 206 and not (sent and int(sent[1]) == start)):
            return False
        if start and response.status != 206:
            file.truncate(file.seek(0))
        end = int(sent[2]) if sent and sent[2] else file.tell() + (response.length or 0)
        while chunk := response.read1(CHUNK):
            file.write(chunk)
            show()
    if file.tell() < end:
        raise ConnectionError("the connection was lost")
    return True


def _connect(url: str, start: int) -> HTTPResponse:
    headers = {"User-Agent": "longtail"} | ({"Range": f"bytes={start}-"} if start else {})
    try:
        if urlsplit(url).scheme not in ("http", "https"):  # urllib also opens file:// and ftp://
            raise ValueError("unknown url type")
        return cast(HTTPResponse, web.urlopen(web.Request(url, headers=headers), timeout=TIMEOUT))
    except HTTPError as error:
        if start and error.code == 416:
            return cast(HTTPResponse, error)
        error.close()
        raise DataError(f"{url}: {_reason(error)}") from error
    except (OSError, InvalidURL, ValueError) as error:
        cause = error.reason if isinstance(error, URLError) else error
        if isinstance(cause, TimeoutError | ConnectionResetError | BrokenPipeError):
            raise cause from error
        raise DataError(f"{url}: {_reason(cause)}") from error


def _unpack(archive: Archive, folder: Path, console: Console) -> None:
    missing = _missing(archive, folder)
    if not missing:
        return
    path = folder / archive.name
    _say(console, f"unpacking {path}")
    temporary = folder / f"{archive.name}.unpacking"
    try:
        with path.open("rb") as file:
            if (found := _md5(file)) != archive.md5:
                raise ValueError(f"its md5 should be {archive.md5}, but is {found}")
        # A process that was killed leaves its own.
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        (_extract_zip if path.suffix == ".zip" else _extract_tar)(path, temporary, missing)
        _move(missing, temporary, folder)
    except BROKEN as error:
        raise DataError(f"{path} cannot be unpacked: {_reason(error)}") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _extract_tar(path: Path, target: Path, names: list[str]) -> None:
    with gzip.open(path) as unzipped, tarfile.open(fileobj=unzipped, mode="r:") as archive:
        for member in archive:
            if _is_wanted(member.name, member.isfile() or member.isdir(), names):
                _write(archive, member, target / member.name)
        # gzip compares its own checksum only at the very end, which lies behind the last member.
        while unzipped.read(CHUNK):
            pass


def _write(archive: tarfile.TarFile, member: tarfile.TarInfo, target: Path) -> None:
    """Write a file or folder with the rights of any new one: not tarfile's way, which is safe from Python 3.11.4 on."""
    source = archive.extractfile(member)
    if source is None:  # a folder
        target.mkdir(parents=True, exist_ok=True)
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file, CHUNK)


def _extract_zip(path: Path, target: Path, names: list[str]) -> None:
    with zipfile.ZipFile(path) as archive:
        for member in archive.infolist():
            kind = stat.S_IFMT(member.external_attr >> 16)
            if _is_wanted(member.filename, kind in (0, stat.S_IFREG, stat.S_IFDIR), names):
                archive.extract(member, target)


def _is_wanted(member: str, is_file_or_folder: bool, names: list[str]) -> bool:
    parts = PurePosixPath(member).parts
    if not is_file_or_folder or ".." in parts or member.startswith("/"):
        raise ValueError(f"{member!r} in it is not a file or folder inside the folder that it is unpacked to")
    return bool(parts) and parts[0] in names


def _move(names: list[str], source: Path, target: Path) -> None:
    if absent := set(names).difference(os.listdir(source)):
        raise ValueError(f"there is no {min(absent)!r} in it")
    with ExitStack() as undo:
        for name in names:
            os.rename(source / name, target / name)
            undo.callback(os.rename, target / name, source / name)
        undo.pop_all()
