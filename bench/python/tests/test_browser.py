"""The page in headless Chromium: light and dark, on a desk and at phone width."""

import os
import shutil

import pytest
from conftest import measurement

from ropekit_bench import results
from ropekit_bench.report import page

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
  const back = channels(getComputedStyle(document.body).backgroundColor);
  return [...document.querySelectorAll(selector)].map((node) => {
    const style = getComputedStyle(node);
    const drawn = style.fill === "none" ? style.stroke : style.fill;
    const colour = channels(node instanceof SVGElement ? drawn : style.color);
    const [a, b] = [luminance(colour), luminance(back)].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  });
}
"""
OPEN = "document.querySelectorAll('details').forEach((node) => { node.open = true; })"
OVERFLOW = "document.documentElement.scrollWidth - document.documentElement.clientWidth"
CLIPPED = """[...document.querySelectorAll(".chart text")].filter((node) => {
  const [a, b] = [node, node.closest("svg")].map((part) => part.getBoundingClientRect());
  return a.left < b.left || a.right > b.right;
}).map((node) => node.textContent)"""


@pytest.fixture(scope="module")
def html(make, tmp_path_factory):
    names = ("ropekit", "PyTorch naive", "PyTorch cached", "Liger-Kernel", "FlashInfer", "flash-attn", "vLLM")
    records = [
        measurement(name, (1 + i) * 1e-9 * tokens * (0.1 if name == "vLLM" and tokens > 2000 else 1), tokens)
        for tokens in (1024, 2048, 4096)
        for i, name in enumerate(names)
    ]
    absent = {"implementation": "AITER", "version": "", "reason": "aiter is not installed, " * 5}
    path = tmp_path_factory.mktemp("page") / "page.html"
    path.write_text(page.render([results.short(make(records, "A device", [absent]))]), encoding="utf-8")
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
    tab.goto(html)
    assert asked == [html] and not troubles
    assert tab.evaluate(OVERFLOW) == 0, "the page itself must not scroll sideways"
    tab.evaluate(OPEN)
    assert tab.evaluate(OVERFLOW) == 0 and tab.evaluate(CLIPPED) == []
    for figure in tab.query_selector_all(".chart"):
        box = figure.bounding_box()
        assert 300 < box["width"] <= width and box["height"] > 150
    assert min(tab.evaluate(CONTRAST, "p, h1, h2, h3, li, th, td, summary, .chart text")) > 4.5
    assert min(tab.evaluate(CONTRAST, ".chart .line")) > 3
    tab.close()
