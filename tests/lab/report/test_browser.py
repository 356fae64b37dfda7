"""The page in a real browser: Debian's Chromium, without a window and without a network."""

import contextlib
import json
import shutil

import numpy as np
import pytest

from longtail import class_weights, effective_number
from longtail.lab.config import LossConfig
from longtail.lab.report.page import write_page
from longtail.lab.training.metrics import wilson_interval
from tests.lab.experiments.test_results import PLAIN, run_of, write_run
from tests.lab.report.pages import COUNTS, EVIL, FLAGS, NAMES, write_data, write_runs

webdriver = pytest.importorskip("selenium.webdriver", reason="NO BROWSER TESTS of the page: pip install selenium")


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("browser")
    return write_page(write_runs(folder / "runs"), folder / "report.html", "Tails")


@pytest.fixture(scope="module")
def driver(tmp_path_factory):
    browser, chromedriver = shutil.which("chromium"), shutil.which("chromedriver")
    if not (browser and chromedriver):
        pytest.skip("NO BROWSER TESTS of the page: apt-get install chromium chromium-driver")
    options = webdriver.ChromeOptions()
    options.binary_location = browser
    for flag in (*FLAGS, f"--user-data-dir={tmp_path_factory.mktemp('profile')}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    # With both programs named, Selenium looks for nothing on the network.
    started = webdriver.Chrome(options=options, service=webdriver.ChromeService(chromedriver))
    started.set_script_timeout(300)
    yield started
    started.quit()


@pytest.fixture
def browser(driver, page):
    """The page, freshly loaded, 1400 pixels wide, in the light; whatever the test did, it has complained of nothing."""
    media(driver, 1400, "light")
    driver.get_log("browser")
    driver.get_log("performance")
    driver.get(page.as_uri())
    yield driver
    assert [entry for entry in driver.get_log("browser") if entry["level"] != "INFO"] == []


def media(driver, width, scheme):
    size = {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": width < 500}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", size)
    wanted = {"prefers-color-scheme": scheme, "prefers-reduced-motion": "reduce"}
    features = [{"name": name, "value": value} for name, value in wanted.items()]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def find(browser, selector):
    return browser.find_element("css selector", selector)


def settled(browser):
    """After what the page does at its next frame."""
    browser.execute_async_script("requestAnimationFrame(() => requestAnimationFrame(arguments[0]))")


def wait_for(browser, condition):
    """Until a JavaScript expression is true."""
    script = "const done = arguments[0], timer = setInterval(() => { if (%s) { clearInterval(timer); done(); } }, 20)"
    browser.execute_async_script(script % condition)


def column(browser, table, place):
    """Values of the rows that are shown."""
    script = """
        const rows = [...document.querySelectorAll(`#${arguments[0]} tbody tr`)].filter((row) => !row.hidden);
        return rows.map((row) => row.cells[arguments[1]].dataset.value ?? row.cells[arguments[1]].textContent);"""
    return browser.execute_script(script, table, place)


def numbers(browser, table, place):
    return [float(value) for value in column(browser, table, place)]


def put(browser, selector, value):
    """What a reader does to an input, all at once."""
    script = "arguments[0].value = arguments[1]; arguments[0].dispatchEvent(new Event('input', {bubbles: true}));"
    browser.execute_script(script, find(browser, selector), value)
    settled(browser)


def header(browser, name):
    return find(browser, "#settings-1").find_element("xpath", f".//thead//th[button[.='{name}']]")


def draw_all(browser):
    """Until all figures are drawn."""
    browser.execute_async_script("""
        const done = arguments[0];
        const places = [...document.querySelectorAll("[data-chart]")];
        const timer = setInterval(() => {
            const missing = places.find((place) => !place.closest("[hidden]") && !place.querySelector("svg.marks"));
            if (!missing) { clearInterval(timer); done(); }
        }, 50);""")


def test_all_figures_are_drawn_and_nothing_is_fetched(browser):
    draw_all(browser)
    places = browser.find_elements("css selector", "[data-chart]")
    assert len(places) == 6
    assert all(place.find_elements("css selector", "svg.marks") for place in places)
    messages = [json.loads(entry["message"])["message"] for entry in browser.get_log("performance")]
    sent = [each["params"]["request"]["url"] for each in messages if each["method"] == "Network.requestWillBeSent"]
    assert sent
    assert [url for url in sent if not url.startswith(("file:", "data:", "blob:"))] == []


def test_headers_sort_by_click_and_by_key(browser):
    cell = header(browser, "balanced accuracy %")
    place = browser.execute_script("return arguments[0].cellIndex", cell)
    before = numbers(browser, "settings-1", place)
    assert cell.get_attribute("aria-sort") == "none"
    cell.find_element("css selector", "button").click()
    assert numbers(browser, "settings-1", place) == sorted(before) != before
    assert cell.get_attribute("aria-sort") == "ascending"
    cell.find_element("css selector", "button").send_keys(" ")
    assert numbers(browser, "settings-1", place) == sorted(before, reverse=True)
    assert cell.get_attribute("aria-sort") == "descending"
    other = header(browser, "loss")
    other.find_element("css selector", "button").send_keys("\n")
    assert column(browser, "settings-1", 0) == sorted(column(browser, "settings-1", 0))
    assert (cell.get_attribute("aria-sort"), other.get_attribute("aria-sort")) == ("none", "ascending")


def test_what_is_missing_is_last_in_both_orders(browser):
    cell = header(browser, "Δ balanced accuracy")
    place = browser.execute_script("return arguments[0].cellIndex", cell)
    for sign in (1, -1):
        cell.find_element("css selector", "button").click()
        found = column(browser, "settings-1", place)
        known = [float(value) for value in found[:4]]
        assert known == sorted(known, key=lambda value: sign * value)
        assert found[4:] == ["baseline"]


def test_any_two_methods_are_compared_class_by_class(browser):
    names = [option.text for option in browser.find_elements("css selector", "#candidate option")]
    assert [name.split(" (")[0] for name in names[:2]] == ["softmax", "class-balanced softmax, β 0.9"]
    put(browser, "#baseline", 0)
    put(browser, "#candidate", 1)
    assert "class-balanced softmax, β 0.9" in find(browser, "#compared").text
    before, after, change = (numbers_of(browser, place) for place in (3, 4, 5))
    assert change == pytest.approx([b - a for a, b in zip(before, after, strict=True)], abs=0.11)
    put(browser, "#order", "loss")
    assert numbers_of(browser, 5) == sorted(change)
    put(browser, "#order", "rare")
    assert [int(text.replace(",", "")) for text in column(browser, "classes", 1)] == sorted(COUNTS)
    put(browser, "#baseline", 1)
    assert len(browser.find_elements("css selector", "#classes thead th")) == 5  # one method has nothing to change


def test_of_many_classes_the_first_are_shown_and_the_others_on_request(driver, tmp_path):
    for loss in (PLAIN, LossConfig(beta=0.9)):
        path = write_run(tmp_path / "runs", run_of(loss), error=30.0, recall=[0.5] * 40)
        write_data(path, [f"kind {index}" for index in range(40)], range(140, 100, -1))
    driver.get(write_page(tmp_path / "runs", tmp_path / "report.html").as_uri())
    counts = column(driver, "classes", 1)
    assert [int(text) for text in counts] == list(range(101, 131))
    button = find(driver, "#classes-all")
    assert button.text == "Show all 40 classes"
    button.click()
    assert len(column(driver, "classes", 1)) == 40
    assert not button.is_displayed()


def numbers_of(browser, place):
    """Numbers of a column of the classes, without their intervals."""
    return [float(text.split()[0].replace("−", "-")) for text in column(browser, "classes", place)]


def test_precision_and_f1_have_intervals_and_pairs_are_listed(driver, tmp_path):
    from tests.lab.report.test_page import write_compared

    write_compared(tmp_path / "runs", seeds=2)
    driver.get(write_page(tmp_path / "runs", tmp_path / "a.html").as_uri())
    rows = {}
    for metric in ("recall", "precision", "f1"):
        put(driver, "#metric", metric)
        put(driver, "#order", "frequent")
        rows[metric] = column(driver, "classes", 4)
    assert [text.split()[0] for text in rows["precision"]] == ["98.4", "56.5", "100.0"]  # 95 / 96.5, 6.5 / 11.5
    assert rows["f1"][1].split()[0] == "66.7"  # 2 · 6.5 / (8 + 11.5)
    low, high = wilson_interval(np.array([6.5]), np.array([8.0]))[0]
    assert rows["recall"][1] == f"81.3 [{100 * low:.0f}, {100 * high:.0f}]"
    assert column(driver, "pairs", 0) == ["a", "b"]
    assert [cell.text for cell in driver.find_elements("css selector", "#matrix .wrong")] == ["5", "1.5"]
    assert "no longer where the run read them" in find(driver, "#mistakes-about").text


def test_names_are_text_and_run_nothing(browser):
    draw_all(browser)
    assert browser.title == "Tails"
    assert any(EVIL in cell.text for cell in browser.find_elements("css selector", "#classes tbody th"))
    assert EVIL in find(browser, "#problem-runs").text
    assert column(browser, "weights-table", 0) == NAMES
    put(browser, "#counts", f"{EVIL},5\n<img src=x onerror=\"document.title='run'\">,7")
    assert column(browser, "weights-table", 0) == [EVIL, "<img src=x onerror=\"document.title='run'\">"]
    assert browser.find_elements("css selector", "img") == []
    assert browser.title == "Tails"


def test_the_sliders_give_the_weights_of_the_package(browser):
    assert numbers(browser, "weights-table", 1) == COUNTS
    expected = {0: 0.0, 1: 0.9, 2.5: 0.99684, 3: 0.999, 4: 0.9999, 5.55: 0.99999718, 6: 0.999999}
    for exponent, beta in expected.items():
        put(browser, "#prototypes", exponent)
        assert float(find(browser, "#beta").get_attribute("value")) == beta
        assert numbers(browser, "weights-table", 2) == pytest.approx(effective_number(COUNTS, beta), rel=1e-9)
        assert numbers(browser, "weights-table", 3) == pytest.approx(class_weights(COUNTS, beta=beta), rel=1e-9)
        given = eval(find(browser, "#python").text, {"class_weights": class_weights})
        assert numbers(browser, "weights-table", 3) == pytest.approx(given, rel=1e-9)
    find(browser, "input[value=samples]").click()
    settled(browser)
    expected = class_weights(COUNTS, beta=0.999999, normalize="samples")
    assert numbers(browser, "weights-table", 3) == pytest.approx(expected, rel=1e-9)
    assert find(browser, "#python").text.endswith('beta=0.999999, normalize="samples")')


def test_the_sliders_follow_the_keyboard(browser):
    slider = find(browser, "#prototypes")
    slider.send_keys("\ue010")  # End
    settled(browser)
    assert find(browser, "#prototypes-value").text == "N = 1,000,000"
    assert slider.get_attribute("aria-valuetext") == "N = 1,000,000, β = 0.999999"
    slider.send_keys("\ue011")  # Home
    settled(browser)
    assert find(browser, "#prototypes-value").text == "N = 1"
    assert numbers(browser, "weights-table", 3) == pytest.approx([1] * 10)


@pytest.mark.parametrize("beta", [0, 0.5, 0.99, 1 - 1e-9, 1])
def test_a_typed_beta_is_right_even_near_one(browser, beta):
    counts = [10**9, 12345, 3, 1]
    put(browser, "#counts", ", ".join(map(str, counts)))
    put(browser, "#beta", repr(beta))
    assert numbers(browser, "weights-table", 2) == pytest.approx(effective_number(counts, beta), rel=1e-9)
    assert numbers(browser, "weights-table", 3) == pytest.approx(class_weights(counts, beta=beta), rel=1e-9)


def test_the_loss_is_the_focal_term_times_the_weight(browser):
    put(browser, "#prototypes", 3)
    weights = class_weights(COUNTS, beta=0.999)
    for gamma in (0, 0.5, 2, 5):
        put(browser, "#gamma", gamma)
        for place, p in ((1, 0.1), (2, 0.5), (3, 0.9)):
            entropy = -browser.execute_script("return Math.log(arguments[0])", p)
            focal = (1 - p) ** gamma * entropy
            expected = [entropy, focal, weights[-1] * focal, weights[0] * focal]
            assert numbers(browser, "loss-table", place) == pytest.approx(expected, rel=1e-9)
    assert len(browser.find_elements("css selector", "#loss-chart path.curve")) == 4


@pytest.mark.parametrize(
    ("text", "names", "counts"),
    [
        ("5000, 2997, 1796", "012", [5000, 2997, 1796]),
        ("[5000 2997\n1796]", "012", [5000, 2997, 1796]),
        ("cat,500\nlynx,5", ["cat", "lynx"], [500, 5]),
        ("class,images\r\ncat;500\r\n\r\nred fox\t5\r\n", ["cat", "red fox"], [500, 5]),
        ('"a ""b"", c", 3\nx 4', ['a "b", c', "x"], [3, 4]),
        ("0,30\n1,20\n2,10", "012", [30, 20, 10]),
        ("cat,7", ["cat"], [7]),
    ],
)
def test_counts_are_read_in_the_ways_that_people_write_them(browser, text, names, counts):
    put(browser, "#counts", text)
    assert column(browser, "weights-table", 0) == list(names)
    assert numbers(browser, "weights-table", 1) == counts
    assert find(browser, "#preset").get_attribute("value") == ""


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "No counts yet"),
        ("  \n ", "No counts yet"),
        ("5000, -3", "A count must be a whole number"),
        ("5000, 2.5, 7", "“2.5” is none"),
        ("many", "“many” is none"),
        ("cat,five\ndog,x", "that of “dog” is “x”"),
        ("0, 0", "without images"),
        ("9" * 400, "too large"),
        ("99999999999999999999", "too large"),
    ],
)
def test_bad_counts_are_told_and_show_no_numbers(browser, text, message):
    put(browser, "#counts", text)
    assert message in find(browser, "#counts-message").text
    assert not find(browser, "#explored").is_displayed()
    put(browser, "#counts", "10, 5")
    assert find(browser, "#counts-message").text == "2 classes, 15 images, imbalance 2."
    assert find(browser, "#explored").is_displayed()


def test_a_bad_beta_is_told(browser):
    put(browser, "#beta", "1.5")
    assert find(browser, "#counts-message").text == "β must be a number from 0 to 1."


def test_a_bad_beta_is_told_while_another_change_waits_for_the_next_frame(browser):
    script = "arguments[0].dispatchEvent(new Event('input', {bubbles: true}));"
    browser.execute_script(
        "arguments[1].value = '1.5';" + script + script.replace("[0]", "[1]") + script,
        find(browser, "#gamma"),
        find(browser, "#beta"),
    )
    settled(browser)
    assert find(browser, "#counts-message").text == "β must be a number from 0 to 1."
    put(browser, "#beta", "0.9")
    assert find(browser, "#counts-message").text == "10 classes, 12,406 images, imbalance 100."


def test_a_class_without_images_weighs_nothing(browser):
    put(browser, "#counts", "100, 0, 10")
    expected = class_weights([100, 0, 10], beta=0.999, absent="ignore")
    assert numbers(browser, "weights-table", 3) == pytest.approx(expected, rel=1e-9)
    given = eval(find(browser, "#python").text, {"class_weights": class_weights})
    assert given == pytest.approx(expected, rel=1e-9)


def test_thousands_of_classes_are_shown_at_once(browser):
    put(browser, "#counts", ", ".join(str(8200 - place) for place in range(8142)))
    assert len(numbers(browser, "weights-table", 1)) == 200
    assert find(browser, "#weights-more").text.startswith("7,942 more classes are not listed")


def test_counts_come_from_a_file_and_from_a_data_set(browser, tmp_path):
    file = tmp_path / "counts.csv"
    file.write_text("cat,40\nlynx,4\n")
    find(browser, "#file").send_keys(str(file))
    wait_for(browser, "document.getElementById('counts').value.startsWith('cat')")
    settled(browser)
    assert column(browser, "weights-table", 0) == ["cat", "lynx"]
    browser.execute_script(
        "const it = document.getElementById('preset'); it.value = '1'; it.dispatchEvent(new Event('change'))"
    )
    assert numbers(browser, "weights-table", 1)[:3] == [5000, 2997, 1796]


def test_the_line_of_python_is_copied(browser):
    find(browser, "#copy").click()
    wait_for(browser, "document.getElementById('copied').textContent")
    assert find(browser, "#copied").text in ("Copied.", "Selected: copy it with the keyboard.")


@pytest.mark.parametrize("width", [320, 360, 768, 1400])
def test_no_width_needs_sideways_scrolling(browser, width):
    media(browser, width, "light")
    draw_all(browser)
    browser.execute_script("for (const each of document.querySelectorAll('details')) each.open = true")
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width
    if width in (360, 1400):  # tables fit without scrolling within them
        script = "return [...document.querySelectorAll(arguments[0])].every((e) => e.scrollWidth <= e.clientWidth + 1)"
        assert browser.execute_script(script, ".scroll:has(#settings-1), .scroll:has(#classes)")
    box = find(browser, "#numbers-chart svg").rect
    assert box["x"] + box["width"] <= width


def test_the_dark_is_dark_and_its_ink_is_light(browser):
    draw_all(browser)

    def light(selector, kind):
        script = "return getComputedStyle(document.querySelector(arguments[0]))[arguments[1]].match(/[\\d.]+/g)"
        return sum(map(float, browser.execute_script(script, selector, kind)[:3])) / 3

    title = ".role-title-text text, .role-title text"
    assert light("body", "backgroundColor") > 200
    assert light("body", "color") < 60
    assert light(title, "fill") < 60
    media(browser, 1400, "dark")
    assert light("body", "backgroundColor") < 60
    assert light("body", "color") > 200
    assert light(title, "fill") > 200
    assert light("#numbers-chart text", "fill") > 120


def test_the_keyboard_reaches_everything_and_sees_where_it_is(browser):
    def tab():
        webdriver.ActionChains(browser).send_keys("\ue004").perform()

    tab()
    skip = browser.switch_to.active_element
    assert skip.get_attribute("class") == "skip"
    assert skip.rect["x"] >= 0
    skip.send_keys("\n")
    assert browser.switch_to.active_element.get_attribute("id") == "main"
    seen = set()
    for _ in range(120):
        tab()
        active = browser.switch_to.active_element
        if active.tag_name == "body":
            break
        seen.add(active.get_attribute("id"))
        style = browser.execute_script("return getComputedStyle(arguments[0]).outlineStyle", active)
        assert style != "none", active.get_attribute("outerHTML")
    assert {
        "baseline",
        "candidate",
        "metric",
        "order",
        "preset",
        "counts",
        "file",
        "prototypes",
        "beta",
        "gamma",
        "copy",
    } <= seen


def test_every_input_has_a_name_for_those_who_do_not_see(browser):
    for element in browser.find_elements("css selector", "input, select, textarea, button"):
        if element.is_displayed():
            assert element.accessible_name, element.get_attribute("outerHTML")


def test_bars_of_the_explorer_have_the_names_of_classes(browser):
    """Level where they fit, slanted where they do not; of many classes, the first and the last."""

    def named(counts):
        put(browser, "#counts", counts)
        script = """return [...document.querySelectorAll('#weights-chart text')]
            .map((text) => [text.textContent, text.getAttribute('transform')])"""
        texts = browser.execute_script(script)
        return [(text, bool(turned)) for text, turned in texts if not text.replace(".", "").isdigit()]

    assert named("owl,90\nlynx,9\nwolf,30") == [("owl", False), ("wolf", False), ("lynx", False)]
    many = "\n".join(f"some animal {letter},{100 - index}" for index, letter in enumerate("abcdefghijklmnop"))
    assert [text for text, turned in named(many) if turned][:2] == ["some animal a", "some animal b"]
    most = "\n".join(f"kind {index:03},{300 - index}" for index in range(200))
    assert named(most) == [("kind 000 (most frequent)", False), ("kind 199 (rarest)", False)]


def test_without_a_confusion_matrix_there_are_no_empty_tables(driver, tmp_path):
    runs = write_runs(tmp_path / "runs")
    for file in runs.glob("*/result.json"):
        with contextlib.suppress(ValueError):  # some are damaged
            content = json.loads(file.read_text())
            content["final"].pop("confusion", None)
            file.write_text(json.dumps(content))
    driver.get(write_page(runs, tmp_path / "report.html").as_uri())
    assert not find(driver, "#confusions").is_displayed()
    assert "have no confusion matrix" in find(driver, "#confusion-about").text
