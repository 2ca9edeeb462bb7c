"""The planner in a browser, served by Voila as `python -m capplan.serve` does it."""

import json
from pathlib import Path

import pytest
from playwright.sync_api import Browser, Page, expect, sync_playwright

from capplan.serve import free_port, serving

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
HERE = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
PAPER = {"light": "rgb(247, 246, 243)", "dark": "rgb(21, 22, 21)"}
MUTED = {"light": "rgb(104, 101, 95)", "dark": "rgb(165, 162, 154)"}
"""Voila's page says this when it is left, and Voila refuses it for want of a cookie that it never set."""

DRAWN = "document.querySelectorAll('.cpp-plot .main-svg').length >= 2"


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with (
        (tmp_path_factory.mktemp("voila") / "voila.log").open("wb") as log,
        serving(free_port(0), log=log) as (found, _),
    ):
        yield found


@pytest.fixture(scope="module")
def browser(chromium_path):
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium_path)
        yield started
        started.close()


class Visit:
    """A page and what went wrong on it: requests that leave this machine, errors of the console and of scripts."""

    def __init__(self, browser: Browser, address: str) -> None:
        self.browser, self.address, self.faults = browser, address, []

    def open(self, query: str = "", *, width: int = 1300, height: int = 950, **context) -> Page:
        self.context = self.browser.new_context(
            viewport={"width": width, "height": height}, accept_downloads=True, **context
        )
        page = self.context.new_page()
        page.on("request", lambda request: request.url.startswith(HERE) or self.faults.append(f"asks {request.url}"))
        page.on("websocket", lambda socket: socket.url.startswith(HERE) or self.faults.append(f"asks {socket.url}"))
        page.on(
            "console",
            lambda line: line.type == "error" and self.faults.append(line.text),
        )
        page.on("pageerror", lambda error: self.faults.append(str(error)))
        page.on("dialog", lambda dialog: (self.faults.append(f"says {dialog.message}"), dialog.dismiss()))
        page.goto(f"{self.address}{'?' + query if query else ''}")
        expect(page.locator(".cp-badge")).to_be_visible(timeout=60_000)
        return page


@pytest.fixture
def visit(browser, address):
    found = Visit(browser, address)
    yield found
    found.context.close()
    assert found.faults == []


def badge(page: Page):
    return page.locator(".cp-badge")


def headline(page: Page):
    return page.locator(".cp-headline")


def bar(page: Page) -> str:
    return track(page).get_attribute("aria-label")


def track(page: Page):
    return page.locator(".cpp-picture .cp-track").first


def field(page: Page, name: str):
    return page.locator(f".cpp-field[data-name={name}]")


def type_in(page: Page, name: str, text: str) -> None:
    box = field(page, name).locator("input.cpp-box")
    box.fill(text)
    box.press("Enter")


# Each visit starts a kernel, which takes seconds: a test is a visit with a purpose, not a single step.


def test_a_first_visit_finds_an_answer_that_fits_every_screen(visit):
    page = visit.open()
    expect(badge(page)).to_contain_text("Fits")
    expect(headline(page)).to_contain_text("Qwen3-32B in bfloat16 on 4 × H100 SXM 80 GB, requests up to 32,768 tokens")
    page.wait_for_function(DRAWN)
    SHOTS.mkdir(parents=True, exist_ok=True)
    for name, width, scheme in (
        ("light", 1300, "light"),
        ("dark", 1300, "dark"),
        ("narrow", 400, "light"),
        ("narrow-dark", 400, "dark"),
    ):
        page.set_viewport_size({"width": width, "height": 950})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_function(f"document.querySelector('.cpp-plot .xtick text').style.fill === '{MUTED[scheme]}'")
        page.screenshot(path=SHOTS / f"planner-{name}.png", full_page=True)
        paper = page.locator(".cpp-page").evaluate("node => getComputedStyle(node).backgroundColor")
        assert paper == PAPER[scheme]
    for more in page.locator(".cpp-more summary").all():
        more.click()
    for width in (360, 400, 700, 900, 1160, 2560):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.mouse.wheel(0, 900)
        page.wait_for_function("scrollY > 300")
        expect(badge(page)).to_be_in_viewport(ratio=1)
        page.evaluate("scrollTo(0, 0)")


def test_the_keyboard_alone_is_enough(visit):
    page = visit.open()
    before = bar(page)
    figures = page.locator(".cp-figures").inner_text()
    field(page, "max_model_len").locator(".cpp-slider").focus()
    page.keyboard.press("ArrowLeft")
    expect(headline(page)).to_contain_text("24,576 tokens")
    assert page.locator(".cp-figures").inner_text() != figures
    page.keyboard.press("Home")
    expect(headline(page)).to_contain_text("1,024 tokens")
    page.keyboard.press("Tab")
    page.keyboard.press("Control+a")
    page.keyboard.type("32K")
    page.keyboard.press("Enter")
    expect(headline(page)).to_contain_text("32,768 tokens")
    expect(track(page)).to_have_attribute("aria-label", before)

    size = field(page, "tensor_parallel_size")
    expect(size.locator("input[value='6']")).to_be_disabled()
    expect(size.get_by_title("64 heads, which 6 ranks cannot share")).to_have_text("6")
    size.locator("input[value='4']").focus()
    page.keyboard.press("ArrowRight")
    expect(headline(page)).to_contain_text("8 × H100")
    expect(size.locator("input[value='8']")).to_be_focused()
    expect(track(page)).not_to_have_attribute("aria-label", before)

    box = field(page, "model").get_by_role("combobox")
    box.focus()
    page.keyboard.type("gemma 9b")
    expect(page.locator(".cpp-list").get_by_role("option")).to_have_count(1)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("Enter")
    expect(headline(page)).to_contain_text("gemma-2-9b-it")
    expect(page.locator(".cpp-news")).to_contain_text("max_model_len moved from 32,768 to 8,192")


def test_the_mouse_moves_controls_and_applies_changes(visit):
    page = visit.open()
    before = bar(page)
    budget = page.locator(".cpp-picture .cp-flags").last
    row = page.locator(".cpp-ledger details").first
    row.locator("summary").first.click()
    slider = field(page, "gpu_memory_utilization").locator(".cpp-slider")
    slider.scroll_into_view_if_needed()
    box = slider.bounding_box()
    page.mouse.move(box["x"] + box["width"] * 0.85, box["y"] + box["height"] / 2)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] * 0.5, box["y"] + box["height"] / 2, steps=8)
    page.mouse.up()
    expect(budget).not_to_contain_text("0.92")
    expect(track(page)).not_to_have_attribute("aria-label", before)
    field(page, "gpu_memory_utilization").locator(".cpp-back").click()
    expect(budget).to_contain_text("0.92")
    expect(track(page)).to_have_attribute("aria-label", before)
    page.locator(".cpp-picture [data-term=activations]").first.click()
    expect(page.locator(".cpp-ledger [data-line=activations] details")).to_have_attribute("open", "")
    # What the reader has unfolded stays so while the figures change.
    expect(row).to_have_attribute("open", "")

    field(page, "tensor_parallel_size").locator("label").first.click()
    expect(headline(page)).to_contain_text("on H100 SXM 80 GB")
    expect(track(page)).not_to_have_attribute("aria-label", before)
    page.get_by_role("button", name="Apply --tensor-parallel-size 2").click()
    expect(headline(page)).to_contain_text("2 × H100")
    page.get_by_role("button", name="the cache does not fit").click()
    expect(badge(page)).to_contain_text("Does not fit")
    expect(page.locator(".cpp-picture")).to_contain_text("over, for one request")


def test_the_address_follows_and_restores_everything(visit):
    page = visit.open()
    type_in(page, "max_num_seqs", "64")
    field(page, "kv_cache_dtype").locator("label", has_text="fp8").click()
    line = page.locator("code.cp-command")
    expect(line).to_contain_text("--kv-cache-dtype fp8")
    said = {"tensor_parallel_size=4", "kv_cache_dtype=fp8", "max_model_len=32768", "max_num_seqs=64"}
    said |= {"model=Qwen/Qwen3-32B", "chip=h100-sxm"}
    page.wait_for_url(lambda url: set(url.partition("?")[2].split("&")) == said)
    figures, words = page.locator(".cp-figures").inner_text(), line.inner_text()
    page.reload()
    expect(badge(page)).to_be_visible(timeout=60_000)
    assert page.locator(".cp-figures").inner_text() == figures
    assert line.inner_text() == words
    expect(field(page, "max_num_seqs").locator("input")).to_have_value("64")
    expect(field(page, "kv_cache_dtype").locator("input[value=fp8]")).to_be_checked()


def test_whatever_is_typed_the_last_good_answer_stays_in_view(visit):
    page = visit.open()
    before, address = bar(page), page.url
    figures = page.locator(".cp-figures").inner_text()
    box = field(page, "max_num_seqs").locator("input")
    for text in ("banana", "-", "1e999", "<b>32</b>", "nan"):
        type_in(page, "max_num_seqs", text)
        expect(page.locator(".cp-note")).to_contain_text(f"max_num_seqs is '{text}'")
        expect(box).to_have_attribute("aria-invalid", "true")
        expect(box).to_have_value(text)
        assert (bar(page), page.locator(".cp-figures").inner_text(), page.url) == (before, figures, address)
    type_in(page, "max_num_seqs", "1K")
    expect(page.locator(".cp-note")).to_have_count(0)
    expect(box).to_have_value("1,024")

    type_in(page, "model", "no/such-model")
    expect(page.locator(".cp-note")).to_contain_text("there is no model 'no/such-model'")
    expect(field(page, "model").get_by_role("combobox")).to_have_value("no/such-model")
    type_in(page, "gpu_memory_utilization", "nan")
    expect(page.locator(".cp-verdict")).to_contain_text("_memory_utilization is nan")
    type_in(page, "gpu_memory_utilization", "")
    type_in(page, "max_model_len", "200000")
    expect(badge(page)).to_contain_text("Refused")
    expect(page.locator(".cpp-news")).to_contain_text("The figures below are still those of Qwen3-32B")
    expect(track(page)).to_have_attribute("aria-label", before)
    page.get_by_role("button", name="Apply --max-model-len 40960").click()
    expect(badge(page)).to_contain_text("Fits")


def test_an_address_cannot_bring_markup(visit):
    markup = "<img src=x onerror=alert(1)>"
    page = visit.open(f"model={markup}&{markup}=1&chip=%22><script>alert(1)</script>&max_num_seqs=32")
    expect(headline(page)).to_contain_text("Qwen3-32B")
    expect(page.locator(".cpp-news")).to_contain_text(markup)
    expect(field(page, "max_num_seqs").locator("input")).to_have_value("32")
    assert page.locator(".cpp-page :is(img, script)").count() == 0


def test_a_link_to_what_the_engine_refuses_shows_why_in_every_view(visit):
    page = visit.open("model=Qwen/Qwen3-32B&tensor_parallel_size=5")
    expect(badge(page)).to_contain_text("Refused")
    expect(field(page, "tensor_parallel_size").locator("input[value='5']")).to_be_checked()
    page.wait_for_function(DRAWN)
    page.get_by_role("button", name="Apply --tensor-parallel-size 4").click()
    expect(badge(page)).to_contain_text("Fits")


def test_command_and_link_are_copied_and_files_saved(visit):
    page = visit.open(permissions=["clipboard-read", "clipboard-write"])
    page.get_by_role("button", name="Copy command").click()
    expect(page.get_by_text("Command copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.locator("code.cp-command").inner_text()
    page.get_by_role("button", name="Copy link").click()
    expect(page.get_by_text("Link copied")).to_be_visible()
    assert page.evaluate("navigator.clipboard.readText()") == page.url
    with page.expect_download() as saved:
        page.get_by_role("button", name="JSON").click()
    answer = json.loads(Path(saved.value.path()).read_text())
    assert (saved.value.suggested_filename, answer["verdict"]) == ("capplan-Qwen3-32B.json", "fits")
    with page.expect_download() as saved:
        page.get_by_role("button", name="CSV").click()
    assert Path(saved.value.path()).read_text().splitlines()[1].startswith("weights_bytes,")
