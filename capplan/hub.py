"""Where a model's config.json is: the registry, a folder, a file, or a hub cache that is already on the machine."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any

from capplan.model import Model, from_config
from capplan.model.facts import from_registry, from_table, merged
from capplan.registry import Refused, Table, closest, names, spelled

MAX_CONFIG_BYTES = 16 << 20
"""Larger than any config.json; what is larger is something else."""


def load_model(
    reference: str | Path, *, overrides: Mapping[str, Any] | None = None, assume_generic: bool = False
) -> Model:
    """A model by registry name, folder, path of a config.json, or Hugging Face id that is in the hub's cache.

    overrides  keys that replace those of the config.json, as the engine's hf_overrides
    assume_generic  build an unknown architecture as a plain decoder, with a band; a known one is built as ever

    Raises Refused: no such model (with the closest known names), a file that is no JSON, an unknown
    architecture, a field that is missing, negative or absurd.
    """
    text = json.dumps(dict(overrides), sort_keys=True) if overrides else ""
    return _load(str(reference), text, _stamp(str(reference)), bool(assume_generic))


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
def _load(reference: str, overrides: str, stamp: int, generic: bool) -> Model:
    text = reference.strip()
    if not text:
        raise Refused("no model is named; give a registry name, a folder, or the path of a config.json")
    known = names("models")
    lower = {name.lower(): name for name in known}
    short = {name.rsplit("/", 1)[-1].lower(): name for name in known}
    path = Path(text).expanduser()
    if text.lower() in lower:
        return from_registry(lower[text.lower()], overrides, generic)
    if _exists(path):
        return _from_path(path, overrides, generic)
    bare = text.lower() if text.count("/") == 0 else text.rsplit("/", 1)[-1].lower()
    if text.lower() in short:
        return from_registry(short[text.lower()], overrides, generic)
    if text.count("/") == 1 and bare in lower:
        return from_registry(lower[bare], overrides, generic)
    cached = _cached(text)
    if cached is not None:
        return _from_file(cached, text, "the hub's cache on this machine", overrides, generic)
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


def _from_path(path: Path, overrides: str, generic: bool) -> Model:
    file = path / "config.json" if path.is_dir() else path
    if not file.is_file():
        raise Refused(f"{path} has no config.json; give a folder that has one, or the path of the file")
    if file.suffix == ".toml":
        return _from_toml(file, overrides, generic)
    folder = file.resolve().parent.name if file.name == "config.json" else file.stem
    return _from_file(file, folder.replace("__", "/"), str(file), overrides, generic)


def _from_toml(file: Path, overrides: str, generic: bool) -> Model:
    """A model file like the registry's, wherever it lies."""
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise Refused(f"{file} holds {file.stat().st_size:,} bytes, too many for a model file")
        data = spelled(tomllib.loads(file.read_text(encoding="utf-8")))
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise Refused(f"{file} is not TOML: {error}") from None
    table = Table(str(file.resolve()), data)
    return from_table(table, table.text("name"), overrides, generic)


def _from_file(file: Path, name: str, origin: str, overrides: str, generic: bool) -> Model:
    data = _json(file, "config.json")
    quantization = file.with_name("hf_quant_config.json")
    beside = _json(quantization, "hf_quant_config.json") if quantization.is_file() else None
    data = {**data, **merged(overrides)}
    return from_config(data, name=name, origin=origin, overrides=overrides, beside=beside, assume_generic=generic)


def _json(file: Path, kind: str) -> dict[str, Any]:
    """A JSON object out of a file, or why it is none."""
    try:
        if file.stat().st_size > MAX_CONFIG_BYTES:
            raise Refused(f"{file} holds {file.stat().st_size:,} bytes, too many for a {kind}")
        data = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        raise Refused(f"{file} cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise Refused(f"{file} is no text in UTF-8, and a {kind} is") from None
    except json.JSONDecodeError as error:
        raise Refused(f"{file} is not JSON: {error.msg} in line {error.lineno}, column {error.colno}") from None
    except Refused:
        raise
    except (ValueError, RecursionError):
        raise Refused(f"{file} is JSON that is nested too deep or holds a number too long to read") from None
    if not isinstance(data, dict):
        raise Refused(f"{file} holds a {type(data).__name__}; a {kind} is a JSON object")
    return data


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
