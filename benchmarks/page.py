"""The planner page in a real browser: from a key press to the picture, and from the address to a page that answers."""

import os
import shutil
import statistics
import time
from collections.abc import Iterator
from pathlib import Path

from playwright.sync_api import Page, sync_playwright

from benchmarks.measure import Row, started
from capplan.serve import free_port, serving

PRESSES = 60
REST_MS = 300
SLIDER = ".cpp-field[data-name=max_model_len] .cpp-slider"
READ = (
    "() => document.querySelector('.cp-verdict')?.innerText"
    " + document.querySelector('.cpp-picture .cp-track')?.getAttribute('aria-label')"
)


def latency() -> Iterator[Row]:
    """Milliseconds as microseconds, so that rows read alike; the reference is an interpreter's start."""
    browser_path = os.environ.get("CAPPLAN_CHROMIUM") or shutil.which("chromium")
    reference = started("pass")
    with (
        Path(os.devnull).open("wb") as quiet,
        serving(free_port(0), log=quiet) as (address, _),
        sync_playwright() as playwright,
    ):
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        loads = []
        for _ in range(3):
            begun = time.perf_counter()
            page.goto(address)
            page.wait_for_selector(".cp-verdict")
            loads.append(time.perf_counter() - begun)
        page.locator(SLIDER).first.focus()
        single, held = presses(page, rest_ms=REST_MS), presses(page, rest_ms=0)
        browser.close()
    yield Row("page to interactive, best of 3, beside starting Python", min(loads) * 1e6, reference, "")
    yield Row("key press to picture, p50", statistics.median(single) * 1e6, reference, "")
    yield Row("key press to picture, p95", single[int(len(single) * 0.95) - 1] * 1e6, reference, "under 100 ms")
    yield Row("the next press while charts still draw, p50", statistics.median(held) * 1e6, reference, "")
    yield Row("the next press while charts still draw, p95", held[int(len(held) * 0.95) - 1] * 1e6, reference, "")


def presses(page: Page, *, rest_ms: int) -> list[float]:
    """Seconds from each of many key presses to a changed verdict and bar, sorted.

    rest_ms  pause after each, in which the charts below follow; 0 presses again at once
    """
    times = []
    for i in range(PRESSES):
        before = page.evaluate(READ)
        begun = time.perf_counter()
        page.keyboard.press("ArrowLeft" if i % 4 < 2 else "ArrowRight")
        page.wait_for_function(f"before => ({READ})() !== before", arg=before, polling="raf")
        times.append(time.perf_counter() - begun)
        page.wait_for_timeout(rest_ms)
    return sorted(times)
