"""The planner page in a real browser: from a key press to the picture, and from the address to a page that answers."""

import os
import shutil
import statistics
import time
from collections.abc import Iterator

from playwright.sync_api import sync_playwright

from benchmarks.measure import Row, started
from capplan.serve import free_port, serving

PRESSES = 60
SLIDER = ".cpp-field[data-name=max_model_len] .cpp-slider"
READ = (
    "() => document.querySelector('.cp-verdict')?.innerText"
    " + document.querySelector('.cpp-picture .cp-track')?.getAttribute('aria-label')"
)


def latency() -> Iterator[Row]:
    """Milliseconds as microseconds, so that rows read alike; the reference is an interpreter's start."""
    browser_path = os.environ.get("CAPPLAN_CHROMIUM") or shutil.which("chromium")
    reference = started("pass")
    with serving(free_port(0)) as (address, _), sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=browser_path, args=["--no-sandbox"])
        page = browser.new_page()
        loads = []
        for _ in range(3):
            begun = time.perf_counter()
            page.goto(address)
            page.wait_for_selector(".cp-verdict")
            loads.append(time.perf_counter() - begun)
        slider = page.locator(SLIDER).first
        slider.focus()
        times = []
        for i in range(PRESSES):
            before = page.evaluate(READ)
            begun = time.perf_counter()
            page.keyboard.press("ArrowLeft" if i % 4 < 2 else "ArrowRight")
            page.wait_for_function(f"before => ({READ})() !== before", arg=before, polling="raf")
            times.append(time.perf_counter() - begun)
        browser.close()
    times.sort()
    yield Row("page to interactive, best of 3, beside starting Python", min(loads) * 1e6, reference, "")
    yield Row("key press to picture, p50", statistics.median(times) * 1e6, reference, "")
    yield Row("key press to picture, p95", times[int(len(times) * 0.95) - 1] * 1e6, reference, "under 100 ms")
