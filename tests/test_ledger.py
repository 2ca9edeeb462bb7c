"""The ledgers of some deployments worked by hand, line by line, at the centre and at both ends.

Nothing here is read from the registry or computed by a law: tensors are written down from the config.json, figures
from the start-up records and the engine's released code.  So a constant that changes, or a step that gets lost
between a law and the ledger, fails here.
"""

from dataclasses import dataclass

import pytest

import capplan as cp

# Figures that only records give, GiB at the centre, the low and the high end, in bytes

NON_TORCH_ONE = (107_374_182, 0, 214_748_365)  # 0.1 (0 to 0.2): seven records of one rank
NON_TORCH_MORE = (536_870_912, 161_061_274, 1_073_741_824)  # 0.5 (0.15 to 1.0): two ranks on H100, four on L40S, B200
GRAPHS = (429_496_730, 107_374_182, 1_181_116_006)  # 0.4 (0.1 to 1.1): fifteen printed estimates
GRAPHS_FEW = (429_496_730, 53_687_091, 1_181_116_006)  # the low end is 0.05 below 64 captured tokens
GRAPHS_LARGE = (1_610_612_736, 322_122_547, 5_368_709_120)  # 1.5 (0.3 to 5.0): experts models above 40 G parameters
NO_GRAPHS = (0, 0, 0)
BEFORE_ONE = (536_870_912, 214_748_365, 858_993_459)  # 0.5 (0.2 to 0.8), assumed
BEFORE_MORE = (1_073_741_824, 429_496_730, 2_147_483_648)  # 1.0 (0.4 to 2.0): record 069

LOGIT = (14, 6, 18)  # bytes per logit where FlashInfer samples: logits 2, copy 4, masked 4, probabilities 4
LOGIT_ELSEWHERE = (6, 2, 7)  # logits 2, copy 4

# Memory that the driver reports: the centre, and the lowest and the highest reading

H100 = (85_018_877_624, 84_932_978_278, 85_061_827_297)
A100 = (85_094_039_552, 84_986_665_370, 85_201_413_734)
H200 = (150_109_945_856, 150_109_945_856, 150_119_844_413)
B200 = (191_502_483_456, 191_502_483_456, 191_514_017_792)
MI300X = (206_141_652_992, 205_825_570_243, 206_141_652_992)
L4 = (23_665_269_801, 23_654_532_383, 23_665_269_801)
T4 = (15_644_418_376, 15_633_680_957, 15_842_934_784)

MIB = 1_048_576


def taken(size):
    """What torch's allocator takes for a tensor while vLLM loads: whole 2 MiB from 20 MiB on, else 512 bytes."""
    large, small = -(-size // (2 * MIB)) * 2 * MIB, -(-size // 512) * 512
    return large if size >= 20 * MIB or (size >= 10 * MIB and large - small <= MIB) else small


def ends(x):
    return x if isinstance(x, tuple) else (x, x, x)


def sampler(rows, vocab, tokens, hidden, logit=LOGIT, beside=0):
    """The sampler's pass at the centre and both ends: its rows of logits, and the step's hidden states in 16 bits."""
    return tuple(rows * vocab * q + tokens * hidden * 2 + beside for q in logit)


def larger(one, forward, percent):
    """The larger pass at each point; the forward's band is in hundredths."""
    return tuple(max(s, forward * p // 100) for s, p in zip(one, percent, strict=True))


DENSE = (100, 75, 125)  # a quarter either way
EXPERTS = (100, 50, 200)  # a factor of two either way


def state(seqs, vocab):
    """Counts of words in 4 bytes, a bit of the prompt's mask for each in words of 4 bytes."""
    return seqs * vocab * 4 + seqs * -(-vocab // 32) * 4


@dataclass(frozen=True, kw_only=True)
class Rank:
    """A rank by hand: tensors as (count, bytes of one), and each line as its bytes or as centre, low and high."""

    tensors: list
    activations: tuple
    block_bytes: int
    engine_state: object = 0
    eplb: int = 0
    non_torch: tuple = NON_TORCH_ONE
    cuda_graphs: tuple = GRAPHS
    count: int = 1

    def lines(self):
        return {
            "weights": sum(n * size for n, size in self.tensors),
            "allocator_rounding": sum(n * (taken(size) - size) for n, size in self.tensors),
            "eplb": self.eplb,
            "engine_state": self.engine_state,
            "activations": self.activations,
            "non_torch": self.non_torch,
            "cuda_graphs": self.cuda_graphs,
            "communication": 0,
        }


@dataclass(frozen=True, kw_only=True)
class Worked:
    """A deployment by hand: its ranks by stage, the tightest stage, and the verdict."""

    model: str
    settings: dict
    ranks: list
    request_blocks: int = 40_960 // 16  # of Qwen3's own length
    verdict: str = "fits"
    tightest: int = 0
    device: tuple = H100
    before: tuple = BEFORE_ONE
    hundredths: int = 92  # gpu_memory_utilization


def attention(n, qkv, hidden, own, head_dim=0):
    """Tensors of n layers of attention, 16 bits: queries, keys and values in one, one out, six scalars, two norms."""
    norms = [(2 * n, head_dim * 2)] if head_dim else []
    return [(n, qkv * hidden * 2), (n, hidden * own * 2), (6 * n, 4), (2 * n, hidden * 2), *norms]


# Qwen3-8B: 36 layers of 4096, 32 heads and 8 key-value heads of 128 with norms of their own, inner 12,288,
# 151,936 words, 40,960 positions, two tables

QWEN_TABLE = 151_936 * 4096 * 2
QWEN_ROTARY = (1, 40_960 * 128 * 2)
QWEN_NORM = (1, 4096 * 2)


def qwen_layers(n, t=1):
    mlp = [(n, 2 * 12_288 // t * 4096 * 2), (n, 4096 * 12_288 // t * 2)]
    return [*attention(n, (32 + 2 * 8) * 128 // t, 4096, 32 * 128 // t, 128), *mlp]


QWEN_WHOLE = [*qwen_layers(36), (2, QWEN_TABLE), QWEN_NORM, QWEN_ROTARY]
QWEN_STATE = state(1024, 151_936)
QWEN_SAMPLER = sampler(1024, 151_936, 8192, 4096)
QWEN_BLOCK = 36 * 16 * 8 * (128 + 128) * 2
QWEN_FORWARD = 8192 * (4096 + 3 * 12_288) * 2  # compiled: one hidden state beside gate, up and their product
QWEN_EAGER = 8192 * (3 * 4096 + 3 * 12_288) * 2  # not compiled: three, records 004 and 005

# Qwen3-32B: 64 layers of 5120, 64 heads and 8 key-value heads of 128, inner 25,600, the same words and positions

QWEN_32B_TABLE = 151_936 * 5120 * 2


def qwen_32b_layers(n, t):
    mlp = [(n, 2 * 25_600 // t * 5120 * 2), (n, 5120 * 25_600 // t * 2)]
    return [*attention(n, (64 + 2 * 8) * 128 // t, 5120, 64 * 128 // t, 128), *mlp]


QWEN_32B_TP4 = Rank(
    count=4,
    tensors=[*qwen_32b_layers(64, 4), (2, QWEN_32B_TABLE // 4), (1, 5120 * 2), QWEN_ROTARY],
    engine_state=QWEN_STATE,
    activations=sampler(1024, 151_936, 8192, 5120),
    non_torch=NON_TORCH_MORE,
    block_bytes=64 * 16 * 2 * (128 + 128) * 2,
)
QWEN_32B_FIXED = 16_392_564_224 + 237_337_088 + 641_777_664 + 2_262_040_576 + 536_870_912 + 429_496_730

# Mixtral 8x7B: 32 layers of 4096, 32 heads and 8 key-value heads of 128, 8 experts of 14,336, two for each token

MIXTRAL_TABLE, MIXTRAL_ROTARY = 32_000 * 4096 * 2, (1, 32_768 * 128 * 2)


def mixtral(t, experts, inner):
    tables = [(2, MIXTRAL_TABLE // t), (1, 4096 * 2), MIXTRAL_ROTARY]
    own = [(32, 8 * 4096 * 2), (32, experts * 2 * inner * 4096 * 2), (32, experts * 4096 * inner * 2)]
    return [*attention(32, (32 + 2 * 8) * 128 // t, 4096, 32 * 128 // t), *own, *tables]


# Qwen3-30B-A3B: 48 layers of 2048, 32 heads and 4 key-value heads of 128, 128 experts of 768, eight for each token

QWEN_30B_TABLE = 151_936 * 2048 * 2
QWEN_30B_SAMPLER = sampler(1024, 151_936, 8192, 2048)
QWEN_30B_FORWARD = 8192 * 6 * 2048 * 2  # six hidden states, record 069


def qwen_30b(t, experts):
    tables = [(2, QWEN_30B_TABLE // t), (1, 2048 * 2), QWEN_ROTARY]
    own = [(48, 128 * 2048 * 2), (48, experts * 2 * 768 * 2048 * 2), (48, experts * 2048 * 768 * 2)]
    return [*attention(48, (32 + 2 * 4) * 128 // t, 2048, 32 * 128 // t, 128), *own, *tables]


# The same in fp8: a scale of 4 bytes for each block of 128 x 128, router, tables and norms in 16 bits

QWEN_30B_FP8 = [
    *((48, n) for n in (5120 * 2048, 40 * 16 * 4, 2048 * 4096, 16 * 32 * 4, 128 * 2048 * 2)),
    *((48, n) for n in (128 * 1536 * 2048, 128 * 12 * 16 * 4, 128 * 2048 * 768, 128 * 16 * 6 * 4)),
    *[(6 * 48, 4), (2 * 48, 2048 * 2), (2 * 48, 128 * 2), (2, QWEN_30B_TABLE), (1, 2048 * 2), QWEN_ROTARY],
]

# Gemma 2 9B: 42 layers of 3584, 16 heads and 8 key-value heads of 256, inner 14,336, 256,000 words in one table,
# four norms a layer, every second layer looks back 4096 tokens; the embedding's scale is one value of 2 bytes

GEMMA = [
    *attention(42, (16 + 2 * 8) * 256, 3584, 16 * 256),
    *[(42, 2 * 14_336 * 3584 * 2), (42, 3584 * 14_336 * 2), (2 * 42 + 1, 3584 * 2)],
    *[(1, 256_000 * 3584 * 2), (1, 2), (1, 8192 * 256 * 2)],
]

# Gemma 2 2B on two ranks: 26 layers of 2304, 8 heads and 4 key-value heads of 256, inner 9216; a rank's matrix from the
# inner size is 20.25 MiB

GEMMA_2B_TP2 = [
    *attention(26, (8 + 2 * 4) * 256 // 2, 2304, 8 * 256 // 2),
    *[(26, 9216 * 2304 * 2), (26, 2304 * 4608 * 2), (2 * 26 + 1, 2304 * 2)],
    *[(1, 128_000 * 2304 * 2), (1, 2), (1, 8192 * 256 * 2)],
]

# Llama 3.2 1B: 16 layers of 2048, 32 heads and 8 key-value heads of 64, inner 8192, 128,256 words in one table

LLAMA_1B = [
    *attention(16, (32 + 2 * 8) * 64, 2048, 32 * 64),
    *[(16, 2 * 8192 * 2048 * 2), (16, 2048 * 8192 * 2), (1, 128_256 * 2048 * 2), (1, 2048 * 2), (1, 131_072 * 64 * 2)],
]

# Llama 3.1 70B: 80 layers of 8192, 64 heads and 8 key-value heads of 128, inner 28,672, two tables

LLAMA_70B = [
    *attention(80, (64 + 2 * 8) * 128, 8192, 64 * 128),
    *[(80, 2 * 28_672 * 8192 * 2), (80, 8192 * 28_672 * 2), (2, 128_256 * 8192 * 2)],
    *[(1, 8192 * 2), (1, 131_072 * 128 * 2)],
]

# Qwen3-Next on four ranks: 48 layers of 2048, every fourth of full attention with 16 gated heads and 2 key-value heads
# of 256, of which a quarter is rotary; 36 of linear attention with 16 key and 32 value heads of 128 and a convolution
# over 4 tokens; 512 experts of 512, ten for each token, beside one shared of 512 with a gate

QWEN_NEXT_TP4 = [
    *attention(12, 2 * 16 * 256 // 4 + 2 * 256, 2048, 16 * 256 // 4, 256)[:3],
    *[(2 * 12, 256 * 2), (2 * 48, 2048 * 2)],
    *[(36, (2 * 2048 + 2 * 4096) // 4 * 2048 * 2), (36, 2 * 32 // 4 * 2048 * 2), (36, (2 * 2048 + 4096) // 4 * 4 * 2)],
    *[(36, 32 // 4 * 4), (36, 32 // 4 * 2), (36, 128 * 2), (36, 2048 * 4096 // 4 * 2)],
    *[(48, 512 * 2048 * 2), (48, 512 * 2 * 128 * 2048 * 2), (48, 512 * 2048 * 128 * 2)],
    *[(48, 2 * 128 * 2048 * 2), (48, 2048 * 128 * 2), (48, 2048 * 2)],
    *[(2, 151_936 * 2048 * 2 // 4), (1, 2048 * 2), (1, 262_144 * 64 * 2)],
]

# DeepSeek-V3.2 on eight ranks, fp8 in blocks of 128: 61 layers of 7168, 128 latent heads, 256 experts of 2048 beside a
# shared one, three dense layers of 18,432, an indexer in each; 5001 tokens and 1024 requests of a step size buffers of
# picked tokens, entries, counts and offsets in numbers of 4 bytes

V32_SCALES = (17 * 56, 24 * 12, 32 * 4, 56 * 16, 64 * 12)
V32_TP8 = [
    *((61, n) for n in (2112 * 7168, 3072 * 1536, 4096 * 512, 7168 * 2048, 8192 * 1536)),
    *((61, 4 * n) for n in V32_SCALES),
    *((61, n) for n in (1536 * 2, 512 * 2, 7168 * 2, 7168 * 2, 192 * 7168 * 2, 256 * 4, 16 * 512 * 256 * 2)),
    *((3, n) for n in (2 * 2304 * 7168, 36 * 56 * 4, 7168 * 2304, 56 * 18 * 4)),
    *((58, n) for n in (256 * 7168 * 2, 256 * 4, 256 * 512 * 7168, 256 * 4 * 56 * 4, 256 * 7168 * 256)),
    *((58, n) for n in (256 * 56 * 2 * 4, 512 * 7168, 4 * 56 * 4, 7168 * 256, 56 * 2 * 4)),
    *[(2, 129_280 // 8 * 7168 * 2), (1, 7168 * 2), (6 * 61, 4), (2, 163_840 * 64 * 4)],
    *[(1, 5001 * 2048 * 4), (61, 1025 * 2048 * 4), (61, 1025 * 4), (61, 5002 * 4)],
]


WORKED = {
    "one rank": Worked(
        model="Qwen/Qwen3-8B",
        settings={},
        ranks=[
            Rank(tensors=QWEN_WHOLE, engine_state=QWEN_STATE, activations=QWEN_SAMPLER, block_bytes=QWEN_BLOCK),
        ],
    ),
    "two replicas of a dense model, each alone on its chip": Worked(
        model="Qwen/Qwen3-8B",
        settings={"data_parallel_size": 2},
        ranks=[
            Rank(
                count=2, tensors=QWEN_WHOLE, engine_state=QWEN_STATE, activations=QWEN_SAMPLER, block_bytes=QWEN_BLOCK
            ),
        ],
    ),
    "two ranks": Worked(
        model="Qwen/Qwen3-8B",
        settings={"tensor_parallel_size": 2},
        ranks=[
            Rank(
                count=2,
                tensors=[*qwen_layers(36, 2), (2, QWEN_TABLE // 2), QWEN_NORM, QWEN_ROTARY],
                engine_state=QWEN_STATE,
                activations=QWEN_SAMPLER,
                non_torch=NON_TORCH_MORE,
                block_bytes=QWEN_BLOCK // 2,
            ),
        ],
        before=BEFORE_MORE,
    ),
    "two stages": Worked(
        model="Qwen/Qwen3-8B",
        settings={"pipeline_parallel_size": 2, "gpu_memory_utilization": 0.8},
        ranks=[
            Rank(
                tensors=[*qwen_layers(18), (1, QWEN_TABLE), QWEN_ROTARY],
                activations=tuple(QWEN_FORWARD * p // 100 for p in DENSE),  # only the last stage samples
                non_torch=NON_TORCH_MORE,
                block_bytes=QWEN_BLOCK // 2,
            ),
            Rank(
                tensors=[*qwen_layers(18), (1, QWEN_TABLE), QWEN_NORM, QWEN_ROTARY],
                engine_state=QWEN_STATE,
                activations=QWEN_SAMPLER,
                non_torch=NON_TORCH_MORE,
                block_bytes=QWEN_BLOCK // 2,
            ),
        ],
        tightest=1,
        before=BEFORE_MORE,
        hundredths=80,
    ),
    "nothing compiled, few requests: the forward pass rules": Worked(
        model="Qwen/Qwen3-8B",
        settings={"enforce_eager": True, "max_num_seqs": 16},
        ranks=[
            Rank(
                tensors=QWEN_WHOLE,
                engine_state=state(16, 151_936),
                activations=larger(sampler(16, 151_936, 8192, 4096), QWEN_EAGER, DENSE),
                cuda_graphs=NO_GRAPHS,
                block_bytes=QWEN_BLOCK,
            ),
        ],
    ),
    "few requests, few tokens captured": Worked(
        model="Qwen/Qwen3-8B",
        settings={"max_num_seqs": 16},
        ranks=[
            Rank(
                tensors=QWEN_WHOLE,
                engine_state=state(16, 151_936),
                activations=larger(sampler(16, 151_936, 8192, 4096), QWEN_FORWARD, DENSE),
                cuda_graphs=GRAPHS_FEW,
                block_bytes=QWEN_BLOCK,
            ),
        ],
    ),
    "a chip with a band, steps of a larger device": Worked(
        model="Qwen/Qwen3-8B",
        settings={"chip": "mi300x"},
        ranks=[
            Rank(
                tensors=QWEN_WHOLE,
                engine_state=QWEN_STATE,
                activations=sampler(1024, 151_936, 16_384, 4096),
                block_bytes=QWEN_BLOCK,
            ),
        ],
        device=MI300X,
    ),
    "an fp8 cache, attention that keeps counters": Worked(
        model="Qwen/Qwen3-8B",
        settings={"chip": "b200", "kv_cache_dtype": "fp8", "max_num_batched_tokens": 5001},
        ranks=[
            Rank(
                # A counter of 4 bytes for each token and head, rounded to 8 of them: 640,128 bytes in 640,512.
                tensors=[*QWEN_WHOLE, (1, 4 * 5001 * 32)],
                engine_state=QWEN_STATE,
                activations=sampler(1024, 151_936, 5001, 4096),
                block_bytes=QWEN_BLOCK // 2,
            ),
        ],
        device=B200,
    ),
    "four ranks": Worked(
        model="Qwen/Qwen3-32B",
        settings={"tensor_parallel_size": 4, "max_model_len": 32_768},
        ranks=[QWEN_32B_TP4],
        before=BEFORE_MORE,
        request_blocks=32_768 // 16,
    ),
    "three stages of two ranks, the middle one with a layer more": Worked(
        model="Qwen/Qwen3-32B",
        settings={"tensor_parallel_size": 2, "pipeline_parallel_size": 3},
        ranks=[
            Rank(
                count=2,
                tensors=[*qwen_32b_layers(21, 2), (1, QWEN_32B_TABLE // 2), QWEN_ROTARY],
                activations=tuple(8192 * (5120 + 3 * 12_800) * 2 * p // 100 for p in DENSE),
                non_torch=NON_TORCH_MORE,
                block_bytes=21 * 16 * 4 * (128 + 128) * 2,
            ),
            Rank(
                count=2,
                tensors=[*qwen_32b_layers(22, 2), QWEN_ROTARY],
                activations=tuple(8192 * (5120 + 3 * 12_800) * 2 * p // 100 for p in DENSE),
                non_torch=NON_TORCH_MORE,
                block_bytes=22 * 16 * 4 * (128 + 128) * 2,
            ),
            Rank(
                count=2,
                tensors=[*qwen_32b_layers(21, 2), (1, QWEN_32B_TABLE // 2), (1, 5120 * 2), QWEN_ROTARY],
                engine_state=QWEN_STATE,
                activations=sampler(1024, 151_936, 8192, 5120),
                non_torch=NON_TORCH_MORE,
                block_bytes=21 * 16 * 4 * (128 + 128) * 2,
            ),
        ],
        tightest=1,
        before=BEFORE_MORE,
    ),
    "whole experts on four ranks": Worked(
        model="mistralai/Mixtral-8x7B-v0.1",
        settings={"chip": "a100-80gb", "tensor_parallel_size": 4, "enable_expert_parallel": True},
        ranks=[
            Rank(
                count=4,
                tensors=mixtral(4, 2, 14_336),
                # Triton's workspaces: max(A, K) and max(2 A, K) elements for each of 2 x 2048 rows
                engine_state=state(256, 32_000) + 2048 * 2 * (14_336 + 28_672) * 2,
                activations=larger(sampler(256, 32_000, 2048, 4096), 2048 * 6 * 4096 * 2, EXPERTS),
                non_torch=NON_TORCH_MORE,
                cuda_graphs=GRAPHS_LARGE,
                block_bytes=32 * 16 * 2 * (128 + 128) * 2,
            ),
        ],
        device=A100,
        before=BEFORE_MORE,
        request_blocks=32_768 // 16,
    ),
    "experts sliced over two replicas": Worked(
        model="mistralai/Mixtral-8x7B-v0.1",
        settings={"chip": "h200", "data_parallel_size": 2},
        ranks=[
            Rank(
                count=2,
                tensors=mixtral(1, 8, 7168),
                engine_state=state(1024, 32_000) + 8192 * 2 * (7168 + 14_336) * 2,
                activations=larger(sampler(1024, 32_000, 8192, 4096), 8192 * 6 * 4096 * 2, EXPERTS),
                non_torch=NON_TORCH_MORE,
                cuda_graphs=GRAPHS_LARGE,
                block_bytes=32 * 16 * 8 * (128 + 128) * 2,
            ),
        ],
        device=H200,
        before=BEFORE_MORE,
        request_blocks=32_768 // 16,
    ),
    "replicas of experts": Worked(
        model="Qwen/Qwen3-30B-A3B",
        settings={
            "tensor_parallel_size": 2,
            "enable_expert_parallel": True,
            "enable_eplb": True,
            "num_redundant_experts": 16,
        },
        ranks=[
            Rank(
                count=2,
                tensors=qwen_30b(2, 64),
                eplb=48 * (16 // 2) * 3 * 768 * 2048 * 2,
                engine_state=QWEN_STATE + 8192 * 8 * (2048 + 2048) * 2,
                activations=larger(QWEN_30B_SAMPLER, QWEN_30B_FORWARD, EXPERTS),
                non_torch=NON_TORCH_MORE,
                block_bytes=48 * 16 * 2 * (128 + 128) * 2,
            ),
        ],
        before=BEFORE_MORE,
    ),
    "a kernel of which only bounds are known": Worked(
        model="Qwen/Qwen3-30B-A3B",
        settings={"chip": "b200"},
        ranks=[
            Rank(
                tensors=[*qwen_30b(1, 128), (1, 4 * 16_384 * 32)],
                # Its output in the middle, nothing at the least, Triton's workspaces at the most
                engine_state=tuple(
                    QWEN_STATE + kept for kept in (16_384 * 2048 * 2, 0, 16_384 * 8 * (2048 + 2048) * 2)
                ),
                activations=larger(sampler(1024, 151_936, 16_384, 2048), 16_384 * 6 * 2048 * 2, EXPERTS),
                block_bytes=48 * 16 * 4 * (128 + 128) * 2,
            ),
        ],
        device=B200,
    ),
    "experts in fp8, rows of each padded": Worked(
        model="Qwen/Qwen3-30B-A3B-FP8",
        settings={},
        ranks=[
            Rank(
                tensors=QWEN_30B_FP8,
                # DeepGEMM: 8 x 8192 rows, 127 more for each of 128 experts, in whole 128: 81,792 of 1 and of 2 bytes
                engine_state=QWEN_STATE + 81_792 * 2048 * (1 + 2),
                activations=larger(QWEN_30B_SAMPLER, QWEN_30B_FORWARD, EXPERTS),
                block_bytes=48 * 16 * 4 * (128 + 128) * 2,
            ),
        ],
    ),
    "every second layer looks back some tokens": Worked(
        model="google/gemma-2-9b-it",
        settings={"chip": "l4", "max_num_seqs": 64},
        ranks=[
            Rank(
                tensors=GEMMA,
                engine_state=state(64, 256_000),
                activations=larger(sampler(64, 256_000, 2048, 3584), 2048 * (3584 + 3 * 14_336) * 2, DENSE),
                block_bytes=21 * 16 * 8 * (256 + 256) * 2,
            ),
        ],
        device=L4,
        # Full layers keep 8192 tokens; windows 4095 and two steps of 2048 tokens in flight, and a block more.
        request_blocks=8192 // 16 + -(-(4095 + 2 * 2048) // 16) + 1,
        verdict="close",
    ),
    "a matrix little above 20 MiB takes 22": Worked(
        model="google/gemma-2-2b-it",
        settings={"tensor_parallel_size": 2},
        ranks=[
            Rank(
                count=2,
                tensors=GEMMA_2B_TP2,
                engine_state=state(1024, 256_000),
                activations=sampler(1024, 256_000, 8192, 2304),
                non_torch=NON_TORCH_MORE,
                block_bytes=13 * 16 * 2 * (256 + 256) * 2,
            ),
        ],
        before=BEFORE_MORE,
        request_blocks=8192 // 16 + 8192 // 16 + 1,
    ),
    "a chip on which FlashInfer does not sample": Worked(
        model="meta-llama/Llama-3.2-1B",
        settings={"chip": "t4", "max_model_len": 16_384},
        ranks=[
            Rank(
                tensors=LLAMA_1B,
                engine_state=state(256, 128_256),
                activations=larger(
                    # Triton's buffer is a row of 4-byte numbers for each of 40 multiprocessors.
                    sampler(256, 128_256, 2048, 2048, LOGIT_ELSEWHERE, 40 * 128_256 * 4),
                    2048 * (2048 + 3 * 8192) * 2,
                    DENSE,
                ),
                block_bytes=16 * 16 * 8 * (64 + 64) * 2,
            ),
        ],
        device=T4,
        request_blocks=16_384 // 16,
    ),
    "linear attention beside full": Worked(
        model="Qwen/Qwen3-Next-80B-A3B-Instruct",
        settings={"tensor_parallel_size": 4},
        ranks=[
            Rank(
                count=4,
                tensors=QWEN_NEXT_TP4,
                engine_state=QWEN_STATE + 8192 * 10 * (2048 + 2048) * 2,
                activations=larger(QWEN_30B_SAMPLER, 8192 * 6 * 2048 * 2, EXPERTS),
                non_torch=NON_TORCH_MORE,
                cuda_graphs=GRAPHS_LARGE,
                # A state: 2048 x 3 values under the convolution and 8 x 128 x 128 of the rest in 16 bits, 274,432
                # bytes, 268 tokens of one key-value head; in chunks of 64 that is a block of 320.
                block_bytes=12 * 320 * 1 * (256 + 256) * 2,
            ),
        ],
        before=BEFORE_MORE,
        # Full attention's blocks, and three states of each of three groups.
        request_blocks=-(-262_144 // 320) + 3 * 3,
    ),
    "an indexer, and buffers that follow the step": Worked(
        model="deepseek-ai/DeepSeek-V3.2",
        settings={"chip": "h200", "tensor_parallel_size": 8, "max_num_batched_tokens": 5001},
        ranks=[
            Rank(
                count=8,
                tensors=V32_TP8,
                # DeepGEMM: 8 x 5001 rows, 127 more for each of 256 experts, in whole 128: 72,576 of 1 and of 2 bytes
                engine_state=state(1024, 129_280) + 72_576 * 7168 * (1 + 2),
                activations=larger(sampler(1024, 129_280, 5001, 7168), 5001 * 6 * 7168 * 2, EXPERTS),
                non_torch=NON_TORCH_MORE,
                cuda_graphs=GRAPHS_LARGE,
                # 512 + 64 latent values of 2 bytes, an index of 128 bytes and its scale
                block_bytes=61 * 64 * (576 * 2 + 132),
            ),
        ],
        device=H200,
        before=BEFORE_MORE,
        request_blocks=163_840 // 64,
    ),
    "weights larger than the budget": Worked(
        model="meta-llama/Meta-Llama-3.1-70B",
        settings={},
        ranks=[
            Rank(
                tensors=LLAMA_70B,
                engine_state=state(1024, 128_256),
                activations=larger(sampler(1024, 128_256, 8192, 8192), 8192 * (8192 + 3 * 28_672) * 2, DENSE),
                block_bytes=80 * 16 * 8 * (128 + 128) * 2,
            ),
        ],
        request_blocks=131_072 // 16,
        verdict="does-not-fit",
    ),
}


def planned(model, **settings):
    return cp.plan(cp.load_model(model), cp.Deployment(**settings))


def found(line):
    return line.bytes, line.low, line.high


@pytest.mark.parametrize("name", WORKED)
def test_every_line_of_every_rank_is_what_it_is_by_hand(name):
    by_hand = WORKED[name]
    ranks = sorted(planned(by_hand.model, **by_hand.settings).ranks, key=lambda rank: rank.stage)
    assert [rank.count for rank in ranks] == [rank.count for rank in by_hand.ranks]
    for rank, wanted in zip(ranks, by_hand.ranks, strict=True):
        lines = {line.name: found(line) for line in rank.lines}
        for line, size in wanted.lines().items():
            assert lines[line] == ends(size), (line, rank.stage)


@pytest.mark.parametrize("name", WORKED)
def test_budget_blocks_and_verdict_are_what_they_are_by_hand(name):
    by_hand = WORKED[name]
    rank = by_hand.ranks[by_hand.tightest]
    p = planned(by_hand.model, **by_hand.settings)
    fixed, low, high = (sum(ends(size)[i] for size in rank.lines().values()) for i in range(3))
    claim, claim_low, claim_high = (-(-size * by_hand.hundredths // 100) for size in by_hand.device)
    budget = max(claim - fixed, 0)
    wanted = {
        "device_bytes": by_hand.device[0],
        "device_low_bytes": by_hand.device[1],
        "device_high_bytes": by_hand.device[2],
        "fixed_bytes": fixed,
        "fixed_low_bytes": low,
        "fixed_high_bytes": high,
        "model_load_bytes": rank.lines()["weights"] + rank.lines()["allocator_rounding"],
        "requested_bytes": claim,
        "kv_budget_bytes": budget,
        "kv_budget_low_bytes": max(claim_low - high, 0),
        "kv_budget_high_bytes": max(claim_high - low, 0),
        "outside_bytes": by_hand.device[0] - claim,
        "kv_block_bytes": rank.block_bytes,
        "kv_blocks": budget // rank.block_bytes,
        "kv_request_blocks": by_hand.request_blocks,
        "verdict": by_hand.verdict,
    }
    told = p.to_dict()
    assert {key: told[key] for key in wanted} == wanted
    before = next(line for line in told["lines"] if line["name"] == "pre_snapshot_bytes")
    assert (before["bytes"], before["low"], before["high"]) == by_hand.before
    assert told["pre_snapshot_bytes"] == by_hand.before[0]


@pytest.mark.parametrize("name", WORKED)
def test_the_public_form_has_each_rank_as_it_is_by_hand(name):
    by_hand = WORKED[name]
    told = sorted(planned(by_hand.model, **by_hand.settings).to_dict()["ranks"], key=lambda rank: rank["stage"])
    for stage, (rank, wanted) in enumerate(zip(told, by_hand.ranks, strict=True)):
        fixed = sum(ends(size)[0] for size in wanted.lines().values())
        claim = -(-by_hand.device[0] * by_hand.hundredths // 100)
        assert rank["stage"] == stage
        assert {f"{line}_bytes": rank[f"{line}_bytes"] for line in wanted.lines()} == {
            f"{line}_bytes": ends(size)[0] for line, size in wanted.lines().items()
        }
        assert (rank["fixed_bytes"], rank["requested_bytes"]) == (fixed, claim)
        assert rank["kv_budget_bytes"] == max(claim - fixed, 0)
        assert rank["kv_blocks"] == max(claim - fixed, 0) // wanted.block_bytes


def test_some_sums_are_these():
    # The same by digits, so that an error in what the table of deployments shares shows too.
    assert WORKED["one rank"].ranks[0].lines()["weights"] == (
        1_244_659_712 + 1_244_659_712 + 13_891_534_848 + 616_448 + 10_485_760 + 864
    )
    # 216 scalars of 4 bytes and 72 norms of 256 take 512 each, 73 norms of 8192 are whole steps already; each of the
    # two tables, 593.5 times 2 MiB, takes 594, and every other matrix is whole.
    assert WORKED["one rank"].ranks[0].lines()["allocator_rounding"] == 216 * 508 + 72 * 256 + 2 * MIB
    assert QWEN_STATE == 622_329_856 + 19_447_808
    assert QWEN_SAMPLER == (2_245_263_360, 1_000_603_648, 2_867_593_216)
    assert sum(ends(size)[0] for size in QWEN_32B_TP4.lines().values()) == QWEN_32B_FIXED


# The two passes, where neither has ruled above


@pytest.mark.parametrize(
    ("model", "settings", "peaks"),
    [
        # Few rows of logits, so that the experts' forward pass rules at the centre and the low end too
        (
            "Qwen/Qwen3-30B-A3B",
            {"max_num_seqs": 8},
            larger(sampler(8, 151_936, 8192, 2048), QWEN_30B_FORWARD, EXPERTS),
        ),
        # Fewer tokens than requests are fewer rows; the engine takes no more requests than tokens.
        ("Qwen/Qwen3-8B", {"max_num_batched_tokens": 100, "max_num_seqs": 100}, sampler(100, 151_936, 100, 4096)),
        # FlashInfer samples from compute capability 8.0 up to 12.1, which is the DGX Spark's.
        ("Qwen/Qwen3-8B", {"chip": "dgx-spark"}, sampler(256, 151_936, 2048, 4096)),
        ("Qwen/Qwen3-8B", {"chip": "a100-40gb"}, sampler(256, 151_936, 2048, 4096)),
    ],
)
def test_the_larger_of_two_passes_is_charged(model, settings, peaks):
    p = planned(model, **settings)
    assert found(next(line for line in p.lines if line.name == "activations")) == peaks


# Captured tokens


@pytest.mark.parametrize(
    ("settings", "graphs"),
    [
        ({"max_num_seqs": 31}, GRAPHS_FEW),  # two a request, 62, which is 56 on the grid
        ({"max_num_seqs": 32}, GRAPHS),
        ({"max_cudagraph_capture_size": 63}, GRAPHS_FEW),
        ({"max_cudagraph_capture_size": 64}, GRAPHS),
        ({"max_num_seqs": 16, "cudagraph_mode": "PIECEWISE"}, GRAPHS_FEW),
        ({"cudagraph_mode": "NONE"}, NO_GRAPHS),
    ],
)
def test_the_low_end_of_graphs_falls_below_64_captured_tokens(settings, graphs):
    p = planned("Qwen/Qwen3-8B", **settings)
    assert found(next(line for line in p.lines if line.name == "cuda_graphs")) == graphs


def test_counters_are_never_fewer_than_multiprocessors():
    # Three tokens of 32 heads are fewer than the 148 of a B200, which are 152 in whole 8: 608 bytes, 1024 taken.
    lines = {
        line.name: line.bytes
        for line in planned("Qwen/Qwen3-8B", chip="b200", max_num_batched_tokens=3, max_num_seqs=3).lines
    }
    rank = Rank(tensors=[*QWEN_WHOLE, (1, 4 * 152)], activations=(0, 0, 0), block_bytes=1).lines()
    assert (lines["weights"], lines["allocator_rounding"]) == (rank["weights"], rank["allocator_rounding"])


# A cache or a number of blocks that is stated

QWEN_FIXED = 16_391_957_344 + 2_225_312 + 641_777_664 + 2_245_263_360 + 107_374_182 + 429_496_730
QWEN_FIXED_HIGH = 16_391_957_344 + 2_225_312 + 641_777_664 + 2_867_593_216 + 214_748_365 + 1_181_116_006
QWEN_FIXED_LOW = 16_391_957_344 + 2_225_312 + 641_777_664 + 1_000_603_648 + 0 + 107_374_182


def test_a_stated_cache_is_charged_and_nothing_is_requested():
    told = planned("Qwen/Qwen3-32B", tensor_parallel_size=4, kv_cache_memory_bytes=10**10).to_dict()
    assert (told["requested_bytes"], told["kv_budget_bytes"]) == (None, 10**10)
    assert (told["kv_budget_low_bytes"], told["kv_budget_high_bytes"]) == (10**10, 10**10)
    assert told["fixed_bytes"] == QWEN_32B_FIXED
    assert told["outside_bytes"] == 85_018_877_624 - QWEN_32B_FIXED - 10**10
    assert (told["kv_blocks"], told["verdict"]) == (10**10 // 1_048_576, "fits")


FAR_END = 84_932_978_278 - QWEN_FIXED_HIGH - 858_993_459
"""The largest cache beside Qwen3-8B on the smallest H100, everything else at its high end."""

NEAR_END = 85_061_827_297 - QWEN_FIXED_LOW - 214_748_365
"""The same on the largest, everything else at its low end."""


@pytest.mark.parametrize(
    ("cache", "verdict"),
    [
        (FAR_END, "fits"),
        (FAR_END + 1, "close"),
        # On the device's central size the far end would start up to here: only its low end decides.
        (FAR_END + 85_018_877_624 - 84_932_978_278, "close"),
        (85_018_877_624 - QWEN_FIXED - 536_870_912, "close"),
        (85_018_877_624 - QWEN_FIXED - 536_870_912 + 1, "does-not-fit"),
        (NEAR_END, "does-not-fit"),
        (2560 * QWEN_BLOCK, "does-not-fit"),  # one request is 2560 blocks, and the null block is one more
        (2561 * QWEN_BLOCK, "fits"),
    ],
)
def test_a_plan_fits_only_where_it_starts_on_the_smallest_device_of_its_kind(cache, verdict):
    assert planned("Qwen/Qwen3-8B", kv_cache_memory_bytes=cache).verdict == verdict


def test_by_utilization_too_the_smallest_device_decides():
    # One request and the null block, with everything fixed at its high end, are 0.32159 of the central device and
    # 0.32192 of the smallest.
    needed = QWEN_FIXED_HIGH + 2561 * QWEN_BLOCK
    assert 0.3215 < needed / 85_018_877_624 < 0.3217 < 0.3219 < needed / 84_932_978_278 < 0.3220
    assert planned("Qwen/Qwen3-8B", gpu_memory_utilization=0.3217).verdict == "close"
    assert planned("Qwen/Qwen3-8B", gpu_memory_utilization=0.3220).verdict == "fits"


def test_stated_blocks_are_taken_whatever_the_budget_gives():
    told = planned("Qwen/Qwen3-8B", num_gpu_blocks_override=3000).to_dict()
    claim = -(-85_018_877_624 * 92 // 100)
    assert (told["kv_blocks"], told["kv_budget_bytes"], told["verdict"]) == (3000, claim - QWEN_FIXED, "fits")
    assert told["outside_bytes"] == 85_018_877_624 - claim
    told = planned("Qwen/Qwen3-8B", num_gpu_blocks_override=30_000).to_dict()
    assert (told["kv_blocks"], told["kv_budget_bytes"], told["verdict"]) == (30_000, claim - QWEN_FIXED, "does-not-fit")
    assert told["outside_bytes"] == 85_018_877_624 - QWEN_FIXED - 30_000 * QWEN_BLOCK
    assert planned("Qwen/Qwen3-8B", num_gpu_blocks_override=2560).verdict == "does-not-fit"
    assert planned("Qwen/Qwen3-8B", num_gpu_blocks_override=2561).verdict == "fits"


@pytest.mark.parametrize(
    ("room", "fixed", "before", "verdicts"),
    [
        (84_932_978_278, QWEN_FIXED_HIGH, 858_993_459, ("fits", "close")),
        (85_018_877_624, QWEN_FIXED, 536_870_912, ("close", "does-not-fit")),
    ],
)
def test_stated_blocks_must_lie_beside_all_that_is_held_on_the_device(room, fixed, before, verdicts):
    most = (room - fixed - before) // QWEN_BLOCK
    assert tuple(planned("Qwen/Qwen3-8B", num_gpu_blocks_override=most + more).verdict for more in (0, 1)) == verdicts


@pytest.mark.parametrize(
    ("share", "verdict"),
    [
        # What is held before the budget is 0.5 GiB, at the far end 0.8: beside 0.98 of the smallest device there is
        # room for both, beside 0.99 of it only for the first, beside all of it for neither.
        (0.98, "fits"),
        (0.99, "close"),
        (1.0, "does-not-fit"),
    ],
)
def test_the_claim_must_lie_beside_what_is_held_before_it(share, verdict):
    assert planned("Qwen/Qwen3-8B", gpu_memory_utilization=share).verdict == verdict


# The kernel's own laws: ideal shares, no norms, no scalars, no rounding, the catalog's 80 and 141 GiB

QWEN_32B_MATRICES = 64 * ((64 + 16) * 128 * 5120 + 5120 * 64 * 128 + 3 * 25_600 * 5120) * 2 // 4 + QWEN_32B_TABLE // 2
MIXTRAL_EXPERT = 3 * 14_336 * 4096 * 2
MIXTRAL_REST = 32 * ((32 + 16) * 128 * 4096 + 4096 * 4096) * 2 // 2 + MIXTRAL_TABLE
BLIS_GRAPHS = 1_159_725_056  # FULL_AND_PIECEWISE, a median of start-up lines
BLIS_WORKSPACE = 3_758_096_384  # 3.5 GiB

BLIS = {
    "dense on four ranks": (
        ("Qwen/Qwen3-32B", {"engine": "blis-kernel", "tensor_parallel_size": 4, "max_model_len": 32_768}),
        {
            "weights_bytes": QWEN_32B_MATRICES,
            # Five buffers of 64 x 128 would be 671,088,640 bytes; the sampler's logits and their copy are more.
            "activations_bytes": 1024 * 151_936 * (2 + 4),
            "cuda_graphs_bytes": BLIS_GRAPHS,
            "pre_snapshot_bytes": 411_041_792 + BLIS_WORKSPACE,
            "outside_bytes": 85_899_345_920 - -(-85_899_345_920 * 92 // 100),
            "kv_block_bytes": 64 * 16 * 2 * 256 * 2,
        },
        85_899_345_920,
    ),
    "its older page, which knows no sampler and counts the communicator": (
        ("Qwen/Qwen3-32B", {"engine": "blis-kernel-0.1", "tensor_parallel_size": 4, "max_model_len": 32_768}),
        {
            "weights_bytes": QWEN_32B_MATRICES,
            "activations_bytes": 5 * 8192 * 64 * 128 * 2,
            "cuda_graphs_bytes": BLIS_GRAPHS,
            "communication_bytes": 411_041_792 + BLIS_WORKSPACE,
            "pre_snapshot_bytes": 0,
            "kv_block_bytes": 64 * 16 * 2 * 256 * 2,
        },
        85_899_345_920,
    ),
    "one rank, nothing captured": (
        ("Qwen/Qwen3-8B", {"engine": "blis-kernel", "enforce_eager": True, "max_num_seqs": 16}),
        {
            "weights_bytes": 36 * (48 * 128 * 4096 + 4096 * 4096 + 3 * 12_288 * 4096) * 2 + 2 * QWEN_TABLE,
            "activations_bytes": 11 * 8192 * 32 * 128 * 2,
            "cuda_graphs_bytes": 0,
            "pre_snapshot_bytes": BLIS_WORKSPACE,
            "kv_block_bytes": QWEN_BLOCK,
        },
        85_899_345_920,
    ),
    "replicas of experts, moved out of the weights": (
        (
            "mistralai/Mixtral-8x7B-v0.1",
            {
                "engine": "blis-kernel",
                "chip": "h200",
                "tensor_parallel_size": 2,
                "enable_expert_parallel": True,
                "enable_eplb": True,
                "num_redundant_experts": 2,
            },
        ),
        {
            # Five of ten physical experts, less a rank's mean share of two replicas, which stands on its own line
            "weights_bytes": MIXTRAL_REST + 32 * (5 - 1) * MIXTRAL_EXPERT,
            "eplb_bytes": 32 * 2 * MIXTRAL_EXPERT // 2,
            "activations_bytes": 13 * 8192 * 32 * 128 * 2,
            "cuda_graphs_bytes": BLIS_GRAPHS,
            "pre_snapshot_bytes": 358_612_992 + BLIS_WORKSPACE,
            "kv_block_bytes": 32 * 16 * 4 * 256 * 2,
        },
        151_397_597_184,
    ),
}


@pytest.mark.parametrize("name", BLIS)
def test_the_kernels_ledger_is_what_it_is_by_hand(name):
    (model, settings), lines, device = BLIS[name]
    told = planned(model, **settings).to_dict()
    names = ("weights", "allocator_rounding", "eplb", "engine_state", "activations", "non_torch", "cuda_graphs")
    wanted = {f"{line}_bytes": 0 for line in (*names, "communication")} | lines
    fixed = sum(wanted[f"{line}_bytes"] for line in (*names, "communication"))
    claim = -(-device * 92 // 100)
    wanted |= dict.fromkeys(("fixed_bytes", "fixed_low_bytes", "fixed_high_bytes"), fixed)
    wanted |= dict.fromkeys(("kv_budget_bytes", "kv_budget_low_bytes", "kv_budget_high_bytes"), claim - fixed)
    wanted |= {"device_bytes": device, "requested_bytes": claim, "outside_bytes": device - claim, "verdict": "fits"}
    wanted |= {"kv_blocks": (claim - fixed) // lines["kv_block_bytes"]}
    assert {key: told[key] for key in wanted} == wanted


@pytest.mark.parametrize(
    ("ranks", "dense", "experts", "communicator"),
    [
        # NVIDIA's buffers alive at once, in halves of 8192 tokens, and its communicators
        (1, 22, 44, 0),
        (2, 13, 26, 358_612_992),
        (4, 10, 20, 411_041_792),
        (8, 10, 20, 411_041_792),
        (16, 10, 20, 411_041_792),  # the widest that is stated
    ],
)
def test_the_kernels_buffers_and_communicator_follow_the_ranks(ranks, dense, experts, communicator):
    few = {"engine": "blis-kernel", "chip": "h200", "tensor_parallel_size": ranks, "max_num_seqs": 1}
    for model, width, halves in (("Qwen/Qwen3-32B", 64 * 128, dense), ("Qwen/Qwen3-30B-A3B", 32 * 128, experts)):
        p = planned(model, **few)
        assert p.activations_bytes == halves * 8192 * width * 2 // 2
        assert p.pre_snapshot_bytes == communicator + BLIS_WORKSPACE
        assert planned(model, **few, max_num_batched_tokens=1).activations_bytes == 70 * MIB


@pytest.mark.parametrize(
    ("mode", "graphs"),
    [
        ("NONE", 0),
        ("PIECEWISE", 858_783_744),
        ("FULL", BLIS_GRAPHS),
        ("FULL_DECODE_ONLY", BLIS_GRAPHS),
        ("FULL_AND_PIECEWISE", BLIS_GRAPHS),
    ],
)
def test_the_kernels_graphs_have_a_flat_figure_for_each_mode(mode, graphs):
    assert planned("Qwen/Qwen3-8B", engine="blis-kernel", cudagraph_mode=mode).cuda_graphs_bytes == graphs


# vLLM on Neuron: Qwen3-8B in ideal shares, on stacks of 24 GiB, 32 tokens of a block

STACK = 25_769_803_776
QWEN_NORMS = 36 * 2 * (4096 + 128) * 2 + 4096 * 2


def neuron_weights(t):
    return 36 * (48 * 128 * 4096 + 4096 * 4096 + 3 * 12_288 * 4096) * 2 // t + 2 * QWEN_TABLE // t + QWEN_NORMS


@pytest.mark.parametrize(
    ("ranks", "settings", "wanted"),
    [
        # By default int(int(24 GiB x 0.9) x 0.3), unless the weights leave less.
        (4, {}, {"total_budget_bytes": 23_192_823_398, "heuristic_cap_bytes": 6_957_847_019, "kv": 6_957_847_019}),
        (
            1,
            {},
            {"total_budget_bytes": 23_192_823_398, "binding": "user_budget", "kv": 23_192_823_398 - 16_381_470_720},
        ),
        (
            4,
            {"gpu_memory_utilization": 0.5, "kv_gmu_budget_cap_fraction": 0.5},
            {"total_budget_bytes": 12_884_901_888, "heuristic_cap_bytes": 6_442_450_944, "kv": 6_442_450_944},
        ),
        # With a reserve all that weights and reserve leave, of the whole share.
        (4, {"reserved_headroom_gib": 4}, {"binding": "headroom", "headroom_bytes": 4 << 30, "kv": 17_379_006_464}),
        (4, {"reserved_headroom_gib": 19.5}, {"kv": STACK - 4_095_830_016 - 20_937_965_568, "verdict": "does-not-fit"}),
        (
            4,
            {"reserved_headroom_gib": 19.5, "min_kv_budget_gib": 0.5},
            {"kv": STACK - 4_095_830_016 - 20_937_965_568, "minimum_bytes": 1 << 29, "verdict": "fits"},
        ),
        # Two logical cores at one stack share it.
        (
            4,
            {"logical_nc_config": 1},
            {"share_bytes": STACK // 2, "total_budget_bytes": 11_596_411_699, "kv": 3_478_923_509},
        ),
    ],
)
def test_on_neuron_the_budget_is_what_it_is_by_hand(ranks, settings, wanted):
    settings = {
        "engine": "vllm-neuron",
        "chip": "trn2",
        "tensor_parallel_size": ranks,
        "max_model_len": 4096,
        **settings,
    }
    told = planned("Qwen/Qwen3-8B", **settings).to_dict()
    block = 36 * 32 * 8 // ranks * (128 + 128) * 2
    cache = wanted["kv"]
    wanted = {"verdict": "fits", "minimum_bytes": 1 << 30, **{k: v for k, v in wanted.items() if k != "kv"}}
    wanted |= {"weights_bytes": neuron_weights(ranks), "kv_budget_bytes": cache, "kv_block_bytes": block}
    wanted |= {"hbm_stack_bytes": STACK, "kv_request_blocks": 4096 // 32}
    assert {key: told[key] for key in wanted} == wanted
    if told["verdict"] == "fits":
        assert told["kv_blocks"] == cache // block
