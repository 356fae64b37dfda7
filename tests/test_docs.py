"""The documentation: the site builds, links lead somewhere, and command lines are such that there are."""

import contextlib
import functools
import html
import http.server
import importlib
import importlib.util
import io
import os
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.parse
import zlib
from pathlib import Path
from unittest import mock

import pytest

from longtail.lab.cli import main
from longtail.lab.cli.app import COMMANDS
from longtail.losses import LOSSES
from tests.lab.report.pages import FLAGS

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
ROOMS = ["", ".functional", ".schedules", ".samplers", ".prototypes", ".theory", ".lab.data", ".lab.models"]
ROOMS += [".lab.config", ".lab.recipes", ".lab.training", ".lab.experiments", ".lab.report"]

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    needed = ("sphinx", "furo", "myst_parser", "sphinx_copybutton", "sphinx-mathjax-offline")
    if missing := [name for name in needed if importlib.util.find_spec(name) is None]:
        pytest.skip(f"the site was NOT built: {', '.join(missing)} missing, pip install '.[docs]'")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html", "-d", folder / "trees"]
    built = subprocess.run([*command, ROOT / "docs", folder / "html"], capture_output=True, text=True, check=False)
    assert built.returncode == 0, built.stderr
    return folder / "html"


def test_the_site_has_every_page_and_needs_no_network(site):
    built = {path.relative_to(site).with_suffix(".md") for path in site.rglob("*.html")}
    assert {page.relative_to(ROOT / "docs") for page in PAGES[1:]} <= built
    for path in site.rglob("*.html"):
        fetched = re.findall(r'<(?:script|img|iframe)[^>]+src="(?:https?:)?//[^"]+', path.read_text(encoding="utf-8"))
        fetched += re.findall(r'<link[^>]+href="(?:https?:)?//[^"]+', path.read_text(encoding="utf-8"))
        assert not fetched, path


@pytest.mark.parametrize("room", ROOMS)
def test_the_reference_has_every_public_name(site, room):
    module = importlib.import_module(f"longtail{room}")
    *_, packed = (site / "objects.inv").read_bytes().split(b"\n", 4)
    documented = {line.split()[0] for line in zlib.decompress(packed).decode().splitlines()}
    assert {f"{module.__name__}.{name}" for name in module.__all__} <= documented


def without_code(text):
    return re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)


def anchors(path):
    """As they are made of headings by the site, and by whoever shows the file in the repository."""
    headings = re.findall(r"^#+ (.+)$", without_code(path.read_text(encoding="utf-8")), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.strip().lower()).replace(" ", "-") for heading in headings}


@pages
def test_every_link_leads_somewhere(page):
    for link in re.findall(r"\]\(([^)\s]+)\)", without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        place, _, anchor = link.partition("#")
        target = page.parent / place if place else page
        assert target.exists(), f"{page}: {link}"
        assert not anchor or anchor in anchors(target), f"{page}: {link}"


def command_lines(text):
    """Lines of shell code, and code in the text, that call longtail: without comments, split into words."""
    blocks = re.findall(r"^```sh\n(.*?)^```", text, flags=re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.replace("\\\n", " ").splitlines()]
    lines += [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", without_code(text))]
    for line in lines:
        if found := re.match(r"(?:.* -m longtail\.lab|longtail)((?: .*)?)$", line):
            yield shlex.split(found[1], comments=True)


def is_open(word):
    """Whether a word stands for others, as in ``longtail COMMAND --help`` or ``longtail train …``."""
    return word.isupper() or word == "…"


@functools.cache
def help_of(command):
    """What ``--help`` shows, asked once for each command."""
    shown = io.StringIO()
    with (
        mock.patch.dict(os.environ, COLUMNS="200"),
        contextlib.redirect_stdout(shown),
        contextlib.suppress(SystemExit),
    ):
        main([*command, "--help"])
    return shown.getvalue()


def check_command(words):
    """The command and its flags are there."""
    command, known = [], {*COMMANDS, "completion"}
    while known and words and not is_open(words[0]) and not words[0].startswith("-"):
        assert words[0] in known, f"longtail {' '.join([*command, words[0]])}: there is no such command"
        command.append(words.pop(0))
        if command == ["completion"]:  # which has no help of its own
            return
        inner = re.match(r"usage: [^{\n]+\{([\w,-]+)\}\n", help_of(tuple(command))) if len(command) == 1 else None
        known = set(inner[1].split(",")) if inner else set()
    if known and words and is_open(words[0]):
        return
    flags = {word.partition("=")[0] for word in words if re.match("--?[a-z]", word)}
    there = set(re.findall(r"(?<![\w-])--?[a-z][\w-]*", help_of(tuple(command)))) | {"--debug"}
    assert flags <= there, f"longtail {' '.join(command)} has no {flags - there}"


@pages
def test_every_command_line_is_one_that_there_is(page):
    for words in command_lines(page.read_text(encoding="utf-8")):
        check_command(words)


@pytest.mark.parametrize("wrong", ["trian --data digits", "data shw cifar10", "train --learning-rat 1", "--verson"])
def test_a_command_line_that_there_is_not_is_found(wrong):
    (words,) = command_lines(f"```sh\nlongtail {wrong}  # a comment\n```\n")
    with pytest.raises(AssertionError):
        check_command(words)


def test_every_loss_has_a_page():
    for name, kind in LOSSES.items():
        page = (ROOT / "docs" / "reference" / "losses" / f"{name}.md").read_text(encoding="utf-8")
        assert f"functional.{kind.function.__name__}" in page
        assert kind.module.__name__ in page


def test_the_page_of_the_command_line_has_every_command_and_flag(site):
    page = html.unescape((site / "reference" / "cli.html").read_text(encoding="utf-8"))
    shown = dict(re.findall(r"<h3>longtail ([a-z ]+)<.*?(<table.*?</table>)", page, flags=re.DOTALL))
    data = ["list", "show", "check", "fetch"]
    commands = {name for name in COMMANDS if name != "data"} | {f"data {name}" for name in data}
    assert commands <= set(shown)
    for name, table in shown.items():
        flags = set(re.findall(r"^│ (--[a-z][\w-]*)", help_of(tuple(name.split())), flags=re.MULTILINE))
        assert flags <= set(re.findall(r"--[a-z][\w-]*", table)), name
    assert "--imbalance" in shown["train"]
    assert re.search(r" [–—]\w", page) is None  # two hyphens, and not a dash


@pytest.mark.parametrize("module", ROOMS)
def test_every_module_has_an_api_page(module):
    assert (ROOT / "docs" / "reference" / "api" / f"longtail{module}.md").exists()


SEARCHES = {
    "oversampling": "how-to/oversampling.html",
    "undersampling": "how-to/oversampling.html",
    "imbalanced dataset": "explanation/choosing.html",
    "class weights": "how-to/class-weights.html",
    "focal loss": "reference/losses/focal.html",
    "balanced softmax": "reference/losses/logit_adjusted.html",
    "confusion matrix": "reference/runs.html",
    "fine-tuning": "how-to/fine-tuning.html",
    "resume": "how-to/train.html",
    "cRT": "how-to/after-training.html",
    "DDP": "how-to/oversampling.html",
    "transfer learning": "how-to/fine-tuning.html",
    "early stopping": "how-to/train.html",
    "minority class": "explanation/choosing.html",
    "unbalanced": "explanation/choosing.html",
    "export": "how-to/predict.html",
    "ClassAwareSampler": "reference/api/longtail.samplers.html",
    "load_run": "reference/api/longtail.lab.training.html",
}


@pytest.fixture(scope="module")
def browser(site, tmp_path_factory):
    """A browser on the site, as a web server shows it: the browser, and the address."""
    webdriver = pytest.importorskip("selenium.webdriver")
    if not (shutil.which("chromium") and shutil.which("chromedriver")):
        pytest.skip("the site was NOT tested in a browser: Debian's chromium and chromium-driver are needed")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium")
    for argument in (*FLAGS, "--window-size=1400,1000", f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(argument)
    handler = functools.partial(QuietHandler, directory=site)
    service = webdriver.ChromeService(shutil.which("chromedriver"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        started = webdriver.Chrome(options=options, service=service)
        try:
            yield started, f"http://127.0.0.1:{server.server_port}"
        finally:
            started.quit()
            server.shutdown()


def wait_for(driver, condition):
    """Until a JavaScript expression is true."""
    from selenium.webdriver.support.ui import WebDriverWait

    WebDriverWait(driver, 30).until(lambda driver: driver.execute_script(f"return {condition}"))


@pytest.mark.parametrize(("words", "page"), SEARCHES.items())
def test_searching_leads_to_the_right_page(browser, words, page):
    """As the search of the site runs in a browser: the page is the first result."""
    driver, address = browser
    driver.get(f"{address}/search.html?q={urllib.parse.quote(words)}")
    wait_for(driver, "document.querySelector('.search-summary')?.textContent.startsWith('Search finished')")
    links = driver.find_elements("css selector", "#search-results ul.search li > a")
    found = [urllib.parse.urlsplit(link.get_attribute("href")).path[1:] for link in links[:3]]
    assert found[:1] == [page], found


def test_the_explorer_is_shown_whole(browser):
    driver, address = browser
    driver.get(f"{address}/explanation/explorer.html")
    frame = "document.querySelector('.explorer')"
    inside = f"{frame}.contentDocument.documentElement"
    wait_for(driver, f"{inside}.querySelectorAll('#weights-table tbody tr').length === 10")
    wait_for(driver, f"{inside}.scrollHeight <= {frame}.clientHeight")
    assert driver.execute_script(f"return {inside}.querySelector('#weights-chart').textContent").endswith("truck")


OVERFLOWING = """
return [...document.querySelectorAll('.highlight pre, .table-wrapper')]
  .filter((element) => element.scrollWidth > element.clientWidth + 1).map((element) => element.textContent.slice(0, 80))
"""


@pytest.mark.parametrize("page", PAGES[1:], ids=lambda page: page.relative_to(ROOT).as_posix())
def test_no_code_and_no_table_is_cut_off(browser, page):
    driver, address = browser
    driver.get(f"{address}/{page.relative_to(ROOT / 'docs').with_suffix('.html').as_posix()}")
    assert driver.execute_script(OVERFLOWING) == []


class QuietHandler(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *arguments):
        """Say nothing."""
