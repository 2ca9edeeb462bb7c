"""A question as the query of an address: the model and the settings that were said, under the flags' own names."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from capplan.registry import Refused, closest
from capplan.settings.deployment import SETTINGS, setting, spelled

MOST_CHARACTERS = 4_096
"""Longer than any path or hf_overrides that a link may carry."""

NEAR = "the closest"
"""How a hint begins that names what was perhaps meant; a list of everything would bury the other faults."""

Question = tuple[str | None, dict[str, Any], list[str]]


def read_query(text: str) -> Question:
    """The model, the settings, and a sentence for each part that is unknown or bad; such parts count as not said.

    text  a query with or without its question mark, or the whole address

    >>> read_query("?model=Qwen/Qwen3-32B&tensor-parallel-size=4&speed=9")[:2]
    ('Qwen/Qwen3-32B', {'tensor_parallel_size': 4})
    """
    query = urlsplit(text.strip()).query if "://" in text.partition("?")[0] else text.strip().removeprefix("?")
    model: str | None = None
    said: dict[str, Any] = {}
    faults: list[str] = []
    seen: set[str] = set()
    for raw_name, raw in parse_qsl(query, keep_blank_values=True):
        key = spelled(raw_name.strip())
        if key != "model" and key not in SETTINGS:
            near = closest(_clip(key), ["model", *SETTINGS])
            faults.append(f"there is no setting {_clip(raw_name)!r}" + (f"; {near}" if near.startswith(NEAR) else ""))
            continue
        if key in seen:
            faults.append(f"{key} is said more than once; the first counts")
            continue
        seen.add(key)
        if not raw.strip():
            faults.append(f"{key} is named without a value")
        elif len(raw) > MOST_CHARACTERS:
            faults.append(f"{key} holds {len(raw):,} characters, and at most {MOST_CHARACTERS:,} are read")
        elif key == "model":
            model = raw.strip()
        else:
            try:
                said[key] = setting(key, raw)
            except Refused as error:
                faults.append(str(error))
    return model, said, faults


def write_query(model: str, said: Mapping[str, Any]) -> str:
    """The query that says a model and some settings; None is not said, nor is a model without a name.

    >>> write_query("Qwen/Qwen3-32B", {"chip": "l4", "max_model_len": 8_192, "enforce_eager": True, "block_size": None})
    'model=Qwen/Qwen3-32B&chip=l4&max_model_len=8192&enforce_eager=true'
    """
    words = {
        name: str(value).lower() if isinstance(value, bool) else value
        for name, value in said.items()
        if value is not None
    }
    return urlencode({**({"model": model} if model else {}), **words}, safe="/")


def _clip(text: str) -> str:
    return text if len(text) <= 60 else text[:59] + "…"
