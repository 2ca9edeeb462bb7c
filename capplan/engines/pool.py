"""The pool of blocks: caches in groups, and what a request holds of each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from math import lcm
from typing import Any

from capplan.laws import kv_cache
from capplan.settings.deployment import Deployment
from capplan.units import Count, Flag, at_most, ceil_div, choose, every, some

SPECS = {"full": "FullAttentionSpec", "latent": "MLAAttentionSpec"}
"""The engine's class of cache for a window or a chunk that became full."""

MIXED = "UniformTypeKVCacheSpecs"
"""The engine's class for a group whose caches share a type and not a page."""

FULL, SLIDING, CHUNKED, RECURRENT, RING = "full", "sliding", "chunked", "recurrent", "ring"
"""What decides how many pages a request holds: every token, a window, a chunk, a state, a fixed number of entries."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Spec:
    """What the pool knows of one layer's cache.

    spec         the engine's class
    kind         full, sliding, chunked, recurrent or ring: what decides how many pages a request holds
    block_size   context tokens that one page covers
    page_bytes   bytes of one page, alignment included
    name         what a member of a mixed group is called
    latent       whether a smaller page of it can be neither padded nor turned full
    window       tokens that a layer looks back, or of one chunk
    pages        pages that a request holds whatever its length; None where they follow it
    extra_pages  pages beside those that the tokens of a request fill
    divides      whether ranks that share a context divide its tokens
    stride       the pool's block is a multiple of this
    form         what else two caches must have in common to be one kind
    padding      bytes of the page that were added to bring it to the size of others
    """

    spec: str
    kind: str
    block_size: int
    page_bytes: int
    name: str = "attention"
    latent: bool = False
    window: int | None = None
    pages: int | None = None
    extra_pages: int = 0
    divides: bool = True
    stride: int = 1
    form: str = ""
    padding: int = 0

    @property
    def kin(self) -> tuple[object, ...]:
        """What caches of one uniform type have in common."""
        return self.kind, self.block_size, self.window, self.pages, self.extra_pages, self.divides


@dataclass(frozen=True, kw_only=True, slots=True)
class Cache:
    """One layer's cache of a kind; a layer may own several, and one that reads another's owns none."""

    layer: int
    spec: Spec


@dataclass(frozen=True, kw_only=True, slots=True)
class Member:
    """One cache of a group that has several kinds or sizes."""

    layer: int
    name: str
    spec: str
    page_bytes: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Group:
    """Layers that share a block table: which, their class, a page, and what a request holds of it.

    Caches of one size have one layer's page; of several sizes the page of all together, and `members`.
    `paddings` has what each cache's page was padded with, in their order, and nothing where none was.
    """

    layers: tuple[int, ...]
    spec: str
    kind: str
    block_size: int
    page_bytes: int
    window: int | None
    pages: int | None = None
    extra_pages: int = 0
    divides: bool = True
    members: tuple[Member, ...] = ()
    paddings: tuple[int, ...] = ()

    @property
    def block_bytes(self) -> int:
        """What this group's caches fill of one pool block."""
        if self.members:
            return sum(m.page_bytes for m in self.members)
        return len(self.layers) * self.page_bytes

    @property
    def bounded(self) -> bool:
        """Whether a request's pages stop growing with its length."""
        return self.window is not None or self.pages is not None

    def caches(self) -> tuple[Member, ...]:
        """Every cache of the group, of one size or of several."""
        if self.members:
            return self.members
        page, spec = self.page_bytes, self.spec
        return tuple(Member(layer=i, name="attention", spec=spec, page_bytes=page) for i in self.layers)

    def on(self, layers: range) -> Group:
        """The share of the group that some layers hold."""
        kept = tuple(i for i in self.layers if i in layers)
        owners = (m.layer for m in self.members) if self.members else self.layers
        paddings = tuple(n for i, n in zip(owners, self.paddings, strict=True) if i in layers) if self.paddings else ()
        if not self.members:
            return replace(self, layers=kept, paddings=paddings)
        members = tuple(m for m in self.members if m.layer in layers)
        page = sum(m.page_bytes for m in members) if self.spec == MIXED else self.page_bytes
        return replace(self, layers=kept, members=members, page_bytes=page, paddings=paddings)


class CannotGroup(ValueError):
    """Caches whose pages cannot be brought to one size; the text says which."""


# Grouping


def grouped(caches: Sequence[Cache], *, hybrid: bool = True, packed: bool = False) -> tuple[Group, ...]:
    """Caches in groups that share one pool.

    Caches of one kind are one group, and so are those of one uniform type.  Others are packed with their
    pages as they are, where the backend lays blocks outermost; elsewhere pages are brought to one size.

    caches  in the order of the layers
    hybrid  whether the engine keeps windows apart; else they become full caches
    packed  whether the backend lays blocks outermost, so that pages of several sizes share one

    Raises CannotGroup where pages cannot be brought to one size.

    Source: vllm, v1/core/kv_cache_planning.py, get_kv_cache_groups.
    """
    if not hybrid and len({cache.spec.kind for cache in caches}) > 1:
        caches = _without_windows(caches)
    buckets = _buckets(caches, lambda spec: spec)
    if len(buckets) == 1:
        return (_one_size(caches),)
    if len({bucket[0].spec.kin for bucket in buckets}) == 1:
        return (_mixed(caches),)
    if packed and len({bucket[0].spec.page_bytes for bucket in buckets}) > 1:
        return _packed(caches)
    return _uniform(_unified(caches))


def _buckets(caches: Iterable[Cache], key: Callable[[Spec], Any]) -> list[list[Cache]]:
    """Caches by what they have in common, each bucket in the order of the layers."""
    found: dict[Any, list[Cache]] = {}
    # Layers share their specs, so each is looked at once.
    seen: dict[int, list[Cache]] = {}
    for cache in caches:
        bucket = seen.get(id(cache.spec))
        if bucket is None:
            bucket = seen[id(cache.spec)] = found.setdefault(key(cache.spec), [])
        bucket.append(cache)
    return list(found.values())


def _without_windows(caches: Sequence[Cache]) -> list[Cache]:
    """Windowed and chunked caches as full ones, in the form of the full ones beside them."""
    full = next((c.spec for c in caches if c.spec.kind == FULL), None)
    found = []
    for c in caches:
        s = c.spec
        if s.kind in (SLIDING, CHUNKED):
            spec = SPECS["latent" if s.latent else "full"]
            s = replace(s, spec=spec, kind=FULL, window=None)
            # Caches of one page are one kind then, whatever else told them apart.
            s = full if full is not None and full.page_bytes == s.page_bytes and full.kin == s.kin else s
        found.append(replace(c, spec=s))
    return found


def _group(caches: Sequence[Cache], page_bytes: int, spec: str, members: tuple[Member, ...]) -> Group:
    first = caches[0].spec
    return Group(
        layers=tuple(dict.fromkeys(c.layer for c in caches)),
        spec=spec,
        kind="latent" if first.latent and first.kind == FULL else first.kind,
        block_size=first.block_size,
        page_bytes=page_bytes,
        window=first.window,
        pages=first.pages,
        extra_pages=first.extra_pages,
        divides=first.divides,
        members=members,
        paddings=tuple(c.spec.padding for c in caches) if any(c.spec.padding for c in caches) else (),
    )


def _one_size(caches: Sequence[Cache]) -> Group:
    """Caches of one kind and one page."""
    first = caches[0].spec
    plain = first.name == "attention" and len({c.layer for c in caches}) == len(caches)
    return _group(caches, first.page_bytes, first.spec, () if plain else _members(caches))


def _mixed(caches: Sequence[Cache]) -> Group:
    """Caches of one type whose pages differ: a block holds one page of each."""
    members = _members(caches)
    return _group(caches, sum(m.page_bytes for m in members), MIXED, members)


def _members(caches: Sequence[Cache]) -> tuple[Member, ...]:
    return tuple(
        Member(layer=c.layer, name=c.spec.name, spec=c.spec.spec, page_bytes=c.spec.page_bytes) for c in caches
    )


def _packed(caches: Sequence[Cache]) -> tuple[Group, ...]:
    """Groups of caches whose pages stay as they are.

    Each uniform type is a bucket.  Buckets in which every page size occurs equally often are cut into
    groups of about equally many repeats; states are cut to what fits beside the widest of the others.

    Source: vllm, v1/core/kv_cache_planning.py, the packed groups of block-outermost layouts.
    """
    buckets = [_Bucket(b) for b in _buckets(caches, lambda spec: spec.kin)]
    balanced = [b for b in buckets if b.balanced]
    least = max((b.most for b in balanced if len(b.by_page) > 1), default=0)
    repeats = 0
    if least:
        # Least padding over all balanced buckets; of equals the larger, which makes fewer groups.
        spans = range(least, max(b.most for b in buckets) + 1)
        repeats = min(spans, key=lambda d: (sum(-(b.most // -d) * d - b.most for b in balanced), -d))
    n_groups = [-(b.most // -repeats) if b.balanced and repeats else 1 for b in buckets]
    states = [b.kind in (RECURRENT, RING) or (b.kind == SLIDING and not repeats) for b in buckets]
    anchor = max(
        sum(-(len(own) // -(b.size if state else n)) * page for page, own in b.by_page.items())
        for b, n, state in zip(buckets, n_groups, states, strict=True)
    )
    found = []
    for b, n, state in zip(buckets, n_groups, states, strict=True):
        if state:
            fits = max(1, anchor // b.caches[0].spec.page_bytes)
            n = max(n, -(b.size // -fits))
        found += [_mixed(part) for part in b.parts(n)]
    return tuple(found)


class _Bucket:
    """Caches of one uniform type, by page size."""

    def __init__(self, caches: list[Cache]) -> None:
        self.caches, self.size, self.kind = caches, len(caches), caches[0].spec.kind
        self.by_page: dict[int, list[Cache]] = {}
        for cache in caches:
            self.by_page.setdefault(cache.spec.page_bytes, []).append(cache)
        self.most = max(map(len, self.by_page.values()))
        self.balanced = len(set(map(len, self.by_page.values()))) == 1

    def parts(self, n: int) -> Iterator[list[Cache]]:
        """The bucket in n groups: each page size dealt in turn, caches in the order of the layers."""
        if n == 1:
            yield self.caches
            return
        place = {id(cache): i for i, cache in enumerate(self.caches)}
        for i in range(n):
            part = [cache for own in self.by_page.values() for cache in own[i::n]]
            if part:
                yield sorted(part, key=lambda cache: place[id(cache)])


def _unified(caches: Sequence[Cache]) -> list[Cache]:
    """Caches whose pages are all as large as the largest: states and plain pages padded, others made longer.

    Source: vllm, v1/core/kv_cache_planning.py, unify_kv_cache_spec_page_size.
    """
    target = max(c.spec.page_bytes for c in caches)
    return [replace(c, spec=_widened(c.spec, target)) for c in caches]


def _widened(s: Spec, target: int) -> Spec:
    if s.page_bytes == target:
        return s
    if s.kind == RECURRENT:
        return replace(s, page_bytes=target, padding=target - s.page_bytes)
    if target % s.page_bytes == 0:
        return replace(s, page_bytes=target, block_size=s.block_size * (target // s.page_bytes))
    if not s.latent:
        return replace(s, page_bytes=target, padding=target - s.page_bytes)
    raise CannotGroup(
        f"the {s.name} cache has pages of {s.page_bytes:,} bytes, which neither divide the largest of {target:,} "
        "nor may be padded"
    )


def _uniform(caches: Sequence[Cache]) -> tuple[Group, ...]:
    """Groups of about one size: the fewest caches of any kind, or the most where that is less than 1.5 times as many.

    A kind's layers are dealt to its groups in turn.
    """
    buckets = _buckets(caches, lambda spec: replace(spec, name="attention", form="", padding=0))
    sizes = [len(b) for b in buckets]
    size = max(sizes) if 2 * max(sizes) < 3 * min(sizes) else min(sizes)
    found = []
    for bucket in buckets:
        n = -(len(bucket) // -size)
        found += [_one_size(bucket[i::n]) for i in range(n)]
    return tuple(found)


def own_pages(caches: Sequence[Cache]) -> tuple[Group, ...]:
    """Caches that share no pool: each kind by itself, every cache at its own page."""
    return tuple(_one_size(bucket) for bucket in _buckets(caches, lambda spec: spec))


def pool_block_bytes(groups: Sequence[Group], caches: Sequence[Cache] = ()) -> int:
    """Bytes of one block of the pool: the widest group, in whole strides of every cache.

    Source: vllm, v1/core/kv_cache_planning.py, the block stride of packed groups.
    """
    widest = max(g.block_bytes for g in groups)
    stride = lcm(*{c.spec.stride for c in caches}) if caches else 1
    return -(widest // -stride) * stride


# What a request holds


def speculative_tokens(d: Deployment) -> int:
    """Tokens that a step drafts for each request; 0 where nobody speculates."""
    return d.num_speculative_tokens or 0


def admitted(g: Group, d: Deployment, tokens: Count, in_flight: Count) -> Count:
    """Blocks of one group that a request of a length needs at admission."""
    if g.pages is not None:
        return g.pages + 0 * tokens
    if g.window is None:
        return growing(g, d, tokens)
    if g.kind == CHUNKED:
        return kv_cache.chunk_admission_blocks(
            context_tokens=tokens, chunk=g.window, max_in_flight_tokens=in_flight, block_size=g.block_size
        )
    return kv_cache.window_admission_blocks(
        context_tokens=tokens, window=g.window, max_in_flight_tokens=in_flight, block_size=g.block_size
    )


def growing(g: Group, d: Deployment, tokens: Count) -> Count:
    """Blocks of one group that keeps every token of a request."""
    blocks = kv_cache.full_request_blocks(
        context_tokens=tokens,
        block_size=g.block_size,
        decode_context_parallel_size=d.decode_context_parallel_size if g.divides else 1,
    )
    return blocks + g.extra_pages * at_most(tokens, 1) if g.extra_pages else blocks


def decoding(g: Group, d: Deployment, tokens: Count | None) -> Count:
    """Blocks of one group that a request holds in steady decode, of a bounded one at any length where none is given."""
    if g.pages is not None:
        return g.pages if tokens is None else g.pages + 0 * tokens
    if g.window is None:
        return growing(g, d, 0 if tokens is None else tokens)
    if g.kind == CHUNKED:
        most = ceil_div(g.window, g.block_size)
    else:
        most = kv_cache.window_decode_blocks(
            window=g.window, num_speculative_tokens=speculative_tokens(d), block_size=g.block_size
        )
    return most if tokens is None else at_most(most, ceil_div(tokens, g.block_size))


def request_blocks(groups: tuple[Group, ...], d: Deployment, tokens: Count, in_flight: Count) -> Count:
    """Blocks that one request of a length needs at admission, over all groups."""
    total: Count = 0
    for g in groups:
        total = total + admitted(g, d, tokens, in_flight)
    return total


def steady_blocks(groups: tuple[Group, ...], d: Deployment, tokens: Count) -> Count:
    """Blocks that one request of a length holds in steady decode."""
    total: Count = 0 * tokens
    for g in groups:
        total = total + decoding(g, d, tokens)
    return total


def longest_length(groups: tuple[Group, ...], d: Deployment, kv_blocks: Count, in_flight: Count) -> Count:
    """The longest length, up to max_model_len, whose request and the null block fit into the pool; 0 where none does.

    Source: vllm, v1/core/kv_cache_planning.py, _estimate_max_model_len_from_groups.
    """
    limit = d.max_model_len
    if limit is None:
        raise ValueError("a resolved deployment has a length")
    first = groups[0]
    if len(groups) == 1 and not first.bounded and not first.extra_pages:
        most = kv_cache.tokens_of_blocks(
            kv_blocks=kv_blocks,
            block_size=first.block_size,
            decode_context_parallel_size=d.decode_context_parallel_size if first.divides else 1,
        )
        return at_most(most, limit)

    return longest_of(d, kv_blocks, lambda length: request_blocks(groups, d, length, in_flight))


def longest_of(d: Deployment, kv_blocks: Count, need: Callable[[Count], Count]) -> Count:
    """The longest length, up to max_model_len, whose blocks fit into the pool beside the null block; 0 for none."""
    limit = d.max_model_len
    if limit is None:
        raise ValueError("a resolved deployment has a length")

    def fits(length: Count) -> Flag:
        return need(length) <= kv_blocks - 1

    if every(fits(limit)):
        return limit
    low: Count = 0 * kv_blocks + 0 * limit
    high: Count = limit + low
    while some(low < high):
        middle = ceil_div(low + high, 2)
        good = fits(middle)
        low, high = choose(good, middle, low), choose(good, high, middle - 1)
    return low


def n_batches(d: Deployment) -> int:
    """Steps in flight at once: one for each stage, one more with asynchronous scheduling.

    Source: vllm, config/vllm.py, VllmConfig.max_concurrent_batches.
    """
    return d.pipeline_parallel_size + (1 if d.async_scheduling else 0)
