"""capplan: what a model, deployed this way, occupies on a chip, and how many requests it holds.

import capplan as cp

model = cp.load_model("Qwen/Qwen3-32B")
asked = cp.Deployment(chip="h100-sxm", tensor_parallel_size=4, max_model_len=32_768)
answer = cp.plan(model, asked)
"""

from typing import TYPE_CHECKING

from capplan.engines.base import Finding, Line
from capplan.engines.release import load_engine
from capplan.hub import load_model
from capplan.model import Model
from capplan.plan import GpuPlan, Plan
from capplan.registry import Chip, Datum, Refused, RegistryError, load_chip
from capplan.settings.deployment import Deployment

if TYPE_CHECKING:
    from capplan.plan import plan as plan

__version__ = "0.1.0"

__all__ = [
    "Chip",
    "Datum",
    "Deployment",
    "Finding",
    "GpuPlan",
    "Line",
    "Model",
    "Plan",
    "Refused",
    "RegistryError",
    "load_chip",
    "load_engine",
    "load_model",
    "plan",
]
