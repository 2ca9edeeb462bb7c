"""vLLM on GPUs: what it refuses, supplies and changes, what a rank holds, and how caches share a pool."""

from capplan.engines.frame import WEIGHT_LINES, Frame, Held, Rank, StepBuffer
from capplan.engines.pool import (
    RECURRENT,
    Group,
    Member,
    admitted,
    decoding,
    longest_length,
    longest_of,
    n_batches,
    request_blocks,
    steady_blocks,
)
from capplan.engines.vllm.case import Case, own_capture_limit
from capplan.engines.vllm.estimates import Estimates, captured_tokens, estimates, workspace
from capplan.engines.vllm.hold import allocated, frame, stage_layers
from capplan.engines.vllm.resolve import Resolved, resolve
from capplan.engines.vllm.rules import DISCRETE_RULES, NUMERIC_RULES, why_not

__all__ = [
    "DISCRETE_RULES",
    "NUMERIC_RULES",
    "RECURRENT",
    "WEIGHT_LINES",
    "Case",
    "Estimates",
    "Frame",
    "Group",
    "Held",
    "Member",
    "Rank",
    "Resolved",
    "StepBuffer",
    "admitted",
    "allocated",
    "captured_tokens",
    "decoding",
    "estimates",
    "frame",
    "longest_length",
    "longest_of",
    "n_batches",
    "own_capture_limit",
    "request_blocks",
    "resolve",
    "stage_layers",
    "steady_blocks",
    "why_not",
    "workspace",
]
