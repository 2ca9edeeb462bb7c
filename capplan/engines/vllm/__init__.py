"""vLLM on GPUs: what it refuses, supplies and changes, what a rank holds, and how caches share a pool."""

from capplan.engines.vllm.case import Case
from capplan.engines.vllm.estimates import Estimates, captured_tokens, estimates, workspace
from capplan.engines.vllm.hold import Frame, Held, Rank, frame, stage_layers
from capplan.engines.vllm.pool import Group, longest_length, n_batches, request_blocks, steady_blocks
from capplan.engines.vllm.resolve import Resolved, resolve
from capplan.engines.vllm.rules import DISCRETE_RULES, NUMERIC_RULES, why_not

__all__ = [
    "DISCRETE_RULES",
    "NUMERIC_RULES",
    "Case",
    "Estimates",
    "Frame",
    "Group",
    "Held",
    "Rank",
    "Resolved",
    "captured_tokens",
    "estimates",
    "frame",
    "longest_length",
    "n_batches",
    "request_blocks",
    "resolve",
    "stage_layers",
    "steady_blocks",
    "why_not",
    "workspace",
]
