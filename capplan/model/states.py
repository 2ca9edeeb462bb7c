"""The laws that registry files may name for recurrent states, and what each takes of a model."""

from __future__ import annotations

from collections.abc import Callable
from types import FunctionType
from typing import NamedTuple, cast

from capplan.laws import recurrent
from capplan.units import Count


class StateLaw(NamedTuple):
    """The two laws of one kind of recurrent state; what both take is what a model says of it."""

    conv_elements: Callable[..., Count]
    temporal_elements: Callable[..., Count]

    @property
    def conv_sizes(self) -> tuple[str, ...]:
        """What the convolution's law takes of the model."""
        return _sizes(self.conv_elements)

    @property
    def temporal_sizes(self) -> tuple[str, ...]:
        """What the temporal state's law takes of the model."""
        return _sizes(self.temporal_elements)

    @property
    def sizes(self) -> tuple[str, ...]:
        """What the laws take of the model."""
        return tuple(dict.fromkeys((*self.conv_sizes, *self.temporal_sizes)))


def _sizes(law: Callable[..., Count]) -> tuple[str, ...]:
    code = cast(FunctionType, law).__code__
    asked = ("num_speculative_tokens", "tensor_parallel_size")
    return tuple(name for name in code.co_varnames[: code.co_kwonlyargcount] if name not in asked)


STATES = {
    "mamba2": StateLaw(recurrent.mamba2_conv_elements, recurrent.mamba2_temporal_elements),
    "gated-delta-net": StateLaw(recurrent.delta_net_conv_elements, recurrent.delta_net_temporal_elements),
    "kda": StateLaw(recurrent.kda_conv_elements, recurrent.kda_temporal_elements),
}
"""The laws that a registry file may name for a recurrent state."""
