"""Weights unfolded to classes of tensors."""

import pytest

from capplan import Deployment, load_model, plan
from capplan.views.explain import weights_text

CASES = [
    ("Qwen/Qwen3-8B", Deployment(tensor_parallel_size=2)),
    ("deepseek-ai/DeepSeek-V3.2", Deployment(tensor_parallel_size=8, chip="h200")),
    ("Qwen/Qwen3-Next-80B-A3B-Instruct", Deployment(tensor_parallel_size=2)),
    ("openai/gpt-oss-20b", Deployment(chip="b200")),
]


@pytest.mark.parametrize(("name", "asked"), CASES, ids=[name for name, _ in CASES])
def test_classes_of_tensors_sum_to_the_weights(name, asked):
    p = plan(load_model(name), asked)
    for rank in p.ranks:
        assert sum(size for _, size, _ in rank.by_line()) == rank.bytes_of("weights")
        assert all(size == sum(h.bytes for h in held) for _, size, held in rank.by_line())
    text = weights_text(p)
    assert f"{p.weights_bytes:,} bytes" in text
    assert all(h.name in text for rank in p.ranks for h in rank.held)


def test_a_dense_model_s_matrix_has_its_shape_width_and_split():
    text = weights_text(plan(load_model("Qwen/Qwen3-8B"), Deployment(tensor_parallel_size=2)))
    row = next(line for line in text.splitlines() if "layers.mlp.down" in line)
    assert row.split() == ["layers.mlp.down", "36", "4096", "x", "6144", "16", "ranks", "1,811,939,328"]


def test_a_refused_plan_says_why():
    text = weights_text(plan(load_model("Qwen/Qwen3-8B"), Deployment(tensor_parallel_size=3)))
    assert "32 heads, which 3 ranks cannot share equally" in text
