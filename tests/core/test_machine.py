"""What a run notes of its machine."""

import pytest

from rlrun.core.machine import has_bfloat16


@pytest.mark.parametrize(
    ("named", "has"),
    [
        ({"avx512_bf16": True}, True),
        ({"avx512_bw": True, "avx512_bf16": False}, False),  # torch computes in bfloat16 there, by float32
        ({"amx_bf16": True}, True),
        ({"architecture": "arm64", "bf16": True}, True),
        ({"architecture": "arm64", "neon": True}, False),
    ],
)
def test_bfloat16_is_recognized_by_its_instructions(named, has, monkeypatch):
    monkeypatch.setattr("torch.cpu.get_capabilities", lambda: named, raising=False)
    assert has_bfloat16("cpu") is has
    assert has_bfloat16("mps") is False
