"""Where a model's config.json is: the registry, a folder, a file, or a hub cache that is already on the machine."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from capplan.model import Model, from_config
from capplan.registry import METHODS, Datum, Refused, RegistryError, closest, names, open_table, sources

MAX_CONFIG_BYTES = 16 << 20
"""Larger than any config.json; what is larger is something else."""


def load_model(reference: str | Path, *, overrides: Mapping[str, Any] | None = None) -> Model:
    """A model by registry name, folder, path of a config.json, or Hugging Face id that is in the hub's cache.

    overrides  keys that replace those of the config.json, as the engine's hf_overrides

    Raises Refused: no such model (with the closest known names), a file that is no JSON, an unknown
    architecture, a field that is missing, negative or absurd.
    """
    return _load(
        str(reference), json.dumps(dict(overrides), sort_keys=True) if overrides else "", _stamp(str(reference))
    )


def _stamp(reference: str) -> int:
    """When the file behind a reference changed, so that a changed file is read again."""
    if reference in names("models"):
        return 0
    path = Path(reference).expanduser()
    try:
        file = path / "config.json" if path.is_dir() else path
        return file.stat().st_mtime_ns
    except (OSError, ValueError):
        return 0


@lru_cache(maxsize=256)
def _load(reference: str, overrides: str, stamp: int) -> Model:
    text = reference.strip()
    if not text:
        raise Refused("no model is named; give a registry name, a folder, or the path of a config.json")
    known = names("models")
    lower = {name.lower(): name for name in known}
    short = {name.rsplit("/", 1)[-1].lower(): name for name in known}
    path = Path(text).expanduser()
    if text.lower() in lower:
        return _from_registry(lower[text.lower()], overrides)
    if _exists(path):
        return _from_path(path, overrides)
    if text.lower() in short:
        return _from_registry(short[text.lower()], overrides)
    cached = _cached(text)
    if cached is not None:
        return _from_file(cached, text, "the hub's cache on this machine", overrides)
    if path.suffix == ".json" or text.count("/") > 1 or text.startswith((".", "~")):
        raise Refused(f"there is no file {text!r}; give the path of a config.json, its folder, or a registry name")
    raise Refused(
        f"there is no model {text!r} in the registry; {closest(text, known)}; "
        "a folder or the path of a config.json works too"
    )


def _exists(path: Path) -> bool:
    """Whether there is such a path; a text that no file system could hold names none."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def _from_registry(name: str, overrides: str) -> Model:
    table = open_table("models", name)
    if table.text("name") != name:
        raise table.fail("name", f"must be {name!r}, as the file is called")
    method = table.word("method", tuple(METHODS))
    source, where, why = table.text("source"), table.text("where"), table.text("why", None)
    if source not in sources():
        raise table.fail("source", f"is {source!r}, which sources.toml does not list")
    if method == "assumed" and why is None:
        raise table.fail("why", "is missing; an assumed config says why and what would replace it")
    revision = table.text("revision", None)
    nulls = table.words("nulls", ())
    config = table.get("config", dict, "a table of the config's facts")
    table.done()
    both = set(nulls) & set(config)
    if both:
        raise table.fail("nulls", f"names {sorted(both)[0]}, which config states")
    datum = Datum(
        key="config",
        file=table.file,
        value=name,
        low=name,
        high=name,
        method=method,
        source=source,
        where=where,
        why=why,
    )
    data = {**config, **dict.fromkeys(nulls), **_merged(overrides)}
    return from_config(
        data, name=name, origin=datum.origin(), revision=revision, overrides=overrides, data_points=(datum,)
    )


def _merged(overrides: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(overrides) if overrides else {}
    return found


def _from_path(path: Path, overrides: str) -> Model:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise Refused(f"{path} has no config.json; give a folder that has one, or the path of the file")
    folder = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _from_file(file, folder.replace("__", "/"), str(file), overrides)


def _from_file(file: Path, name: str, origin: str, overrides: str) -> Model:
    try:
        size = file.stat().st_size
        data = json.loads(file.read_text(encoding="utf-8")) if size <= MAX_CONFIG_BYTES else None
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"{file} is no text in UTF-8, and a config.json is") from None
    except json.JSONDecodeError as error:
        raise Refused(f"{file} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except (ValueError, RecursionError):
        raise Refused(f"{file} is JSON that is nested too deep or holds a number too long to read") from None
    if size > MAX_CONFIG_BYTES:
        raise Refused(f"{file} holds {size:,} bytes, too many for a config.json")
    if not isinstance(data, dict):
        raise Refused(f"{file} holds a {type(data).__name__}; a config.json is a JSON object")
    return from_config({**data, **_merged(overrides)}, name=name, origin=origin, overrides=overrides)


def _cached(reference: str) -> Path | None:
    """The config.json of a hub id that is already on this machine; nothing is fetched."""
    if reference.count("/") != 1:
        return None
    try:
        from huggingface_hub import try_to_load_from_cache
        from huggingface_hub.errors import HFValidationError
    except ImportError:
        return None
    try:
        found = try_to_load_from_cache(reference, "config.json")
    except HFValidationError:
        return None
    return Path(found) if isinstance(found, str) else None


def known_models() -> tuple[Model, ...]:
    """Every model of the registry, in order."""
    found = []
    for name in names("models"):
        try:
            found.append(load_model(name))
        except Refused as error:
            raise RegistryError(f"registry/models/{name.replace('/', '__')}.toml: {error}") from None
    return tuple(found)
