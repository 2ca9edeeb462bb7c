"""Laws of NeuronCores against AWS's tables and the worked vectors."""

import json
from pathlib import Path

import pytest

from capplan.laws.neuron import kv_head_copies, logical_cores_per_hbm_stack, requests_admitted

VECTORS = json.loads((Path(__file__).parent.parent / "data" / "neuron-vectors.json").read_text())


@pytest.mark.parametrize(
    ("cores", "degree", "sharing"),
    [
        # AWS Neuron documentation, Logical NeuronCore configuration: two cores at each stack of Trainium2 and 3
        (2, 1, 2),
        (2, 2, 1),
        # Trainium/Inferentia2 architecture: two cores and two stacks, so each core has its own
        (1, 1, 1),
    ],
)
def test_grouped_cores_leave_the_stack_to_one(cores, degree, sharing):
    found = logical_cores_per_hbm_stack(physical_cores_per_hbm_stack=cores, logical_nc_config=degree)
    assert found == sharing


@pytest.mark.parametrize("row", VECTORS["blocks"], ids=lambda row: row["id"])
def test_heads_are_copied_beyond_their_number_and_requests_counted_whole(row):
    asked, gives = row["asked"], row["gives"]
    copies = kv_head_copies(n_kv_heads=asked["total_num_kv_heads"], tensor_parallel_size=asked["tensor_parallel_size"])
    assert copies == gives["kv_replication_factor"]
    admitted = requests_admitted(kv_blocks=gives["num_blocks"], request_blocks=gives["blocks_per_max_len_request"])
    assert admitted == gives["scheduler_max_concurrency"]


def test_one_block_fewer_admits_one_request_fewer():
    assert [requests_admitted(kv_blocks=n, request_blocks=256) for n in (511, 512, 513)] == [1, 2, 2]
    assert [kv_head_copies(n_kv_heads=8, tensor_parallel_size=t) for t in (15, 16, 17)] == [1, 2, 2]
