"""Models: a config.json becomes a graph of what is stored, in which shape, split how, how often."""

from capplan.model.build import from_config
from capplan.model.config import Config, Family, architectures, load_family
from capplan.model.formats import ONLINE
from capplan.model.graph import (
    DTYPE_BITS,
    EACH,
    EVERY,
    FIRST,
    LAST,
    SPLITS,
    Assumption,
    Attention,
    Buffer,
    Cached,
    Experts,
    Extent,
    Format,
    Guess,
    Model,
    Quantization,
    Rope,
    State,
    Tensor,
)
from capplan.model.ropes import ROPE_TYPES

__all__ = [
    "DTYPE_BITS",
    "EACH",
    "EVERY",
    "FIRST",
    "LAST",
    "ONLINE",
    "ROPE_TYPES",
    "SPLITS",
    "Assumption",
    "Attention",
    "Buffer",
    "Cached",
    "Config",
    "Experts",
    "Extent",
    "Family",
    "Format",
    "Guess",
    "Model",
    "Quantization",
    "Rope",
    "State",
    "Tensor",
    "architectures",
    "from_config",
    "load_family",
]
