"""What the files of vLLM's releases say: which layout serves a matrix, and how the file of a release reads."""

import pytest

from capplan.engines.release import SIZES, load_engine
from capplan.engines.vllm.formats import layout_of
from capplan.registry import load_chip, names

ENGINE = load_engine("vllm-0.33.0")


def kernel(form, *, rows=4096, columns=21_504, group=128, chip="h100-sxm", engine=ENGINE):
    """The kernel that serves a linear matrix of a format."""
    known = {"rows": rows, "columns": columns, "matrices": 1, "block_rows": 0, "group": group, "bits": 4}
    sizes = {**dict.fromkeys(SIZES, 0), **known}
    found = layout_of(form, "linear", sizes, engine, load_chip(chip))
    return found.kernel if found is not None else None


@pytest.mark.parametrize("form", ["awq", "gptq", "int-packed"])
@pytest.mark.parametrize(
    ("group", "serves"), [(32, False), (64, True), (96, False), (112, False), (127, False), (128, True), (256, False)]
)
def test_machete_takes_groups_of_64_and_128_alone(form, group, serves):
    # vllm 0.33.0, quantization/utils/machete_utils.py, query_machete_supported_group_sizes: -1, 64 and 128;
    # a group of the whole column is refused when the checkpoint is read
    assert (kernel(form, group=group) == "Machete") is serves


@pytest.mark.parametrize(
    ("rows", "columns", "serves"), [(128, 64, True), (64, 64, False), (128, 96, False), (256, 192, True)]
)
def test_machete_takes_whole_tiles(rows, columns, serves):
    assert (kernel("gptq", rows=rows, columns=columns, group=64) == "Machete") is serves


def test_releases_stand_in_a_folder_and_are_listed_by_their_names():
    assert names("engines") == tuple(sorted(names("engines")))
    assert "vllm-0.33.0" in names("engines") and not any("/" in name for name in names("engines"))
