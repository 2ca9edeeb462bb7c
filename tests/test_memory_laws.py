"""The memory laws against 77 worked cases, each restated in tests/data/memory-laws.json with where it is from."""

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest

from capplan.engines.blis.case import Case
from capplan.engines.declared import state_bytes, state_pages, state_spec
from capplan.engines.pool import Cache, growing, own_pages
from capplan.engines.release import load_engine
from capplan.hub import load_model
from capplan.laws import buffers, kv_cache, weights
from capplan.model import Model
from capplan.model.declared import StatedState
from capplan.plan import Plan, plan
from capplan.registry import load_chip
from capplan.settings.deployment import Deployment, from_mapping
from capplan.units import GIB, MIB

CASES = json.loads((Path(__file__).parent / "data" / "memory-laws.json").read_text())["cases"]
SCALES = {"GiB": GIB, "MiB": MIB, "MB": 1_000_000, "": 1}


def asked(settings) -> Plan:
    settings = dict(settings)
    return plan(load_model(settings.pop("model")), from_mapping(settings))


def minimax(**settings) -> Plan:
    model = load_model("MiniMaxAI/MiniMax-M2.5")
    chosen = {"engine": "blis-kernel", "chip": "h200", "gpu_memory_utilization": 0.9, "tensor_parallel_size": 8}
    return plan(model, from_mapping({**chosen, **settings}))


def sparse_model(n_layers: int) -> Model:
    """GLM-5's caches: sparse latent attention in every layer; the kernel charges no indexer."""
    v3 = load_model("deepseek-ai/DeepSeek-V3")
    layers = tuple(range(n_layers))
    latent = replace(v3.attention[0], layers=layers, n_heads=64)
    return replace(v3, attention=(latent,), attention_type="sparse-latent", n_layers=n_layers, n_heads=64)


def figures(p: Plan) -> SimpleNamespace:
    """What a case may name beside the plan's own fields."""
    parts = {name: size for line in (*p.lines, pre(p)) for name, size in line.parts}
    tokens = p.resolved.tokens
    found = {f"part:{name}": size for name, size in parts.items()}
    found["resolved:max_cudagraph_capture_size"] = p.resolved.max_cudagraph_capture_size
    found["sequence_variable_bytes"] = p.sequence_variable_bytes(tokens)
    found["sequence_fixed_bytes"] = p.sequence_fixed_bytes()
    found["sequence_admission_bytes"] = p.sequence_admission_bytes()
    found["token_bytes"] = (p.frame.token_half_bits or 0) // 16
    if p.fixed_bytes is not None:
        found["fixed_beside_weights_bytes"] = p.fixed_bytes - p.weights_bytes
    return SimpleNamespace(found=found, parts=parts)


def pre(p: Plan):
    return p.ledger["pre_snapshot"]


def pool_figures(p: Plan) -> dict[str, int]:
    """What a case says of a shared pool."""
    blocks = p.pool_blocks()
    windows = [b for b in blocks if b.group.kind == "sliding"]
    rings = [b for b in blocks if b.group.kind == "ring"]
    full = [b for b in blocks if not b.group.bounded]
    caches, chip = p.model.caches, p.chip
    form = p.frame.kv_cache_dtype
    records = [c for c in caches.owned if c.window is None and c.entries is None]
    halves = sum(2 * len(c.layers) * c.record_bytes.of(chip.generation, form) // c.tokens_per_record for c in records)
    bounded = [b for b in blocks if b.group.bounded]
    return {
        "n_window_rings": sum(len(b.pages) for b in windows),
        "window_page_bytes": windows[0].pages[0].page_bytes,
        "n_window_groups": len(windows),
        "largest_window_group": max(len(b.pages) for b in windows),
        "window_group_capacity": p.kv_block_bytes // windows[0].pages[0].page_bytes,
        "steady_window_pages": windows[0].steady,
        "admission_window_pages": windows[0].admission,
        "ring_page_bytes": rings[0].pages[0].page_bytes,
        "n_rings": sum(len(b.pages) for b in rings),
        "n_ring_groups": len(rings),
        "steady_blocks": sum(b.steady for b in bounded),
        "admission_blocks": sum(b.admission for b in bounded),
        "own_fixed_bytes": sum(b.steady * b.group.block_bytes for b in bounded),
        "full_group_bytes": sum(b.group.block_bytes for b in full),
        "context_block_tokens": full[0].group.block_size,
        "context_blocks": sum(b.steady for b in full),
        "record_bytes_per_token": halves // 2,
        "one_width_every_layer": p.model.head_dim * p.model.n_layers,
        "pool_bytes_per_token": p.kv_block_bytes // full[0].group.block_size,
    }


def lanes(p: Plan) -> dict[str, int]:
    """What each kind of request asks of the first lane, and all buffers together."""
    b, k = p.model.caches.buffers, p.engine.constants
    length, tokens = p.resolved.max_model_len, p.resolved.max_num_batched_tokens
    factor = k["gather_factor_long" if length > k["gather_long_tokens"].value else "gather_factor"].value
    attention = buffers.attention_lane_bytes(
        max_model_len=length,
        tokens_per_record=1,
        max_num_batched_tokens=tokens,
        **{n: b[n] for n in ("window", "prefill_chunk", "head_dim", "index_topk", "act_bits", "lane_alignment")},
    )
    index = buffers.index_lane_bytes(
        max_model_len=length,
        tokens_per_record=1,
        gather_factor=factor,
        **{n: b[n] for n in ("index_key_bytes", "index_scale_bytes", "lane_alignment")},
    )
    passes = ("forward pass", "sampler pass")
    line = next(line for line in p.lines if line.name == "activations")
    own = sum(size for name, size in line.parts if name not in passes)
    assert line.bytes == own + max(size for name, size in line.parts if name in passes)
    return {"lane:attention": attention, "lane:index": index, "own_buffers_bytes": own}


def shown(value, unit: str, places: int) -> str:
    return f"{value / SCALES[unit]:.{places}f}"


def check_plan(case) -> None:
    p = asked(case["plan"])
    found = figures(p).found
    if p.model.caches is not None:
        found |= pool_figures(p) | lanes(p)
    for name, wanted in case.get("wants", {}).items():
        got = found[name] if name in found else getattr(p, name)
        assert got == wanted, name
    for name, (unit, places, text) in case.get("prints", {}).items():
        got = found[name] if name in found else getattr(p, name)
        assert shown(got, unit, places) == text, name


def check_sparse(case) -> None:
    s = case["sparse"]
    model = sparse_model(s["n_layers"])
    p = plan(model, Deployment(engine="blis-kernel", chip=s["chip"], kv_cache_dtype=s["kv_cache_dtype"]))
    assert p.resolved.block_size == 64
    half_bits = p.frame.token_half_bits
    got = {
        "layer_token_bytes": half_bits // 16 // s["n_layers"],
        "token_bytes": half_bits // 16,
        "kv_block_bytes": p.kv_block_bytes,
    }
    assert got == case["wants"]


def check_widths(case) -> None:
    engine, chip = load_engine("blis-kernel"), load_chip("h200")
    for name, width in case["widths"].items():
        assert Case(model=load_model(name), d=Deployment(), chip=chip, engine=engine).width == width


def check_defaults(case) -> None:
    field, chips = case["defaults"]["field"], case["defaults"]["chips"]
    model = load_model("Qwen/Qwen3-30B-A3B")
    got = {c: getattr(plan(model, Deployment(engine="blis-kernel", chip=c)).resolved, field) for c in chips}
    assert got == chips


def check_replicas(case) -> None:
    r = case["replicas"]
    ask = {"enable_expert_parallel": True, "tensor_parallel_size": r["tensor_parallel_size"]}
    off, on = minimax(**ask), minimax(**ask, enable_eplb=True, num_redundant_experts=r["n_redundant"])
    assert [p.frame.ranks[0].experts for p in (off, on)] == [r["experts_off"], r["experts_on"]]
    assert (off.eplb_bytes, on.eplb_bytes) == (0, r["eplb_bytes"])
    assert on.weights_bytes == off.weights_bytes
    assert on.fixed_bytes - off.fixed_bytes == r["eplb_bytes"]


def check_split(case) -> None:
    s = case["split"]
    fuller = weights.physical_experts_per_rank(
        n_experts=s["n_experts"], n_redundant_experts=0, expert_parallel_size=s["ranks"]
    )
    assert fuller == s["fuller"]
    assert (s["n_experts"] // s["ranks"], s["n_experts"] % s["ranks"]) == (s["lighter"], s["fuller_ranks"])
    if s["n_experts"] == 256:
        p = minimax(tensor_parallel_size=s["ranks"], enable_expert_parallel=True)
        experts = {r.experts: r.count for r in p.frame.ranks}
        lighter = {s["lighter"]: s["ranks"] - s["fuller_ranks"]} if s["fuller_ranks"] else {}
        assert experts == {s["fuller"]: s["fuller_ranks"] or s["ranks"], **lighter}
        assert p.tightest.bytes_of("weights") == max(r.bytes_of("weights") for r in p.ranks)


def check_sliced(case) -> None:
    s = case["sliced"]
    ask = {"data_parallel_size": s["data_parallel_size"], "quantization": "fp8"}
    newest, stored = minimax(**ask), minimax(**ask, engine="blis-kernel-0.1")
    for p in (newest, stored):
        line = next(line for line in p.lines if line.name == "weights")
        assert dict(line.parts)["experts"] == s["experts_bytes"]
    # The stored kernel keeps the embedding at the checkpoint's 8 bits; the newest one widens it, and so do we.
    assert stored.weights_bytes == s["stored_weights_bytes"]
    assert newest.weights_bytes == s["stored_weights_bytes"] + 200_064 * 3072 // 8


def check_law(case) -> None:
    module, law = case["law"].split(".")
    assert getattr({"kv_cache": kv_cache}[module], law)(**case["with"]) == case["wants"]


def check_token(case) -> None:
    t = dict(case["token"])
    heads = kv_cache.kv_heads_per_rank(
        n_kv_heads=t.pop("n_kv_heads"), tensor_parallel_size=t.pop("tensor_parallel_size")
    )
    half_bits = kv_cache.token_half_bits(n_kv_heads=heads, **t)
    assert kv_cache.sequence_bytes(charged=1, half_bits=half_bits) == case["wants"]


SIZES = ("inner", "n_groups", "n_heads", "head_dim", "state_size", "conv_kernel")


def check_state(case) -> None:
    s = case["state"]
    state = StatedState(
        law="mamba2",
        layers=(0,),
        sizes={name: s[name] for name in SIZES},
        conv_bits=s["conv_bits"],
        temporal_bits=s["temporal_bits"],
        datum=None,
    )
    d = Deployment(tensor_parallel_size=s["tensor_parallel_size"], num_speculative_tokens=s["num_speculative_tokens"])
    assert state_bytes(state, d) == case["wants"]


def check_stored_state(case) -> None:
    s = case["stored"]
    sizes = {name: s[name] for name in SIZES}
    # Eight ranks and no drafted token: the stored kernel divides nothing, the engine everything.
    d = Deployment(tensor_parallel_size=8)
    for head_dim, wanted in ((None, "bytes"), (64, "bytes_with_head_dim_64")):
        # An unstated width is the state's size in the stored kernel.
        full = {**sizes, "head_dim": head_dim or s["state_size"]}
        state = StatedState(law="mamba2", layers=(0,), sizes=full, conv_bits=32, temporal_bits=32, datum=None)
        assert state_bytes(state, d, splits=False) == s[wanted]
    engine = StatedState(
        law="mamba2", layers=(0,), sizes={**sizes, "head_dim": 64}, conv_bits=16, temporal_bits=32, datum=None
    )
    assert state_bytes(engine, Deployment()) == 8_499_200 == 55_296 * 2 + 256 * 64 * 128 * 4


def a_state() -> StatedState:
    sizes = dict.fromkeys(SIZES, 8)
    return StatedState(law="mamba2", layers=(0,), sizes=sizes, conv_bits=16, temporal_bits=32, datum=None)


def check_pages(case) -> None:
    s = case["pages"]
    fixed = state_pages(s["mamba_cache_mode"], s["num_speculative_tokens"])
    if case["counted"] == "fixed":
        assert fixed == case["wants"]
        return
    assert fixed is None
    d = Deployment(
        block_size=s["block_size"], mamba_cache_mode="all", num_speculative_tokens=s["num_speculative_tokens"]
    )
    (group,) = own_pages([Cache(layer=0, spec=state_spec(a_state(), d))])
    assert growing(group, d, s["tokens"]) == case["wants"]


CHECKS = {
    "plan": check_plan,
    "sparse": check_sparse,
    "widths": check_widths,
    "defaults": check_defaults,
    "replicas": check_replicas,
    "split": check_split,
    "sliced": check_sliced,
    "law": check_law,
    "token": check_token,
    "state": check_state,
    "stored": check_stored_state,
    "pages": check_pages,
}


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case['case']:02}: {case['says']}")
def test_a_worked_case_holds(case):
    kind = next(kind for kind in CHECKS if kind in case)
    CHECKS[kind](case)


def test_there_are_77_cases():
    assert [case["case"] for case in CASES] == list(range(1, 78))
