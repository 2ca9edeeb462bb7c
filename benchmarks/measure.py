"""Imports, the command line, plans and laws against references in the same run."""

import json
import subprocess
import sys
import timeit
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from capplan import Deployment, load_model, plan
from capplan.engines.pool import Cache, Spec, grouped
from capplan.engines.vllm import estimates, hold, rules
from capplan.laws import activations, buffers, kv_cache, recurrent, runtime, weights
from capplan.settings.deployment import from_mapping


@dataclass(frozen=True)
class Row:
    """One figure beside its reference, both in microseconds."""

    what: str
    measured: float
    reference: float
    aim: str

    def text(self) -> str:
        ratio = f"{self.measured / self.reference:>8.2f}" if self.reference else f"{'':>8}"
        return f"{self.what:<58}{shown(self.measured):>12}{shown(self.reference):>12}{ratio}  {self.aim}"


def shown(microseconds: float) -> str:
    """A time in the unit that reads best."""
    if not microseconds:
        return "-"
    return f"{microseconds / 1000:.1f} ms" if microseconds >= 1000 else f"{microseconds:.1f} us"


def best(call: Callable[[], object], *, number: int = 1, repeat: int = 7) -> float:
    """The fastest of several runs, in microseconds: what the machine does when nobody disturbs it."""
    return min(timeit.repeat(call, number=number, repeat=repeat)) / number * 1e6


def interleaved(one: Callable[[], object], other: Callable[[], object], *, rounds: int = 25) -> tuple[float, float]:
    """The fastest run of each of two calls, taken in turns so that a noisy neighbour disturbs both."""
    times = [(best(one, repeat=1), best(other, repeat=1)) for _ in range(rounds)]
    return min(t[0] for t in times), min(t[1] for t in times)


def started(code: str) -> float:
    """A new interpreter that runs a line."""
    return best(lambda: subprocess.run([sys.executable, "-c", code], check=True), repeat=5)


def imports() -> Iterator[Row]:
    empty = started("pass")
    yield Row("import capplan", started("import capplan") - empty, started("import numpy") - empty, "under 3 x numpy")


def command_line() -> Iterator[Row]:
    words = [sys.executable, "-m", "capplan", "plan", "Qwen/Qwen3-32B", "-tp", "4", "--max-model-len", "32768"]
    cold = best(lambda: subprocess.run(words, check=True, capture_output=True), repeat=5)
    yield Row("capplan plan, cold, beside an interpreter that imports numpy", cold, started("import numpy"), "")


DENSE = ("Qwen/Qwen3-32B", Deployment(tensor_parallel_size=4, max_model_len=32_768))
WINDOWS = ("google/gemma-2-9b-it", Deployment(chip="l4"))
LATENT = ("deepseek-ai/DeepSeek-V3", Deployment(chip="h200", tensor_parallel_size=8))
MANY = np.arange(1, 40_961)
NAMES = [f"field_{i}" for i in range(100)]


def plans() -> Iterator[Row]:
    for what, (name, asked), aim in (
        ("a dense model", DENSE, "under 200 us"),
        ("sliding windows", WINDOWS, ""),
        ("latent attention, experts", LATENT, ""),
    ):
        model = load_model(name)
        plan(model, asked)
        # The reference is one dict built from a hundred names, a thing whose cost every Python user knows.
        took = best(lambda m=model, a=asked: plan(m, a), number=300)
        reference = best(lambda: dict.fromkeys(NAMES, 0), number=300)
        yield Row(f"warm plan, {what}, beside a dict of 100 names", took, reference, aim)
    model = load_model(DENSE[0])
    one = best(lambda: plan(model, DENSE[1]), number=300)
    many = best(lambda: plan(model, Deployment(tensor_parallel_size=4, max_model_len=MANY)))
    yield Row("a plan of 40,960 lengths at once, beside one plan", many, one, "")


STATED = ("deepseek-v4.1-flash", Deployment(chip="h200", speculative_method="dspark", num_speculative_tokens=5))
KERNEL = ("deepseek-ai/DeepSeek-V3", Deployment(engine="blis-kernel", chip="h200", tensor_parallel_size=8))


def hundred_layers() -> tuple[Cache, ...]:
    """Caches of a model of 100 layers: a window in each, every fourth with a compressed cache, an index and a ring."""
    window = Spec(spec="window", kind="sliding", block_size=32, page_bytes=19_008, window=128, latent=True)
    kept = Spec(spec="full", kind="full", block_size=64, page_bytes=37_440, latent=True)
    index = Spec(spec="full", kind="full", block_size=64, page_bytes=8640, latent=True, name="index")
    ring = Spec(spec="ring", kind="ring", block_size=64, page_bytes=32_768, pages=1)
    found = []
    for layer in range(100):
        own = (window, kept, index, ring) if layer % 4 == 0 else (window,)
        found += [Cache(layer=layer, spec=spec) for spec in own]
    return tuple(found)


def pool() -> Iterator[Row]:
    caches = hundred_layers()
    reference = best(lambda: dict.fromkeys(NAMES, 0), number=300)
    took = best(lambda: grouped(caches, packed=True), number=100)
    yield Row("grouping of 100 layers, beside a dict of 100 names", took, reference, "under 1 ms")
    for what, (name, asked), aim in (
        ("stated caches", STATED, "under 500 us"),
        ("the kernel's laws", KERNEL, "under 500 us"),
    ):
        model = load_model(name)
        plan(model, asked)
        took = best(lambda m=model, a=asked: plan(m, a), number=300)
        yield Row(f"warm plan, {what}, beside a dict of 100 names", took, reference, aim)


ANSWERS = Path(__file__).parent.parent / "tests" / "data" / "vllm-0.33.0-registry.json"


def engine_answers() -> Iterator[Row]:
    """Every deployment of which the engine's own answer is kept, models loaded once: fresh plans, and warm ones."""
    known = json.loads(ANSWERS.read_text())
    asked = []
    for case in known["cases"]:
        settings = dict(case["settings"])
        overrides = known["overrides"].get(settings.pop("hf_overrides", ""))
        model = load_model(case["model"], overrides=overrides)
        values = {"chip": case["chip"], **settings, "hf_overrides": overrides, "kv_cache_memory_bytes": 40_000_000_000}
        asked.append((model, from_mapping(values)))

    def forget() -> None:
        plans = sys.modules["capplan.plan"]
        remembered = (hold._frame, rules.discrete_finding, estimates._estimates)
        for cache in (*remembered, plans._plan_once, plans._resolve_once):
            cache.cache_clear()

    def all_plans() -> None:
        for model, deployment in asked:
            plan(model, deployment)

    def fresh() -> None:
        forget()
        all_plans()

    yield Row(f"{len(asked)} plans, nothing remembered", best(fresh, repeat=5), 0.0, "under 700 ms")
    all_plans()
    warm = [best(lambda m=m, d=d: plan(m, d), number=20, repeat=3) for m, d in asked]
    yield Row("the slowest of them, warm", max(warm), 0.0, "under 1 ms")


MILLION = np.arange(1, 1_000_001)


def laws() -> Iterator[Row]:
    n = MILLION
    pairs: list[tuple[str, Callable[[], object], Callable[[], object]]] = [
        (
            "matrix_bytes",
            lambda: weights.matrix_bytes(n_rows=n, n_columns=4096, weight_bits=16),
            lambda: -((n * 4096 * 16) // -8),
        ),
        (
            "vocab_rows_per_rank",
            lambda: weights.vocab_rows_per_rank(vocab=n, vocab_padding=64, tensor_parallel_size=4),
            lambda: -(n // -64) * 64 // 4,
        ),
        (
            "kv_heads_per_rank",
            lambda: kv_cache.kv_heads_per_rank(n_kv_heads=8, tensor_parallel_size=n),
            lambda: np.maximum(8 // n, 1),
        ),
        (
            "full_request_blocks",
            lambda: kv_cache.full_request_blocks(context_tokens=n, block_size=16, decode_context_parallel_size=1),
            lambda: -((-(n // -1)) // -16),
        ),
        (
            "window_admission_blocks",
            lambda: kv_cache.window_admission_blocks(
                context_tokens=n, window=4096, max_in_flight_tokens=16_384, block_size=16
            ),
            lambda: -(np.minimum(4096 - 1 + 16_384, n) // -16) + 1,
        ),
        (
            "sampler_peak_bytes",
            lambda: activations.sampler_peak_bytes(
                max_num_seqs=1024,
                max_num_batched_tokens=n,
                vocab=151_936,
                bytes_per_logit=14,
                hidden=5120,
                act_bits=16,
            ),
            lambda: np.minimum(1024, n) * 151_936 * 14 - ((n * 5120 * 16) // -8),
        ),
        (
            "sampling_counts_bytes",
            lambda: runtime.sampling_counts_bytes(max_num_seqs=n, vocab=151_936),
            lambda: 4 * n * 151_936,
        ),
        (
            "charged_tokens",
            lambda: kv_cache.charged_tokens(context_tokens=n, decode_context_parallel_size=8, block_size=16),
            lambda: -((-(n // -8)) // -16) * 16,
        ),
        (
            "window_decode_blocks",
            lambda: kv_cache.window_decode_blocks(window=n, num_speculative_tokens=5, block_size=32),
            lambda: -((n + 5) // -32) + 1,
        ),
        (
            "buffers_peak_bytes",
            lambda: activations.buffers_peak_bytes(
                half_buffers=20, max_num_batched_tokens=n, width=7168, act_bits=16, least_bytes=73_400_320
            ),
            lambda: np.maximum(20 * n * 7168 * 16 // 16, 73_400_320),
        ),
        (
            "every_state_pages",
            lambda: recurrent.every_state_pages(context_tokens=n, block_size=16, num_speculative_tokens=1),
            lambda: -(n // -16) + 1,
        ),
        (
            "choices_bytes",
            lambda: buffers.choices_bytes(max_num_batched_tokens=n, choices=512),
            lambda: 4 * n * 512,
        ),
    ]
    for name, law, bare in pairs:
        took, reference = interleaved(law, bare)
        yield Row(f"{name} over 1,000,000, beside bare numpy", took, reference, "under 1.2")
