"""Flags as people paste them."""

from capplan.settings.command_line import parse_flags


def test_settings_of_ranks_drafts_and_states_are_flags():
    words = (
        "m -pcp 2 --enable-eplb --num-redundant-experts 8 --spec-method dspark --spec-tokens 5 --mamba-cache-mode all"
    )
    assert parse_flags(words.split()).settings == {
        "prefill_context_parallel_size": 2,
        "enable_eplb": True,
        "num_redundant_experts": 8,
        "speculative_method": "dspark",
        "num_speculative_tokens": 5,
        "mamba_cache_mode": "all",
    }
