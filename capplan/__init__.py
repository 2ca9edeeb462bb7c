"""capplan: what a model, deployed this way, occupies on a chip, and how many requests it holds.

import capplan as cp

model = cp.load_model("Qwen/Qwen3-32B")
asked = cp.Deployment(chip="h100-sxm", tensor_parallel_size=4, max_model_len=32_768)
answer = cp.plan(model, asked)
"""

from importlib import import_module

from capplan.engines.base import Finding, Line
from capplan.engines.release import load_engine
from capplan.hub import load_model
from capplan.model import Model
from capplan.plan import Plan, plan
from capplan.plan.gpu import DISPLAYS, PLANS
from capplan.registry import Chip, Datum, Refused, RegistryError, load_chip
from capplan.settings.deployment import Deployment

__version__ = "0.1.0"

# Engines of other rules; their planner is loaded only when one is asked for.
PLANS["vllm_neuron"] = lambda model, asked: import_module("capplan.plan.neuron").neuron_plan(model, asked)

# A plan shows itself in a notebook; the views are loaded only when it does.
DISPLAYS["text/plain"] = lambda shown: str(import_module("capplan.views.text").plan_text(shown))
DISPLAYS["text/html"] = lambda shown: str(import_module("capplan.views.html").plan_html(shown))

__all__ = [
    "Chip",
    "Datum",
    "Deployment",
    "Finding",
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
