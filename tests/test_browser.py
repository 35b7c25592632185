"""The page in a browser, opened from disk without network: no errors, and everything that can be done with it."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from report_helpers import comparison, written
from test_page import HOSTILE
from test_report import record
from test_scale_cli import Stub, blank

from lrbench.reporting.document import document
from lrbench.reporting.page import page as rendered

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
WIDE, NARROW = (1280, 900), (390, 800)


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A page of two tasks, three models, hostile names and a scaling study that ran out of memory."""
    root = tmp_path_factory.mktemp("results")
    bad = [record(HOSTILE, seed, 45 + seed) for seed in range(3)] + [record("linear", 0, None, reason=HOSTILE)]
    written(root, [*comparison(), *bad, *comparison("text"), *comparison("image")])
    _study(root)
    out = root / "report.html"
    out.write_text(rendered(document([root])), encoding="utf-8")
    return out


def _study(root: Path) -> None:
    from lrbench import scalestudy
    from lrbench.specs import ScaleGrid, parse

    grid = {"models": ["full", "full[impl=math]", "linear"], "lengths": "512..16384", "device": "cpu"}
    with pytest.MonkeyPatch.context() as patch:
        stub = Stub()
        stub.instead = lambda spec: blank(spec, "oom") if spec.length == 16384 and spec.attention.settings else None
        patch.setattr("lrbench.study.run_study", stub)
        scalestudy.run_studies(parse(ScaleGrid, grid, "scale"), scalestudy.Request(root, root / "cache"))


@pytest.fixture(scope="module")
def browser() -> "Iterator[Browser]":
    if CHROMIUM is None:
        # whoever runs all checks has a browser; a laptop without one still runs the other tests
        (pytest.fail if os.environ.get("CI") else pytest.skip)("no Chromium here: apt-get install chromium")
    from playwright.sync_api import sync_playwright

    with sync_playwright() as driver:
        found = driver.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox", "--disable-gpu"])
        yield found
        found.close()


class Seen:
    """A page with what went wrong in it."""

    def __init__(self, browser: "Browser", file: Path, size: tuple[int, int] = WIDE, **more: Any) -> None:
        self.context = browser.new_context(viewport={"width": size[0], "height": size[1]}, offline=True, **more)
        self.page: Page = self.context.new_page()
        self.wrong: list[str] = []
        self.page.on("console", lambda message: self.wrong.append(message.text) if message.type == "error" else None)
        self.page.on("pageerror", lambda error: self.wrong.append(str(error)))
        self.page.on("dialog", lambda dialog: self.wrong.append(f"dialog: {dialog.message}"))
        self.page.on("request", self._asked)
        self.page.set_default_timeout(10_000)
        self.page.goto(file.as_uri())

    def _asked(self, request: Any) -> None:
        if not request.url.startswith(("file:", "data:", "blob:")):
            self.wrong.append(request.url)

    def __enter__(self) -> "Seen":
        return self

    def __exit__(self, *error: object) -> None:
        self.context.close()
        if error[0] is None:
            assert self.wrong == []

    def drawn(self, name: str) -> Any:
        """A chart, chosen where only one is shown, scrolled to and drawn."""
        chart = self.page.locator(f"figure.chart[id$='{name}']")
        if not chart.is_visible():
            self.page.locator("section", has=chart).locator(".choose select").select_option(name)
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
        return chart

    def traces(self, name: str) -> list[dict[str, Any]]:
        """What a chart that was drawn holds, by plotly's own account."""
        script = """plot => plot._fullData.map(
            trace => ({model: trace.meta, visible: trace.visible, colour: trace.line && trace.line.color}))"""
        return self.drawn(name).locator(".plot").evaluate(script)


@pytest.fixture(params=[WIDE, NARROW], ids=["wide", "narrow"])
def seen(request: pytest.FixtureRequest, browser: "Browser", file: Path) -> Iterator[Seen]:
    with Seen(browser, file, request.param) as seen:
        yield seen


def test_all_of_it_is_drawn_without_an_error_and_nothing_is_wider_than_the_screen(
    seen: Seen, browser: "Browser", tmp_path: Path
) -> None:
    for number in range(seen.page.locator("figure.chart:visible").count()):
        chart = seen.page.locator("figure.chart:visible").nth(number)
        chart.scroll_into_view_if_needed()
        chart.locator(".main-svg").first.wait_for()
    width = seen.page.viewport_size["width"]
    assert seen.page.evaluate("document.documentElement.scrollWidth") <= width
    seen.page.evaluate("scrollTo(0, 0)")
    shots = Path(os.environ.get("LRBENCH_SCREENSHOTS") or tmp_path)
    shots.mkdir(parents=True, exist_ok=True)
    seen.page.screenshot(path=shots / f"report-{width}.png", full_page=True)
    assert (shots / f"report-{width}.png").stat().st_size > 50_000


def test_a_script_in_a_name_does_not_run(seen: Seen) -> None:
    assert seen.page.get_by_text("<script>alert(1)</script>", exact=False).count() > 3
    seen.drawn("trade-off-listops-small")  # names are drawn in the chart, too
    legend = seen.page.locator("#trade-off-listops-small .legendtext").all_text_contents()
    assert any("<script>alert(1)</script><b>bold</b>" in text for text in legend), legend


def test_a_header_sorts_by_number_both_ways_and_keeps_gaps_last(seen: Seen) -> None:
    table = seen.page.locator("#table-costs table")
    table.locator("thead th").nth(0).get_by_role("button").click()
    tasks = table.locator("tbody tr > :first-child").all_text_contents()
    assert tasks == sorted(tasks) and len(set(tasks)) == 3
    scores = seen.page.locator("#table-scores-listops-small table")
    sort = scores.locator("thead th").nth(2).get_by_role("button")
    first = scores.locator("tbody").first.locator("tr:not(.title) > :nth-child(3)")
    sort.focus()
    seen.page.keyboard.press("Enter")  # as without a mouse
    rising = [float(text.split()[0]) for text in first.all_text_contents()]
    assert rising == sorted(rising) and len(rising) == 4
    assert scores.locator("thead th").nth(2).get_attribute("aria-sort") == "ascending"
    sort.click()
    assert [float(text.split()[0]) for text in first.all_text_contents()] == rising[::-1]
    titles = [text.strip() for text in scores.locator("tr.title").all_text_contents()]
    assert titles == ["apples-to-apples", "failed", "without any model"]  # groups stay where they are


def test_a_filter_leaves_rows_with_all_its_words(seen: Seen) -> None:
    figure = seen.page.locator("#table-runs")
    total = figure.locator("tbody tr").count()
    figure.get_by_role("searchbox").fill("text perf")
    assert figure.locator("tbody tr:visible").count() == 4 < total
    figure.get_by_role("searchbox").fill("")
    assert figure.locator("tbody tr:visible").count() == total


def test_the_legend_hides_a_model_in_all_charts(seen: Seen) -> None:
    before = [trace for trace in seen.traces("-time") if trace["model"] == "full"]
    assert before and all(trace["visible"] is True for trace in before)
    seen.drawn("trade-off-listops-small")
    legend = seen.page.locator("figure.chart[id$='-time'] .legend .traces", has_text="full").first
    legend.scroll_into_view_if_needed()
    legend.locator(".legendtoggle").click(force=True)
    seen.page.wait_for_timeout(500)  # plotly waits for a second click
    for chart in ("-time", "-memory", "trade-off-listops-small"):
        mine = [trace for trace in seen.traces(chart) if trace["model"] == "full"]
        assert mine and all(trace["visible"] == "legendonly" for trace in mine), chart
        assert all(trace["visible"] is True for trace in seen.traces(chart) if trace["model"] == "performer")
    seen.page.locator("details.models summary").click()
    box = seen.page.locator("details.models input[value='full']")
    assert not box.is_checked()
    box.check()
    assert all(trace["visible"] is True for trace in seen.traces("-time"))


def test_pointing_at_a_point_tells_length_and_value(browser: "Browser", file: Path) -> None:
    with Seen(browser, file) as seen:
        chart = seen.drawn("-time")
        seen.page.wait_for_timeout(300)
        chart.locator(".scatterlayer .points path").first.hover(force=True)
        label = chart.locator(".hoverlayer .hovertext")
        label.first.wait_for()
        assert "n = 512" in label.first.text_content() and "ms" in label.first.text_content()


def test_what_ran_out_of_memory_is_marked_at_its_length(browser: "Browser", file: Path) -> None:
    with Seen(browser, file) as seen:
        seen.drawn("-time")
        texts = seen.page.locator("figure.chart[id$='-time'] .textpoint").all_text_contents()
        assert texts.count("oom") == 1 and {"n", "n²"} <= set(texts)


def test_dark_is_dark_and_black_lines_turn_light(browser: "Browser", file: Path) -> None:
    with Seen(browser, file, color_scheme="dark") as seen:
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(22, 24, 27)"
        full = [trace for trace in seen.traces("-time") if trace["model"] == "full"]
        assert full[-1]["colour"] == "#f2f2f2"
        seen.page.emulate_media(color_scheme="light")
        seen.page.wait_for_timeout(300)
        assert [trace for trace in seen.traces("-time") if trace["model"] == "full"][-1]["colour"] == "#000000"


def test_print_has_light_charts_and_no_tools(browser: "Browser", file: Path, tmp_path: Path) -> None:
    with Seen(browser, file, color_scheme="dark") as seen:
        seen.drawn("-time")
        seen.page.emulate_media(media="print", color_scheme="dark")
        assert not seen.page.locator(".tools").first.is_visible()
        assert seen.page.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
        seen.page.pdf(path=tmp_path / "page.pdf")
        assert (tmp_path / "page.pdf").read_bytes().startswith(b"%PDF")


def test_of_many_charts_one_is_shown_at_a_time(seen: Seen) -> None:
    select = seen.page.locator("#curves select")
    assert seen.page.locator("#curves figure.chart:visible").count() == 1
    select.select_option("curve-text-small")
    assert seen.drawn("curve-text-small").is_visible()
    assert not seen.page.locator("#curve-listops-small").is_visible()


@pytest.mark.parametrize("form, begins", [("Markdown", "| model"), ("LaTeX", "\\begin{tabular}"), ("CSV", "model,n,")])
def test_a_table_is_copied_as_it_is_seen(browser: "Browser", file: Path, form: str, begins: str) -> None:
    with Seen(browser, file, permissions=["clipboard-read", "clipboard-write"]) as seen:
        figure = seen.page.locator("#table-scores-listops-small")
        figure.get_by_role("searchbox").fill("performer")
        figure.get_by_role("button", name=form).click()
        figure.locator(".said", has_text=f"copied as {form}").wait_for()
        text = seen.page.evaluate("navigator.clipboard.readText()")
        assert text.startswith(begins) and "performer" in text and "local" not in text


def test_it_is_usable_without_a_mouse_and_by_ear(browser: "Browser", file: Path) -> None:
    with Seen(browser, file) as seen:
        seen.page.keyboard.press("Tab")
        assert seen.page.evaluate("document.activeElement.textContent") == "Skip to the scores"
        assert seen.page.locator("table:not(:has(caption))").count() == 0
        assert seen.page.locator("th:not([scope])").count() == 0
        unnamed = """[...document.querySelectorAll("button, input, select")].filter(
            each => !(each.textContent.trim() || each.ariaLabel || each.labels?.length)).length"""
        assert seen.page.evaluate(unnamed) == 0
        assert seen.page.locator(".plot:not([aria-label])").count() == 0
        assert seen.page.evaluate("document.documentElement.lang") == "en"


def test_without_scripts_everything_is_there_to_read(browser: "Browser", file: Path) -> None:
    with Seen(browser, file, java_script_enabled=False) as seen:
        assert seen.page.locator("#table-scores-text-small tbody tr").count() > 4
        assert not seen.page.locator(".tools").first.is_visible()
