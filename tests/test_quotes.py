"""Every measured number that README and docs quote is in a record that the same section links to."""

import json
import re
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]

NUMBER = r"\d+(?:,\d{3})*(?:\.\d+)?"
UNITS = "ms|MB|GB|s|seconds|minutes|hours|points|images per second|times|%"
WITH_UNIT = re.compile(rf"(?<![\w.,^-])({NUMBER})(?=(?: to {NUMBER})?\s?(?:{UNITS})(?!\w)| ±)|± ({NUMBER})")
WITH_POINT = re.compile(r"(?<![\w.,^=-])(\d+\.\d+)(?![\w.])")

BETAS = {"0.9", "0.99", "0.999", "0.9999"}

# With a unit or a point, and yet not measured: they are chosen, or follow from a definition.
CHOSEN = {
    "batches.md": {"8", "100"},  # per cent of an image's area
    "sweep.md": {"95"},  # per cent of an interval
    "fine-tuning.md": {"17"},  # the size of a file
    "linear.md": {"2"},  # what follows from the sizes
    "ldam.md": {"16"},  # what follows from the formula
    "reproducing.md": {"200"},  # epochs
    "photographs.md": {"95"},  # per cent of an interval
    "runs.md": {"95"},  # per cent of an interval
    "train.md": {"0.1", "0.01", "0.9"},  # the recipes
}


def sections(page):
    """Parts of a page from heading to heading."""
    return re.split(r"^#+ ", page.read_text(encoding="utf-8"), flags=re.MULTILINE)


def quoted(section):
    """Numbers in prose that have a unit or a spread, and in tables those with a decimal point."""
    prose = re.sub(r"^```.*?^```", "", section, flags=re.MULTILINE | re.DOTALL)
    prose = re.sub(r"`[^`\n]*`|\$[^$]*\$|\]\([^)]*\)", "", prose)
    rows = "\n".join(line for line in prose.splitlines() if line.startswith("|"))
    found = {number for pair in WITH_UNIT.findall(prose) for number in pair if number}
    return found | set(WITH_POINT.findall(rows))


def rows_with_spread(section):
    """The numbers of each row of a table that quotes a mean ± its spread."""
    rows = [re.sub(r"`[^`]*`", "", line) for line in section.splitlines() if line.startswith("|") and "±" in line]
    return [set(WITH_POINT.findall(row)) for row in rows]


def recorded(section, page):
    """Numbers in the records that a section links to, and in what its own code prints."""
    texts = records(section, page)
    printed = re.sub(r"^(>>>|\.\.\.).*$", "", section, flags=re.MULTILINE)
    texts += re.findall(r"^```python.*?^```", printed, flags=re.MULTILINE | re.DOTALL)
    return set().union(*map(values, texts))


def records(section, page):
    """The texts of the records that a section links to; a drawing is none."""
    links = re.findall(r"\]\(([^)#]*results/[^)#]+\.(?:md|json))\)", section)
    linked = [(page.parent / link).resolve() for link in links]
    files = {record.with_suffix(suffix) for record in linked for suffix in (".json", ".md")}
    return [file.read_text(encoding="utf-8") for file in files if file.is_file()]


def values(text):
    return {value(number) for number in re.findall(NUMBER, text)}


def is_in(number, known):
    """Whether one of the numbers known is this one, or this one with more digits."""
    decimals = len(number.partition(".")[2])
    rounding = 0.51 * 10**-decimals if decimals else 0
    return any(abs(value(number) - each) <= rounding for each in known)


def value(number):
    return float(number.replace(",", ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_a_measured_number_is_in_a_record(page):
    for section in sections(page):
        known = recorded(section, page)
        numbers = quoted(section) - BETAS - CHOSEN.get(page.name, set())
        missing = [number for number in numbers if not is_in(number, known)]
        assert not missing, f"{page.name}, {section.splitlines()[0]}: {sorted(missing)} in no record it links to"
        lines = [values(line) for text in records(section, page) for line in text.splitlines()]
        for row in rows_with_spread(section):
            together = any(all(is_in(number, line) for number in row) for line in lines)
            assert together, f"{page.name}, {section.splitlines()[0]}: {sorted(row)} are in no one line of its records"


def test_a_number_without_its_record_is_found(tmp_path):
    page = tmp_path / "page.md"
    (tmp_path / "results").mkdir()
    (tmp_path / "results" / "x.md").write_text("| error | 41.2 ± 0.3 |\n")
    page.write_text(
        "# A\nTakes 19.9 ms.\n```python\n>>> 19.9 + 1\n20.9\n```\n\n"
        "# B\n| b | 41.2 ± 0.3 |\n\nSee the [record](results/x.md), β = 0.99.\n"
        "![drawn](results/x.svg) 5.4 to 11.5 points, 7.1 ± 0.8.\n"
    )
    (tmp_path / "results" / "x.svg").write_text("<svg width='7.5'/>\n")
    first, second = sections(page)[1:]
    assert quoted(first) == {"19.9"}
    assert recorded(first, page) == {20.9}  # what is printed is known, what is typed is not
    assert quoted(second) == {"41.2", "0.3", "5.4", "11.5", "7.1", "0.8"}
    assert recorded(second, page) == {41.2, 0.3}
    assert rows_with_spread(second) == [{"41.2", "0.3"}]
    assert is_in("41.2", {41.16})
    assert not is_in("41.2", {41.1, 412})
    assert not is_in("41", {41.2})


def test_the_output_that_the_readme_shows_is_that_of_the_recorded_search():
    shown = re.findall(r"^```text\n(loss .*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.M | re.S)
    search = json.loads((ROOT / "results" / "photographs" / "tune.json").read_text(encoding="utf-8"))["imbalance 200"]
    table, _, end = shown[0].partition("\n\n")
    scores = {each["loss"]: each["scores"] for each in search["candidates"]}
    rows = [re.fullmatch(r"(.+?) {2,}(\d)  +([\d.]+) ± ([\d.]+)(?:  best)?", line) for line in table.splitlines()[1:]]
    for name, folds, mean, spread in (row.groups() for row in rows if row):
        expected = (
            len(scores[name]),
            f"{100 * np.mean(scores[name]):.1f}",
            f"{100 * np.std(scores[name], ddof=1):.1f}",
        )
        assert (int(folds), mean, spread) == expected, name
    assert sum(row is None for row in rows) == 1  # the others, left out
    assert end.splitlines() == [
        f"{search['folds_trained']} of {search['folds_without_pruning']} folds were trained",
        f"{search['picked']}, trained on all training images and tested once: "
        f"error {search['error']:.2f}%, balanced accuracy {search['balanced_accuracy']:.1%}",
    ]
