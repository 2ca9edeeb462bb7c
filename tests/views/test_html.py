"""The numbers, words and places that reach the page as HTML."""

import base64
import json
import re
from dataclasses import replace
from html.parser import HTMLParser
from itertools import pairwise

import pytest

from capplan.hub import load_model
from capplan.plan import plan
from capplan.settings.deployment import Deployment
from capplan.units import GIB
from capplan.views import html
from capplan.views.tables import ledger_csv
from capplan.views.terms import SIGNS, TERMS


def answer(model, **settings):
    return plan(load_model(model), Deployment(**settings))


def fits():
    return answer("Qwen/Qwen3-32B", tensor_parallel_size=4, max_model_len=32_768)


PLANS = {
    "fits": fits,
    "cache": lambda: answer("meta-llama/Meta-Llama-3.1-70B", tensor_parallel_size=2),
    "weights": lambda: answer("meta-llama/Meta-Llama-3.1-70B"),
    "windows": lambda: answer("google/gemma-2-9b-it", chip="l4"),
    "experts": lambda: answer("mistralai/Mixtral-8x7B-v0.1", chip="a100-80gb", tensor_parallel_size=4),
    "latent": lambda: answer("deepseek-ai/DeepSeek-V3", chip="h200", tensor_parallel_size=8),
    "stages": lambda: answer("Qwen/Qwen3-32B", pipeline_parallel_size=2),
    "stated": lambda: answer("Qwen/Qwen3-32B", tensor_parallel_size=4, kv_cache_memory_bytes=20 * GIB),
    "stated-over": lambda: answer("Qwen/Qwen3-32B", tensor_parallel_size=4, kv_cache_memory_bytes=70 * GIB),
    "context": lambda: answer("Qwen/Qwen3-32B", tensor_parallel_size=4, gpu_memory_utilization=0.995),
    "refused": lambda: answer("Qwen/Qwen3-32B", tensor_parallel_size=5),
}
VIEWS = (
    html.verdict_html,
    html.bar_html,
    html.answer_html,
    html.remedies_html,
    html.ledger_html,
    html.groups_html,
    html.findings_html,
    html.command_html,
    html.plan_html,
)
INLINE = {"abbr", "b", "code", "span"}
VOID = {"meta", "link", "br", "img", "hr"}


class Read(HTMLParser):
    """A document's elements as (tag, attributes), its text, and the tags left open or closed twice."""

    def __init__(self, text):
        super().__init__()
        self.elements, self.words, self.open, self.faults = [], [], [], []
        self.feed(text)
        self.close()
        self.text = " ".join("".join(self.words).split())

    def handle_starttag(self, tag, attrs):
        self.elements.append((tag, dict(attrs)))
        self.words.append("" if tag in INLINE else " ")
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        self.words.append("" if tag in INLINE else " ")
        if not self.open or self.open.pop() != tag:
            self.faults.append(tag)

    def handle_data(self, data):
        if "style" not in self.open:
            self.words.append(data)

    def having(self, css):
        return [attrs for _, attrs in self.elements if css in (attrs.get("class") or "").split()]


def place(attrs):
    """From where to where an element of the bar goes, in percent."""
    found = re.search(r"--cp-from:([\d.]+)%;--cp-size:([\d.]+)%", attrs["style"])
    return float(found[1]), float(found[2])


def whole_bytes(attrs):
    return int(re.search(r": ([\d,]+) bytes", attrs["title"])[1].replace(",", ""))


@pytest.mark.parametrize("name", PLANS)
def test_every_view_shows_every_plan_in_closed_tags(name):
    shown = PLANS[name]()
    for view in VIEWS:
        page = Read(view(shown))
        assert (page.open, page.faults) == ([], []), view.__name__
        assert page.text


@pytest.mark.parametrize("name", PLANS)
def test_nothing_comes_from_outside_runs_or_collides(name):
    page = Read(html.page_html(PLANS[name](), title=name))
    for tag, attrs in page.elements:
        assert tag not in ("script", "img", "iframe", "object")
        assert "id" not in attrs
        assert not [key for key in attrs if key.startswith("on")]
        assert attrs.get("href", "data:").startswith("data:")
    assert "http" not in html.style() and "url(" not in html.style()


def test_a_page_may_show_two_plans():
    assert Read(html.plan_html(fits()) + html.plan_html(PLANS["cache"]())).faults == []


def test_what_people_name_is_escaped():
    model = replace(load_model("Qwen/Qwen3-8B"), name="org/<b onclick=steal()>")
    shown = replace(plan(model, Deployment()), ignored_flags=("--port <i>",))
    for view in VIEWS:
        tags = Read(view(shown)).elements
        assert not [attrs for _, attrs in tags if "onclick" in attrs], view.__name__
    assert "<i>" not in html.findings_html(shown)
    assert "<u>" not in html.verdict_html(shown, note="max_model_len is '<u>'")


# The verdict


@pytest.mark.parametrize("name", PLANS)
def test_a_verdict_is_a_word_and_a_sign_beside_its_colour(name):
    shown = PLANS[name]()
    sign, page = SIGNS[shown.verdict], Read(html.verdict_html(shown))
    assert page.text.startswith(f"{sign.mark} {sign.word}")
    (bar,) = page.having("cp-verdict")
    assert (bar["role"], bar["aria-live"]) == ("status", "polite")
    assert f"cp-v-{shown.verdict}" in bar["class"]


def test_the_verdict_says_the_whole_sentence_once():
    shown = fits()
    text = Read(html.verdict_html(shown)).text.replace("×", "x")
    asked, _, rest = shown.sentence.partition(": ")
    assert asked in text and rest in text
    assert text.count("32,768 tokens") == 1


def test_a_plan_that_fits_shows_what_the_engine_prints():
    shown = fits()
    text = Read(html.verdict_html(shown)).text
    assert f"{shown.max_concurrency:.2f}×" in text
    assert f"{shown.kv_cache_tokens:,}" in text
    assert "full-length requests" in text and "cache tokens" in text


def test_a_plan_whose_cache_is_too_small_shows_the_longest_that_fits():
    shown = PLANS["cache"]()
    text = Read(html.verdict_html(shown)).text
    assert f"{shown.estimated_max_model_len:,} " in text and "longest that fits" in text


def test_a_stale_verdict_says_so_in_words():
    page = Read(html.verdict_html(fits(), note="max_model_len is '12x', which is no number"))
    assert "Not current: max_model_len is '12x', which is no number" in page.text
    assert page.having("cp-stale")
    assert "Not current" not in html.verdict_html(fits())


def test_a_stated_load_is_answered_apart():
    load = {"tensor_parallel_size": 4, "max_model_len": 32_768, "tokens": 4096}
    holds = answer("Qwen/Qwen3-32B", **load, requests=10)
    fails = answer("Qwen/Qwen3-32B", **load, requests=100_000)
    assert "It holds the stated load, 10 requests of 4,096 tokens at once." in Read(html.verdict_html(holds)).text
    assert "It does not hold the stated load, 100,000 requests" in Read(html.verdict_html(fails)).text


# The bar


def test_the_parts_of_a_bar_sum_to_the_device_and_touch():
    shown = fits()
    parts = Read(html.bar_html(shown)).having("cp-seg")
    assert sum(map(whole_bytes, parts)) == shown.device_bytes
    assert [part["data-term"] for part in parts] == [term.key for term in TERMS]
    ends = [place(part) for part in parts]
    for (start, size), (following, _) in pairwise(ends):
        assert start + size == pytest.approx(following, abs=0.002)
    assert sum(ends[-1]) == pytest.approx(100, abs=0.002)


def test_rounding_is_drawn_with_the_weights():
    shown = fits()
    weights = Read(html.bar_html(shown)).having("cp-t-weights")[0]
    assert whole_bytes(weights) == shown.model_load_bytes


@pytest.mark.parametrize("name", [name for name in PLANS if name != "refused"])
def test_nothing_of_a_bar_is_cut_off(name):
    page = Read(html.bar_html(PLANS[name]()))
    for css in ("cp-seg", "cp-over", "cp-whisker", "cp-mark"):
        for attrs in page.having(css):
            assert sum(place(attrs)) <= 100.002, css


def test_a_cache_that_is_too_small_is_over_by_what_one_request_lacks():
    shown = PLANS["cache"]()
    (over,) = Read(html.bar_html(shown)).having("cp-over")
    lacking = (shown.kv_request_blocks + 1) * shown.kv_block_bytes - shown.kv_budget_bytes
    assert whole_bytes(over) == lacking
    assert f"{lacking / GIB:.1f} over, for one request" in over["title"]
    (budget,) = Read(html.bar_html(shown)).having("cp-budget")
    assert place(over)[0] == place(budget)[0]


def test_weights_that_are_too_large_are_over_before_any_request():
    shown = PLANS["weights"]()
    page = Read(html.bar_html(shown))
    (over,) = page.having("cp-over")
    assert whole_bytes(over) == shown.tightest.short_bytes
    assert "over, before any request" in page.text
    assert "cache 0.0" in page.text


def test_a_budget_that_leaves_no_room_for_the_context_is_over_the_device():
    shown = PLANS["context"]()
    page = Read(html.bar_html(shown))
    (over,) = page.having("cp-over")
    (device,) = page.having("cp-device")
    assert whole_bytes(over) == shown.requested_bytes + shown.pre_snapshot_bytes - shown.device_bytes
    assert place(over)[0] == place(device)[0]


def test_a_stated_cache_leaves_only_the_device_line():
    page = Read(html.bar_html(PLANS["stated"]()))
    assert page.having("cp-device") and not page.having("cp-budget")
    assert not re.search("(?<!outside the )(?<!held before the )budget", page.text)


def test_budget_and_device_carry_their_figures():
    shown = fits()
    device = f"{shown.device_bytes / GIB:.1f}"
    text = Read(html.bar_html(shown)).text
    assert f"budget {shown.requested_bytes / GIB:.1f} = 0.92 × {device}" in text
    assert f"device {device}" in text


def test_the_band_of_the_estimates_is_drawn():
    shown = fits()
    page = Read(html.bar_html(shown))
    (whisker,) = page.having("cp-whisker")
    start, size = place(whisker)
    assert start * shown.device_bytes == pytest.approx(100 * shown.tightest.fixed_low_bytes, rel=1e-3)
    assert (start + size) * shown.device_bytes == pytest.approx(100 * shown.tightest.fixed_high_bytes, rel=1e-3)


def test_ranks_that_differ_are_drawn_below_the_tightest():
    shown = PLANS["stages"]()
    page = Read(html.bar_html(shown))
    first, second = shown.ranks
    assert len(page.having("cp-track")) == 2
    assert f"The tightest rank’s memory, GiB · stage {first.stage + 1} of 2" in page.text
    assert f"Stage {second.stage + 1} of 2, one rank: fixed {second.fixed_bytes / GIB:.1f}" in page.text


def test_stages_that_are_alike_are_named_together():
    text = Read(html.bar_html(answer("meta-llama/Meta-Llama-3.1-70B", pipeline_parallel_size=8))).text
    assert "Stages like 2 of 8, 6 ranks alike: fixed" in text
    assert "Stage 1 of 8, one rank: fixed" in text


def test_a_refused_bar_does_not_disappear():
    text = Read(html.bar_html(PLANS["refused"]())).text
    assert "the engine refuses this before memory matters" in text
    assert "device 79.2" in text


def test_a_bar_can_be_heard():
    shown = PLANS["cache"]()
    (track,) = Read(html.bar_html(shown)).having("cp-track")
    assert track["role"] == "img"
    assert "weights 65.7" in track["aria-label"] and "over, for one request" in track["aria-label"]


# The ledger


def test_the_ledger_has_every_line_with_whole_bytes():
    shown = fits()
    page = Read(html.ledger_html(shown))
    for line in shown.lines:
        if line.bytes:
            assert f"{line.bytes:,}" in page.text
            assert [attrs for _, attrs in page.elements if attrs.get("data-line") == line.name]
    for size in (shown.fixed_bytes, shown.requested_bytes, shown.kv_budget_bytes, shown.pre_snapshot_bytes):
        assert f"{size:,}" in page.text
    assert f"{shown.kv_blocks:,} blocks of 1 MiB · {shown.kv_request_blocks:,} a full-length request" in page.text


def test_a_line_unfolds_to_its_parts_and_the_data_it_rests_on():
    shown = fits()
    text = Read(html.ledger_html(shown)).text
    for line in (*shown.lines, shown.tightest.pre_snapshot):
        for name, size in line.parts:
            assert f"{name} {int(size) / GIB:.2f} {int(size):,}" in text
        for datum in line.data if line.bytes else ():
            assert datum.key.rsplit(".", 1)[-1] in text and f"registry/{datum.file}" in text
            assert (datum.where or datum.why) in text


def test_a_ledger_in_a_notebook_does_not_unfold():
    assert "<details" not in html.plan_html(fits())


def test_kinds_are_words():
    shown = fits()
    text = Read(html.ledger_html(shown)).text
    assert {line.kind for line in shown.lines} >= {"exact", "derived", "estimated"}
    for kind in {line.kind for line in shown.lines if line.bytes}:
        assert kind in text


# What the engine will do


def test_findings_are_counted_and_say_their_source():
    shown = fits()
    page = Read(html.findings_html(shown))
    assert f"refuses 0, assumes {len(shown.assumed)}, overrides {len(shown.overridden)}" in page.text
    for finding in shown.assumed:
        assert f"{finding.field} {finding.happens}, {finding.why}" in page.text
    assert page.text.count("nothing") == 2
    assert "vLLM 0.33.0, the released package; engine/arg_utils.py" in page.text


def test_what_moves_no_memory_is_listed():
    text = Read(html.findings_html(replace(fits(), ignored_flags=("--port 8000",)))).text
    assert "Flags that move no memory: --port 8000." in text
    assert "hidden_act" in text


def test_what_would_work_is_shown_as_flags():
    text = Read(html.remedies_html(PLANS["cache"]())).text
    assert f"--max-model-len {PLANS['cache']().estimated_max_model_len} starts as it is" in text
    assert "--tensor-parallel-size 4 starts" in text
    assert "it starts as asked" in Read(html.remedies_html(fits())).text


# Groups


def test_admission_and_steady_decode_stand_side_by_side_where_windows_differ():
    shown = PLANS["windows"]()
    text = Read(html.groups_html(shown)).text
    length = shown.resolved.max_model_len
    both = (shown.sequence_admission_bytes(), shown.sequence_fixed_bytes(length))
    assert "at admission in steady decode" in text
    assert "windows {:.2f} GiB {:.2f} GiB".format(*(size / GIB for size in both)) in text
    assert f"together {shown.request_bytes / GIB:.2f} GiB {shown.sequence_bytes(length) / GIB:.2f} GiB" in text
    assert f"{shown.in_flight_tokens:,} tokens of steps in flight" in text
    assert "sliding window of 4,096" in text


def test_a_model_without_windows_needs_no_reason():
    assert "in flight" not in html.groups_html(fits())


def test_groups_with_fewer_layers_say_what_they_leave_of_a_block():
    shown = answer("google/gemma-3-1b-it", chip="l4")
    short = [g for g in shown.kv_groups if g.block_bytes < shown.kv_block_bytes]
    text = Read(html.groups_html(shown)).text
    assert short and "unused" in text
    assert f"{(shown.kv_block_bytes - short[0].block_bytes) // 1024} KiB" in text
    assert "unused" not in html.groups_html(fits())


# The command and the downloads


def downloads(shown):
    links = [attrs for tag, attrs in Read(html.command_html(shown)).elements if tag == "a"]
    return {link["download"].rsplit(".", 1)[1]: base64.b64decode(link["href"].split(",")[1]).decode() for link in links}


@pytest.mark.parametrize("name", ["fits", "refused"])
def test_downloads_are_the_plan_and_its_ledger(name):
    shown = PLANS[name]()
    found = downloads(shown)
    assert json.loads(found["json"]) == json.loads(json.dumps(shown.to_dict()))
    assert found["csv"] == ledger_csv(shown)


def test_the_command_is_the_engines_own():
    text = Read(html.command_html(fits())).text
    assert "vllm serve Qwen/Qwen3-32B --tensor-parallel-size 4 --max-model-len 32768" in text
    assert "vLLM 0.33.0 on 4 × H100 SXM 80 GB" in text


def test_five_figures_are_the_plans():
    shown = fits()
    text = Read(html.answer_html(shown)).text
    assert f"{shown.model_load_bytes / GIB:.2f} GiB" in text
    assert f"{shown.kv_budget_bytes / GIB:.2f} GiB" in text
    assert f"{shown.requests_that_fit(32_768):,}" in text
    assert f"{shown.estimated_max_model_len:,}" in text
    assert f"{shown.outside_bytes / GIB:.2f} GiB" in text


# Colours


@pytest.mark.parametrize("dark", [False, True])
def test_text_on_every_term_can_be_read(dark):
    for term in TERMS:
        fill = term.dark if dark else term.light
        assert html.contrast(html.ink_on(fill), fill) >= 4.5, term.key


@pytest.mark.parametrize("dark", [False, True])
def test_text_on_every_ground_can_be_read(dark):
    c = html.colours(dark=dark)
    pairs = [(text, ground) for text in ("ink", "muted", "accent") for ground in ("card", "page")]
    pairs += [(sign, f"{sign}-on") for sign in ("fits", "close", "does-not-fit", "refused")]
    pairs += [("muted", "outside"), ("close", "card"), ("does-not-fit", "card")]
    for text, ground in pairs:
        assert html.contrast(c[text], c[ground]) >= 4.5, (text, ground)


def test_contrast_is_that_of_wcag():
    # WCAG 2.2 gives 21 for black on white; #767676 is the lightest grey that passes 4.5 on white.
    assert html.contrast("#000000", "#ffffff") == 21
    assert html.contrast("#767676", "#ffffff") >= 4.5 > html.contrast("#777777", "#ffffff")


def test_the_sheet_has_both_themes_print_and_reduced_motion():
    sheet = html.style()
    for words in ("prefers-color-scheme:dark", "[data-cp-theme=dark]", "[data-cp-theme=light]", "@media print"):
        assert words in sheet
    assert "prefers-reduced-motion" in sheet and ":focus-visible" in sheet
    for name, value in html.colours(dark=True).items():
        assert f"--cp-{name}:{value};" in sheet


# In a browser


@pytest.fixture(scope="module")
def browser(chromium_path):
    playwright = pytest.importorskip("playwright.sync_api")
    with playwright.sync_playwright() as driver:
        opened = driver.chromium.launch(executable_path=chromium_path, args=["--no-sandbox"])
        yield opened
        opened.close()


def shown_at(browser, shown, width, **options):
    page = browser.new_page(viewport={"width": width, "height": 900}, **options)
    page.set_content(html.page_html(shown, title="plan"))
    return page


@pytest.mark.parametrize("width", [360, 900, 1300])
@pytest.mark.parametrize("name", PLANS)
def test_nothing_hangs_over_the_edge(browser, name, width):
    page = shown_at(browser, PLANS[name](), width)
    assert page.evaluate("document.documentElement.scrollWidth") == width
    outside = page.evaluate(
        """() => [...document.querySelectorAll('.cp-label, .cp-legend li, .cp-figures dd, .cp-five dd')]
            .filter(e => { const a = e.getBoundingClientRect(), b = e.closest('section').getBoundingClientRect();
                           return a.width && (a.left < b.left || a.right > b.right); })
            .map(e => e.textContent)"""
    )
    assert outside == []
    page.close()


@pytest.mark.parametrize("width", [360, 900, 1300])
def test_labels_show_only_where_they_fit(browser, width):
    page = shown_at(browser, fits(), width)
    cut = page.evaluate(
        """() => [...document.querySelectorAll('.cp-seg span')].filter(e => e.offsetParent !== null
            && e.scrollWidth > e.parentElement.clientWidth + 1).map(e => e.textContent)"""
    )
    assert cut == []
    assert page.locator(".cp-t-cache span").is_visible()
    page.close()


def test_the_bytes_column_goes_below_900(browser):
    wide, narrow = (shown_at(browser, fits(), width) for width in (900, 899))
    assert wide.locator("[data-line=weights] .cp-bytes").is_visible()
    assert not narrow.locator("[data-line=weights] .cp-bytes").is_visible()
    wide.close()
    narrow.close()


def test_a_row_unfolds_by_keyboard(browser):
    page = shown_at(browser, fits(), 1300)
    detail = page.locator("[data-line=weights] + .cp-more")
    assert not detail.is_visible()
    page.locator("[data-line=weights] summary").focus()
    page.keyboard.press("Enter")
    assert detail.is_visible()
    page.close()


@pytest.mark.parametrize(("scheme", "dark"), [("light", False), ("dark", True)])
def test_the_readers_theme_is_followed_and_a_pages_own_comes_first(browser, scheme, dark):
    page = shown_at(browser, fits(), 900, color_scheme=scheme)
    ground = "() => getComputedStyle(document.querySelector('.cp-card')).backgroundColor"
    rgb = {False: "rgb(255, 255, 255)", True: "rgb(30, 31, 30)"}
    assert page.evaluate(ground) == rgb[dark]
    page.evaluate(f"document.body.dataset.cpTheme = '{'light' if dark else 'dark'}'")
    assert page.evaluate(ground) == rgb[not dark]
    page.close()


def test_on_paper_every_row_is_unfolded_and_light(browser):
    page = shown_at(browser, fits(), 700, color_scheme="dark")
    page.emulate_media(media="print")
    assert page.locator("[data-line=weights] + .cp-more").is_visible()
    assert not page.locator(".cp-links").is_visible()
    ground = "() => getComputedStyle(document.querySelector('.cp-card')).backgroundColor"
    assert page.evaluate(ground) == "rgb(255, 255, 255)"
    page.close()
