"""Parts that registry files describe, put into a graph: their tensors, states, caches, buffers and rotary tables."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from capplan.model.building import Building
from capplan.model.formulas import Formula
from capplan.model.graph import DTYPE_BITS, EACH, FIRST, Buffer, Cached, Extent, Rope, State
from capplan.model.kinds import chosen
from capplan.model.parts import Part, Size
from capplan.registry import Refused


def named(b: Building, part: Part) -> Callable[[str], int]:
    """What a part's formulas take for a name: a size of the model, or a key of config.json."""
    sizes = {"hidden": b.hidden, "vocab": b.vocab, "heads": b.n_heads, "kv_heads": b.n_kv_heads}

    def value(name: str) -> int:
        if name in sizes:
            return sizes[name]
        key = part.names.get(name, name)
        outer, _, inner = key.partition(".")
        if inner:
            b.c.read.add(outer)
            table = b.c.data.get(outer)
            found = table.get(inner, part.defaults.get(key)) if isinstance(table, dict) else None
            if isinstance(found, bool) or not isinstance(found, int) or found < 0:
                raise b.c.fail(key, f"is {found!r}; it must be a whole number")
            return found
        if not b.c.has(key) and key in part.defaults:
            return int(part.defaults[key])
        if isinstance(b.c.get(key), bool):
            return int(b.c.flag(key))
        return b.c.count(key, least=0)

    return value


def tower(b: Building, part: Part) -> None:
    """What a class loads beside the language model, on the first stage."""
    c, f = b.c, b.f
    stated = c.whole.get(f.tower_config)
    c.read.add(f.tower_config)
    if stated is None:
        if not part.defaults:
            return
        stated = {}
    if not isinstance(stated, Mapping):
        raise Refused(f"{c.name}: {f.tower_config} in config.json is {stated!r}; it must be a table")
    for key, allowed in part.words.items():
        if stated.get(key, allowed[0]) not in allowed:
            raise Refused(
                f"{c.name}: {f.tower_config}.{key} in config.json is {stated[key]!r}; "
                f"capplan has a part for {', '.join(map(str, allowed))}"
            )

    def value(name: str) -> int:
        if name in ("text_hidden", "text_layers"):
            return b.hidden if name == "text_hidden" else b.n_layers
        key = part.names.get(name, name)
        found = stated.get(key, part.defaults.get(key))
        if isinstance(found, list):
            return len(found)
        if isinstance(found, bool):
            return int(found)
        if not isinstance(found, int) or found < 0:
            raise Refused(f"{c.name}: {f.tower_config}.{key} in config.json is {found!r}; it must be a whole number")
        return found

    put(b, part, value, ())


def put(b: Building, part: Part, value: Callable[[str], int], layers: tuple[int, ...]) -> None:
    """Adds what a part stores."""
    seen: dict[str, int] = {}

    def keys(text: Formula) -> str:
        return ", ".join(part.names.get(name, name) for name in text.names)

    def of(text: Formula) -> int:
        try:
            return text.value({name: known(name) for name in text.names})
        except ZeroDivisionError:
            raise b.c.fail(keys(text), f"leave nothing to divide by in {text.text!r}") from None

    def known(name: str) -> int:
        if name not in seen:
            seen[name] = of(part.made[name]) if name in part.made else value(name)
        return seen[name]

    def extent(size: Size) -> Extent:
        unit = of(size.unit) if size.unit else 1
        if unit < 1:
            raise b.c.fail(keys(size.unit) if size.unit else part.name, f"is {unit}; it must be 1 or more")
        return Extent(size=of(size.size), split=size.split, unit=unit)

    for row in part.rows:
        if row.when is not None and not of(row.when):
            continue
        place, copies = row.place, of(row.copies)
        own = chosen(b, row.layers, layers) if place == EACH and layers else ()
        if place == EACH and not layers:
            place = FIRST
        if (place == EACH and not own) or not copies:
            continue
        columns = extent(row.columns) if row.columns is not None else None
        more: dict[str, Any] = {
            "place": place,
            "layers": own,
            "copies": copies,
            "bits": row.bits if not row.wide_with or b.method in row.wide_with else None,
        }
        module = b.module(row.module) if layers and row.module else row.module
        more |= {"quantized": row.quantized, "module": module, "packs": row.packs}
        b.add(row.name, row.line, tuple(extent(s) for s in row.rows), columns, **more)
    if part.state is not None:
        s = part.state
        b.recurrent.append(
            State(
                law=s.law,
                kind=s.kind or s.law,
                layers=layers,
                sizes={size: of(text) for size, text in s.sizes.items()},
                bits=tuple(state_bits(b, word) for word in s.formats),
                chunk=of(s.chunk),
                checkpoints=s.checkpoints,
                exports_on=s.exports_on,
            )
        )
    for buffer in part.buffers:
        own = chosen(b, buffer.layers, layers) if buffer.layers is not None else ()
        if (buffer.when is not None and not of(buffer.when)) or (buffer.layers is not None and not own):
            continue
        b.buffers.append(
            Buffer(
                name=buffer.name,
                bits=buffer.bits,
                count=of(buffer.count),
                per_token=of(buffer.per_token),
                per_sequence=of(buffer.per_sequence),
                beside=of(buffer.beside),
                layers=own,
                place=buffer.place,
                wants=buffer.wants,
                leads=buffer.leads,
            )
        )
    for cache in part.caches:
        b.caches.append(
            Cached(
                name=cache.name,
                spec=cache.spec,
                kind=cache.kind,
                layers=chosen(b, cache.layers, layers),
                block_size=of(cache.block_size),
                entry_bytes=of(cache.entry_bytes),
                tokens_per_entry=of(cache.tokens_per_entry),
                window=of(cache.window) or None,
                alignment=of(cache.alignment),
            )
        )
    for table in part.ropes:
        readers = chosen(b, table.layers, layers)
        if not readers:
            continue
        b.ropes.append(
            Rope(
                rope_type="default",
                positions=of(table.positions),
                rotary_dim=of(table.width),
                bits=table.bits,
                use=table.name,
                layers=readers,
            )
        )


def state_bits(b: Building, word: str) -> int | None:
    """Bits of a part of a state: `model`, a format, or `key:default` where config.json may name one."""
    key, colon, default = word.partition(":")
    if colon:
        stated = b.c.get(key)
        word = default if stated in (None, "auto") else str(stated).removeprefix("torch.")
    if word == "model":
        return None
    if word not in DTYPE_BITS:
        raise b.c.fail(key, f"is {word!r}; capplan knows {', '.join(DTYPE_BITS)}")
    return DTYPE_BITS[word]
