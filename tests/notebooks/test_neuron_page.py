"""The Neuron page in a browser, served by Voila as `python -m capplan.serve --notebook neuron` does it."""

import socket
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect, sync_playwright

from capplan.serve import HOST, serving

SHOTS = Path(__file__).resolve().parents[2] / "build" / "screenshots"
HERE = ("http://127.0.0.1:", "ws://127.0.0.1:", "data:", "blob:")
PAPER = {"light": "rgb(247, 246, 243)", "dark": "rgb(21, 22, 21)"}
MUTED = {"light": "rgb(104, 101, 95)", "dark": "rgb(165, 162, 154)"}
DRAWN = "document.querySelectorAll('.cpp-plot .main-svg').length >= 2"


def any_port() -> int:
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return probe.getsockname()[1]


@pytest.fixture(scope="module")
def address(tmp_path_factory):
    with (
        (tmp_path_factory.mktemp("voila") / "voila.log").open("wb") as log,
        serving(any_port(), notebook="neuron", log=log) as (found, _),
    ):
        yield found


@pytest.fixture(scope="module")
def browser(chromium_path):
    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=chromium_path)
        yield started
        started.close()


@pytest.fixture
def visit(browser, address):
    """Open the page with a query; at the end nothing may have left this machine or gone wrong in the browser."""
    faults, context = [], browser.new_context(viewport={"width": 1360, "height": 950})

    def open_page(query: str = "") -> Page:
        page = context.new_page()
        page.on("request", lambda request: request.url.startswith(HERE) or faults.append(f"asks {request.url}"))
        page.on("websocket", lambda line: line.url.startswith(HERE) or faults.append(f"asks {line.url}"))
        page.on("console", lambda line: line.type == "error" and faults.append(line.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"{address}{'?' + query if query else ''}")
        expect(page.locator(".cp-badge")).to_be_visible(timeout=60_000)
        return page

    yield open_page
    context.close()
    assert faults == []


def field(page: Page, name: str):
    return page.locator(f".cpp-field[data-name={name}]")


def type_in(page: Page, name: str, text: str) -> None:
    box = field(page, name).locator("input.cpp-box")
    box.fill(text)
    box.press("Enter")


def figures(page: Page):
    return page.locator(".cp-figures")


def shoot(page: Page, name: str) -> None:
    SHOTS.mkdir(parents=True, exist_ok=True)
    for look, width, scheme in (("light", 1360, "light"), ("dark", 1360, "dark"), ("narrow", 400, "light")):
        page.set_viewport_size({"width": width, "height": 950})
        page.emulate_media(color_scheme=scheme, reduced_motion="reduce")
        page.wait_for_function(f"document.querySelector('.cpp-plot .xtick text').style.fill === '{MUTED[scheme]}'")
        page.screenshot(path=SHOTS / f"neuron-{name}-{look}.png", full_page=True)
        paper = page.locator(".cpp-page").evaluate("node => getComputedStyle(node).backgroundColor")
        assert paper == PAPER[scheme]
    page.set_viewport_size({"width": 1360, "height": 950})


def test_both_policies_on_every_screen(visit):
    page = visit()
    expect(page.locator(".cp-badge")).to_contain_text("Fits")
    expect(page.locator(".cp-headline")).to_contain_text("8 logical cores of Trainium3 at LNC 2")
    for words in ("17.00 GiB", "61,895", "15"):
        expect(figures(page)).to_contain_text(words)
    page.locator(".cpp-plot").last.scroll_into_view_if_needed()
    page.wait_for_function(DRAWN)
    shoot(page, "headroom")
    field(page, "policy").locator("label", has_text="default").click()
    expect(figures(page)).to_contain_text("9.72 GiB")
    shoot(page, "default")
    for more in page.locator(".cpp-more summary").all():
        more.click()
    for width in (360, 400, 700, 900, 1160, 2560):
        page.set_viewport_size({"width": width, "height": 700})
        assert page.evaluate("document.documentElement.scrollWidth") <= width
        page.mouse.wheel(0, 900)
        page.wait_for_function("scrollY > 300")
        expect(page.locator(".cp-badge")).to_be_in_viewport(ratio=1)
        page.evaluate("scrollTo(0, 0)")


def test_keyboard_and_mouse_change_the_policy_and_the_headroom(visit):
    page = visit()
    track = page.locator(".cpp-picture .cp-track")
    expect(track).to_have_attribute("aria-label", "One stack of 36.0 GiB: weights 15.0; cache 17.0; headroom 4.0")
    field(page, "policy").locator("input[value=headroom]").focus()
    page.keyboard.press("ArrowLeft")
    expect(figures(page)).to_contain_text("9.72 GiB")
    expect(track).to_have_attribute(
        "aria-label", "One stack of 36.0 GiB: weights 15.0; cache 9.7; left by the cap 7.7; outside the utilization 3.6"
    )
    page.keyboard.press("ArrowRight")
    expect(figures(page)).to_contain_text("17.00 GiB")
    expect(field(page, "reserved_headroom_gib").locator("input.cpp-box")).to_have_value("4")
    field(page, "reserved_headroom_gib").locator(".cpp-slider").focus()
    page.keyboard.press("ArrowRight")
    expect(figures(page)).to_contain_text("16.50 GiB")
    type_in(page, "reserved_headroom_gib", "22")
    expect(page.locator(".cp-badge")).to_contain_text("Does not fit")
    expect(page.locator(".cpp-picture")).to_contain_text("Computed KV cache budget is below minimum threshold")
    page.get_by_role("button", name="Apply RESERVED_HEADROOM_GIB=20.00").click()
    expect(page.locator(".cp-badge")).to_contain_text("Does not fit")
    expect(figures(page)).to_contain_text("1.00 GiB")
    expect(page.locator("code.cp-command", has_text="export")).to_contain_text("RESERVED_HEADROOM_GIB=20")
    box = field(page, "reserved_headroom_gib").locator(".cpp-slider")
    box.click(position={"x": 5, "y": 12})
    expect(page.locator(".cp-badge")).to_contain_text("Fits")
    field(page, "logical_nc_config").locator("label").first.click()
    expect(page.locator(".cpp-picture")).to_contain_text("logical core 1: 18.0")
    page.get_by_role("button", name="compiling without a device gives other blocks").click()
    expect(page.locator(".cpp-rest")).to_contain_text("the compile cache will miss")
    type_in(page, "error", "nrt_tensor_allocate status=4")
    expect(page.locator(".cpp-picture")).to_contain_text("What the error means")


def test_bad_text_is_said_and_nothing_is_lost(visit):
    page = visit()
    before, address = figures(page).inner_text(), page.url
    for text in ("4GiB", "-", "<b>4</b>"):
        type_in(page, "reserved_headroom_gib", text)
        expect(page.locator(".cp-note")).to_contain_text(f"is '{text}'; it must be a finite number of GiB")
        expect(field(page, "reserved_headroom_gib").locator("input.cpp-box")).to_have_value(text)
        assert (figures(page).inner_text(), page.url) == (before, address)
    type_in(page, "reserved_headroom_gib", "nan")
    expect(page.locator(".cp-badge")).to_contain_text("Refused")
    type_in(page, "reserved_headroom_gib", "5")
    expect(figures(page)).to_contain_text("16.00 GiB")
    expect(page.locator(".cp-note")).to_have_count(0)
    page.wait_for_url(lambda url: "reserved_headroom_gib=5.0" in url)
    page.reload()
    expect(figures(page)).to_contain_text("16.00 GiB", timeout=60_000)
