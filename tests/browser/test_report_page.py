"""The page in a real browser: light, dark, narrow, printed, and with the script doing what it should.

The screenshots are left in the test's temporary folder (run with `--basetemp DIR` to look at them).
"""

import contextlib
import json
import re
import shutil
import subprocess
import zlib
from pathlib import Path

import pytest
from PIL import Image

from analysis.report.build import write_report
from analysis.results import load
from benchmarks.make_results import Plan, Truth, write_sweep

BROWSER = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), None
)

pytestmark = [
    pytest.mark.browser,
    pytest.mark.skipif(BROWSER is None, reason="no Chromium on this machine"),
]

#: Finds what the eye would: text over text, text outside its picture, a page wider than its window.
INSPECT = """
const report = {overlaps: [], clipped: [], wide: 0, texts: 0, errors: window.failures || []};
for (const svg of document.querySelectorAll("figure svg")) {
  const name = svg.closest("figure").id;
  const frame = svg.getBoundingClientRect();
  const boxes = [...svg.querySelectorAll("text")].filter((text) => text.textContent.trim()).map((text) => {
    const box = text.getBoundingClientRect();
    return {text: text.textContent, left: box.left, right: box.right, top: box.top, bottom: box.bottom};
  });
  report.texts += boxes.length;
  for (const box of boxes) {
    const inside = box.left > frame.left - 1 && box.right < frame.right + 1;
    if (!inside || box.top < frame.top - 1 || box.bottom > frame.bottom + 1)
      report.clipped.push(`${name}: ${box.text}`);
  }
  boxes.forEach((a, index) => boxes.slice(index + 1).forEach((b) => {
    // Boxes have the font's full height: two lines of one label may touch by a few pixels.
    const width = Math.min(a.right, b.right) - Math.max(a.left, b.left);
    const height = Math.min(a.bottom, b.bottom) - Math.max(a.top, b.top);
    if (width > 2 && height > 4) report.overlaps.push(`${name}: ${a.text} / ${b.text}`);
  }));
}
report.wide = document.documentElement.scrollWidth - document.documentElement.clientWidth;
"""


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    """The report of a made sweep with failures."""
    folder = tmp_path_factory.mktemp("page")
    plan = Plan(budgets=(8, 16, 32, 48), topks=(1, 4), concurrencies=(1, 8, 64), repeats=2, requests=16)
    write_sweep(folder / "results", plan, Truth(largest_product=128 * 17))
    return write_report(load(folder / "results"), folder / "report").page


def browse(tmp_path, target, *options, window="1280,2000"):
    """Run the browser once on a profile of its own; returns its standard output."""
    command = [
        BROWSER, "--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
        "--disable-background-networking", "--disable-component-update", "--disable-sync", "--hide-scrollbars",
        "--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={tmp_path / 'profile'}",
        f"--window-size={window}", *options, Path(target).as_uri(),
    ]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    return done.stdout


def ask(tmp_path, page, script, *options, **more):
    """Run `script` at the end of a copy of the page; returns what it left in `report`."""
    copy = tmp_path / "copy.html"
    text = page.read_text(encoding="utf-8")
    early = "<script>window.failures=[];addEventListener('error',e=>failures.push(String(e.message)))</script>"
    late = f"<script>{script}\nconst out=document.createElement('pre');out.id='answer';"
    late += "out.textContent=JSON.stringify(report);document.body.append(out)</script></body>"
    copy.write_text(text.replace("<head>", f"<head>{early}", 1).replace("</body>", late, 1), encoding="utf-8")
    dom = browse(tmp_path, copy, "--dump-dom", *options, **more)
    found = re.search(r'<pre id="answer">(.*?)</pre>', dom, re.DOTALL)
    assert found, dom[-500:]
    plain = found.group(1).replace("&lt;", "<").replace("&gt;", ">").replace("&amp;", "&")
    return json.loads(plain)


def paper(picture):
    """Colour of the page's margin."""
    with Image.open(picture) as image:
        return image.convert("RGB").getpixel((3, 300))


def test_light_and_dark_follow_the_reader(page, tmp_path):
    for scheme, blink in (("light", 1), ("dark", 0)):
        browse(
            tmp_path, page, f"--screenshot={tmp_path / scheme}.png", f"--blink-settings=preferredColorScheme={blink}"
        )
    assert min(paper(tmp_path / "light.png")) > 240
    assert max(paper(tmp_path / "dark.png")) < 60


@pytest.mark.parametrize("window", ["1280,2000", "420,2000"])
def test_nothing_overlaps_is_clipped_or_wider_than_the_window(page, tmp_path, window):
    report = ask(tmp_path, page, INSPECT, window=window)
    assert report["errors"] == []
    assert report["texts"] > 200
    assert report["overlaps"] == []
    assert report["clipped"] == []
    assert report["wide"] <= 0


def test_the_inspection_can_fail(page, tmp_path):
    spoil = (
        "const one=document.querySelector('figure svg text');const two=one.cloneNode(true);"
        "two.textContent='over it';one.after(two);"
        "const three=one.cloneNode(true);three.setAttribute('transform','translate(-500 0)');one.after(three);"
        "document.body.style.width='3000px';document.body.style.maxWidth='none';"
    )
    report = ask(tmp_path, page, spoil + INSPECT)
    assert report["overlaps"]
    assert report["clipped"]
    assert report["wide"] > 0


def test_sorting_and_filtering(page, tmp_path):
    script = """
    const table = document.getElementById("numbers");
    const heads = [...table.tHead.rows[0].cells];
    const column = heads.findIndex((head) => head.textContent.startsWith("system"));
    const read = () => [...table.tBodies[0].rows].map((row) => row.cells[column].textContent.trim());
    heads[column].click(); const up = read();
    heads[column].click(); const down = read();
    const box = document.getElementById("filter");
    box.value = "failed"; box.dispatchEvent(new Event("input"));
    const rows = [...table.tBodies[0].rows];
    const report = {up, down, shown: rows.filter((row) => !row.hidden).map((row) => row.textContent),
                    all: rows.length, offered: !box.closest(".filter").hidden};
    """
    report = ask(tmp_path, page, script)

    def numbers(texts):
        return [float(text.replace(",", "")) for text in texts if text != "–"]

    assert report["offered"]
    assert numbers(report["up"]) == sorted(numbers(report["up"]))
    assert numbers(report["down"]) == sorted(numbers(report["down"]), reverse=True)
    assert report["up"][-1] == report["down"][-1] == "–", "rows without a number stay last"
    assert 0 < len(report["shown"]) < report["all"]
    assert all("failed" in text for text in report["shown"])


def test_without_script_everything_is_said(page, tmp_path):
    bare = tmp_path / "bare.html"
    bare.write_text(re.sub(r"<script>.*?</script>", "", page.read_text(encoding="utf-8"), flags=re.DOTALL), "utf-8")
    dom = browse(tmp_path, bare, "--dump-dom")
    for text in ("Which budget pays", "cuda.cublas.execution_failed", "engine:1204", "Ceiling", "verify width parts"):
        assert text in dom
    assert dom.count("<svg") >= 8
    # A filter that cannot work is not offered.
    assert re.search(r'<p class="filter" hidden', dom)


def colors_of(pdf):
    """All fill colours (0..1) that the pages of a PDF use."""
    text = b""
    for found in re.finditer(rb"stream\r?\n(.*?)\r?\nendstream", pdf, re.DOTALL):
        with contextlib.suppress(zlib.error):
            text += zlib.decompress(found.group(1))
    return {tuple(map(float, color.split()[:3])) for color in re.findall(rb"[\d.]+ [\d.]+ [\d.]+ rg", text)}


def close(ink, color):
    return all(abs(part - byte / 255) < 0.01 for part, byte in zip(ink, color, strict=True))


def test_it_prints_on_white_paper_in_a_dark_room(page, tmp_path):
    browse(
        tmp_path, page, f"--print-to-pdf={tmp_path / 'report.pdf'}", "--no-pdf-header-footer",
        "--blink-settings=preferredColorScheme=0",
    )  # fmt: skip
    pdf = (tmp_path / "report.pdf").read_bytes()
    assert pdf.startswith(b"%PDF")
    assert 2 <= len(re.findall(rb"/Type\s*/Page\b", pdf)) <= 30
    inks = colors_of(pdf)
    assert any(max(ink) < 0.2 for ink in inks), "no dark ink on the paper"
    dark_paper, light_ink = (0x16, 0x18, 0x1C), (0xE7, 0xE9, 0xEC)
    for wrong in (dark_paper, light_ink):
        assert not any(close(ink, wrong) for ink in inks), f"the dark theme was printed: {wrong}"
    script = "const report={paper:getComputedStyle(document.documentElement).getPropertyValue('--paper').trim()};"
    assert ask(tmp_path, page, script, "--blink-settings=preferredColorScheme=0") == {"paper": "#16181c"}
