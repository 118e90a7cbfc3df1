"""The page and README's figure in headless Chromium: light and dark, on a desk and at phone width."""

import os
import re
import shutil

import pytest
from conftest import ROOT, measurement
from test_lengths import documents

from ropekit_bench import results
from ropekit_bench.report import lengths, page
from ropekit_bench.report.model import machines

CHROMIUM = shutil.which("chromium")
sync_api = pytest.importorskip("playwright.sync_api")
pytestmark = pytest.mark.skipif(
    CHROMIUM is None and "CI" not in os.environ, reason="chromium is not installed"
)

# Relative luminance and contrast as WCAG 2 defines them.
CONTRAST = """
(selector) => {
  const channels = (text) => text.match(/[0-9.]+/g).map(Number);
  const luminance = (rgb) => rgb.slice(0, 3).map((c) => c / 255)
    .map((c) => c <= 0.04045 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4)
    .reduce((sum, c, i) => sum + c * [0.2126, 0.7152, 0.0722][i], 0);
  const back = (node) => {
    for (; node; node = node.parentElement) {
      const rgba = channels(getComputedStyle(node).backgroundColor);
      if (rgba.length === 3 || rgba[3] > 0) return rgba;
    }
    return [255, 255, 255];
  };
  return [...document.querySelectorAll(selector)].map((node) => {
    const style = getComputedStyle(node);
    const drawn = style.fill === "none" ? style.stroke : style.fill;
    const colour = node instanceof SVGElement ? drawn : style.color;
    const [a, b] = [luminance(channels(colour)), luminance(back(node))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  });
}
"""
OPEN = "document.querySelectorAll('details').forEach((node) => { node.open = true; })"
SCROLLERS = """[...document.querySelectorAll(".scroll")].filter((node) => node.scrollWidth > node.clientWidth)
  .map((node) => node.innerText.slice(0, 80))"""
# Legends that share a pixel with a figure.
COVERED = """() => {
  const boxes = (selector) => [...document.querySelectorAll(selector)]
    .map((node) => node.getBoundingClientRect()).filter((box) => box.width);
  const figures = boxes(".chart");
  return boxes(".legend").filter((a) => figures.some((b) => a.left < b.right && b.left < a.right &&
    a.top < b.bottom && b.top < a.bottom)).length;
}"""
# Words of figures that reach beyond their sides.
CLIPPED = """[...document.querySelectorAll(".chart text")].filter((node) => {
  const [a, b] = [node, node.closest("svg")].map((part) => part.getBoundingClientRect());
  return a.left < b.left || a.right > b.right;
}).map((node) => node.textContent)"""
# Words of a figure that share a pixel with others, ticks of axes apart, which touch at most.
OVERLAP = """() => {
  const all = [...document.querySelectorAll("text")].map((t) => [t.textContent, t.getBoundingClientRect()]);
  const meet = (a, b) => a.left + 1 < b.right && b.left + 1 < a.right && a.top + 3 < b.bottom &&
    b.top + 3 < a.bottom;
  return all.flatMap(([one, a], i) => all.slice(i + 1).filter(([, b]) => meet(a, b))
    .map(([other]) => `${one}, ${other}`));
}"""
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"


@pytest.fixture(scope="module")
def html(make, tmp_path_factory):
    names = ("ropekit", "PyTorch naive", "PyTorch cached", "Liger-Kernel", "FlashInfer", "flash-attn", "vLLM")
    records = [
        measurement(name, (1 + i) * 1e-9 * tokens * (0.1 if name == "vLLM" and tokens > 2000 else 1), tokens)
        for tokens in (1024, 2048, 4096)
        for i, name in enumerate(names)
    ]
    looked_for = [{"implementation": "AITER", "version": "", "reason": "aiter is not installed, " * 5}]
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page.render(machines([make(records, "A device", looked_for)])), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def browser():
    with sync_api.sync_playwright() as playwright:
        chromium = playwright.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield chromium
        chromium.close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("width", [390, 1280])
def test_page_reads_well(browser, html, scheme, width):
    tab = browser.new_page(viewport={"width": width, "height": 844}, color_scheme=scheme)
    asked, troubles = [], []
    tab.on("request", lambda request: asked.append(request.url))
    tab.on("console", lambda message: troubles.append(message.text))
    tab.on("pageerror", lambda error: troubles.append(str(error)))
    tab.goto(html)
    assert asked == [html] and not troubles
    assert tab.evaluate(OVERFLOW) == 0, "the page itself must not scroll sideways"
    tab.evaluate(OPEN)
    assert tab.evaluate(OVERFLOW) == 0 and tab.evaluate(COVERED) == 0
    for figure in tab.query_selector_all(".chart"):
        box = figure.bounding_box()
        assert 300 < box["width"] <= width and box["height"] > 150
    assert min(tab.evaluate(CONTRAST, "p, h1, h2, h3, li, th, td, summary, a")) > 4.5
    assert min(tab.evaluate(CONTRAST, ".chart text")) > 4.5
    assert min(tab.evaluate(CONTRAST, ".chart .line")) > 3
    tab.close()


def test_schemes_differ_and_marks_are_seen(browser, html):
    colours = set()
    for scheme in ("light", "dark"):
        tab = browser.new_page(color_scheme=scheme)
        tab.goto(html)
        tab.evaluate(OPEN)
        colours.add(tab.evaluate("getComputedStyle(document.body).backgroundColor"))
        won, lost = (tab.query_selector(f"td.{mark}") for mark in ("won", "lost"))
        assert won.is_visible() and lost.is_visible()
        assert re.match("▼ 0.", lost.inner_text())
        tab.close()
    assert len(colours) == 2


def test_the_verdict_is_seen_at_phone_width(browser, make, tmp_path):
    records = []
    for label, tokens, cache, dim in (
        ("DeepSeek MLA", 131072, "cold", 64),
        ("Llama-3-8B", 1024, "warm", 128),
    ):
        for name in ("ropekit", "torch.compile cached"):
            record = measurement(name, 2e-6 if name == "ropekit" else 1e-6, tokens, label=label, cache=cache)
            record["shape"] |= {"head_dim": dim, "dtype": "bf16" if dim == 64 else "f32"}
            records.append(record)
    path = tmp_path / "page.html"
    path.write_text(page.render(machines([make(records, "A device")])), encoding="utf-8")
    tab = browser.new_page(viewport={"width": 390, "height": 844})
    tab.goto(path.as_uri())
    tab.evaluate(OPEN)
    boxes = [cell.bounding_box() for cell in tab.query_selector_all("td.lost")]
    assert len(boxes) == 4  # where the call is not first, and among all cases
    assert all(box["x"] >= 0 and box["x"] + box["width"] <= 390 for box in boxes)
    assert tab.evaluate(OVERFLOW) == 0
    tab.close()


def test_why_a_peer_is_absent_is_read_without_scrolling_at_phone_width(browser, make, tmp_path):
    called = "torch.compile(cached, dynamic=False), " * 3
    reason = "ImportError: /opt/python/lib/python3.13/site-packages/aiter/library.so: no such file, " * 2
    looked_for = [
        {"implementation": "torch.compile cached", "version": "2.13.0+cu130", "reason": ""},
        {"implementation": "Transformer Engine", "version": "", "reason": reason},
    ]
    records = [measurement(name, 1e-6) for name in ("ropekit", "torch.compile cached")]
    records[1]["kernel"] = called
    path = tmp_path / "page.html"
    path.write_text(page.render(machines([make(records, "A device", looked_for)])), encoding="utf-8")
    for width in (390, 1280):
        tab = browser.new_page(viewport={"width": width, "height": 844})
        tab.goto(path.as_uri())
        tab.evaluate(OPEN)
        cells = [tab.get_by_role("cell", name=text.strip()).first for text in (called, reason)]
        boxes = [cell.bounding_box() for cell in cells]
        assert all(box["x"] >= 0 and box["x"] + box["width"] <= width for box in boxes)
        assert min(box["width"] for box in boxes) > 130
        tab.close()


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The page of bench/results."""
    path = tmp_path_factory.mktemp("kept") / "page.html"
    files = sorted((ROOT / "bench/results").glob("*.json"))
    path.write_text(page.render(machines([results.read(file) for file in files])), encoding="utf-8")
    return path


def test_the_page_of_our_results_is_small_and_nothing_scrolls_sideways(browser, kept):
    assert kept.stat().st_size <= 1_500_000
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    tab.goto(kept.as_uri())
    for section in ("#floor", "#devices", "#behind"):
        box = tab.query_selector(section).bounding_box()
        assert box["y"] + min(box["height"], 300) < 1000, f"{section} is not on the opening screen"
    assert not any(tab.evaluate("[...document.querySelectorAll('details')].map((node) => node.open)"))
    tab.evaluate(OPEN)
    assert tab.evaluate(OVERFLOW) == 0 and tab.evaluate(SCROLLERS) == [] and tab.evaluate(COVERED) == 0
    assert tab.evaluate(CLIPPED) == []
    tab.close()


def test_a_cell_of_the_grid_opens_its_suite(browser, kept):
    tab = browser.new_page(viewport={"width": 1280, "height": 1000})
    tab.goto(kept.as_uri())
    tab.click("#floor td a")
    place = tab.query_selector("#floor td a").get_attribute("href")
    assert tab.query_selector(f"[id='{place[1:]}']").bounding_box()["y"] < 1000
    assert tab.query_selector(f"[id='{place[1:]}'] > summary").is_visible()
    tab.close()


def read_at_800_pixels(browser, path, scheme):
    """The figure's tab, in which words and lines are seen, and none leaves it."""
    tab = browser.new_page(viewport={"width": 800, "height": 600}, color_scheme=scheme)
    tab.goto(path.as_uri())
    assert min(tab.evaluate(CONTRAST, "text")) > 4.5 and min(tab.evaluate(CONTRAST, ".line")) > 3
    sizes = tab.evaluate(
        "[...document.querySelectorAll('text')].map((t) => t.getBoundingClientRect().height)"
    )
    assert min(sizes) > 11
    ends = tab.evaluate("[...document.querySelectorAll('text')].map((t) => t.getBoundingClientRect().right)")
    assert max(ends) <= 800
    return tab


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figure_of_the_readme_is_read_at_800_pixels(browser, scheme):
    read_at_800_pixels(browser, ROOT / "docs/bandwidth.svg", scheme).close()


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_figure_of_lengths_is_read_at_800_pixels(browser, scheme, make, tmp_path):
    path = tmp_path / "attention.svg"
    path.write_text(lengths.figure(machines(documents(make))), encoding="utf-8")
    tab = read_at_800_pixels(browser, path, scheme)
    assert tab.evaluate(OVERLAP) == []
    tab.close()


@pytest.mark.parametrize("width", [390, 1280])
def test_lengths_are_read_on_the_page(browser, make, tmp_path, width):
    path = tmp_path / "page.html"
    path.write_text(page.render(machines(documents(make))), encoding="utf-8")
    tab = browser.new_page(viewport={"width": width, "height": 844})
    tab.goto(path.as_uri())
    tab.evaluate(OPEN)
    assert tab.evaluate(OVERFLOW) == 0 and tab.evaluate(COVERED) == 0 and tab.evaluate(CLIPPED) == []
    assert tab.get_by_text("RoPE tax, %").count() == 4  # two families, two directions
    assert tab.get_by_text("loses from 8K tokens on").first.is_visible()
    tab.close()
