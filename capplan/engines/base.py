"""What every engine says in the same words: findings, rules, lines of a ledger; and what a plan asks of an engine."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from capplan.model import Model
from capplan.registry import Datum
from capplan.settings.deployment import Deployment
from capplan.units import Count, Flag, Share, every, is_array, negate

C = TypeVar("C", contravariant=True)


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """What the engine does about one setting: refuse it, supply it, or change it.

    field    the setting
    asked    what was said, None where nothing was
    happens  what the engine does
    why      the reason
    source   where that is known from
    mask     for which of many configurations it holds; None for a single one
    stops    whether nothing can be computed beside it; what only the engine would stop at leaves the figures
    """

    field: str
    asked: Any
    happens: str
    why: str
    source: str
    mask: Flag | None = None
    stops: bool = True


class Case:
    """What a rule looks at: the model and the deployment with its defaults filled in; an engine's own adds more."""

    __slots__ = ()

    if TYPE_CHECKING:

        @property
        def model(self) -> Model: ...

        @property
        def d(self) -> Deployment: ...

    @property
    def name(self) -> str:
        """The model's name as sentences use it."""
        return self.model.short_name

    @property
    def tp(self) -> int:
        """Ranks that share one layer."""
        return self.d.tensor_parallel_size

    @property
    def dcp(self) -> int:
        """Ranks that share one context."""
        return self.d.decode_context_parallel_size

    @property
    def dtype(self) -> str:
        """The format in which the engine computes."""
        return self.d.dtype or self.model.dtype

    @property
    def n_kv_heads(self) -> int:
        """Key and value heads of the whole model."""
        return self.model.n_kv_heads

    @property
    def n_experts(self) -> int:
        """Routed experts of one layer; 0 of a dense model."""
        return self.model.experts.n_experts if self.model.experts is not None else 0

    @property
    def method(self) -> str:
        """How the checkpoint is quantized; empty where it is not."""
        return self.model.quantization.method if self.model.quantization is not None else ""

    @property
    def max_model_len(self) -> Count:
        """The longest request, once it is supplied."""
        found: Count = _supplied(self.d.max_model_len)
        return found

    @property
    def max_num_seqs(self) -> Count:
        """Sequences of one step, once they are supplied."""
        found: Count = _supplied(self.d.max_num_seqs)
        return found

    @property
    def max_num_batched_tokens(self) -> Count:
        """Tokens of one step, once they are supplied."""
        found: Count = _supplied(self.d.max_num_batched_tokens)
        return found

    @property
    def tokens(self) -> Count:
        """Tokens of each request of the load, once they are supplied."""
        found: Count = _supplied(self.d.tokens)
        return found

    @property
    def gpu_memory_utilization(self) -> Share:
        """The share that the engine claims, once it is supplied."""
        found: Share = _supplied(self.d.gpu_memory_utilization)
        return found

    @property
    def expert_shards(self) -> int:
        """Ranks that share one expert."""
        return 1 if self.d.enable_expert_parallel else self.tp * self.d.data_parallel_size


def _supplied(value: Any) -> Any:
    """A setting of a resolved deployment, which has no gaps."""
    if value is None:
        raise ValueError("a rule looks at a setting that nobody supplied")
    return value


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule(Generic[C]):
    """Something that an engine will not start with.

    `holds` tells for one configuration or for many whether the rule is kept; `says` is the sentence
    for one that breaks it: what was asked, what there is, what would work.
    """

    name: str
    field: str
    holds: Callable[[C], Flag]
    says: Callable[[C], str]
    source: str

    def finding(self, case: C, asked: Deployment) -> Finding | None:
        """What is refused of a case, None where the rule is kept; for many configurations with the mask of the broken.

        asked  the deployment whose words the finding quotes
        """
        holds = self.holds(case)
        if every(holds):
            return None
        many = is_array(holds)
        return Finding(
            field=self.field,
            asked=getattr(asked, self.field, None),
            happens="refused",
            why=f"some of the configurations break the rule {self.name}" if many else self.says(case),
            source=self.source,
            mask=negate(holds) if many else None,
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Resolved:
    """The deployment as the engine runs it, and what it refused, supplied and changed on the way."""

    d: Deployment
    refused: tuple[Finding, ...]
    assumed: tuple[Finding, ...]
    overridden: tuple[Finding, ...]
    data: tuple[Datum, ...]

    @property
    def stops(self) -> bool:
        """Whether something is refused that leaves nothing to compute."""
        return any(f.mask is None and f.stops for f in self.refused)


@dataclass(frozen=True, kw_only=True, slots=True)
class Line:
    """One line of the ledger: bytes and their band, how they are known, by which law, from which data.

    role  charged: spent before the cache; beside: held, and seen by no budget; limit: what a policy divides or
          allows; result: what follows from the others
    """

    name: str
    bytes: Count
    low: Count
    high: Count
    kind: str
    law: str
    note: str
    data: tuple[Datum, ...] = ()
    parts: tuple[tuple[str, Count], ...] = ()
    role: str = "charged"


def exact(
    name: str,
    size: Count,
    law: str,
    note: str,
    data: tuple[Datum, ...] = (),
    *,
    parts: tuple[tuple[str, Count], ...] = (),
    kind: str = "exact",
    role: str = "charged",
) -> Line:
    """A line without a band."""
    return Line(
        name=name, bytes=size, low=size, high=size, kind=kind, law=law, note=note, data=data, parts=parts, role=role
    )


def figure(name: str, datum: Datum, note: str, *, law: str = "a figure of the release", role: str = "charged") -> Line:
    """A line that is one number of the registry, with its band."""
    return Line(
        name=name,
        bytes=datum.value,
        low=datum.low,
        high=datum.high,
        kind=datum.kind,
        law=law,
        note=note,
        data=(datum,),
        role=role,
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class Row:
    """How a ledger line is shown: its name in words, the term whose colour it has, whether it hides at nothing."""

    words: str
    term: str
    hides: bool = False


@dataclass(frozen=True, kw_only=True, slots=True)
class Rules:
    """Everything that a plan asks of an engine's package, under one name.

    plans            the kind of plan: gpu or neuron
    needs_model      whether a plan needs one, or weights and blocks may be stated instead
    ignores_unread   whether a setting of another engine is passed over and said so; else it is refused
    sizes_device     who says how large the device is
    rows             its ledger lines by name, in the order in which the bytes are spent
    place            what a deployment names of the hardware: a chip, or more
    resolve          what it refuses, supplies and changes
    frame            what no array can change: formats, ranks, groups, pages
    lines            the ledger's lines of one rank that are known before the policy
    budget           the policy at one point of the bands
    held             classes of tensors on one rank
    prints           lines of the total that the engine prints to one decimal, in its order; none where it does not
    """

    plans: str
    needs_model: bool
    ignores_unread: bool
    sizes_device: str
    rows: Mapping[str, Row]
    place: Callable[..., Any]
    resolve: Callable[..., Any]
    frame: Callable[..., Any]
    lines: Callable[..., Any]
    budget: Callable[..., Any]
    held: Callable[..., Any]
    prints: tuple[str, ...] = ()
