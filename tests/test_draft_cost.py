"""A drafter's memory: the rings that the runtime will allocate, and how many requests they have room for."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from builder.cli import main
from builder.drafter import Drafter
from builder.drafter_cost import DrafterCost
from builder.options import BuildOptions
from builder.resolved import Resolved, beside_drafter
from drafters.checkpoint.config import DFlash2, DrafterConfig, DSpark, LayerAttention
from draftsmith.validation.engine import run_engine
from draftsmith.validation.widen import widen
from onnxkit.errors import ExportError
from onnxkit.rotary import Rotary
from onnxkit.weights.checkpoint import Checkpoint
from tests.checkpoints import TINY

# The published DFlash 2 drafter of the 27B: 5 layers, 8 heads of 128 for keys and values.
CONFIG = DrafterConfig(
    hidden_size=5120,
    intermediate_size=17408,
    num_attention_heads=32,
    num_key_value_heads=8,
    head_dim=128,
    rms_norm_eps=1e-6,
    vocab_size=248320,
    max_position_embeddings=262144,
    rotary=Rotary(1e7, 128),
    layers=(LayerAttention(2048, False),) * 5,
    target_layer_ids=(5, 19, 33, 47, 61),
    block_size=8,
    mask_token_id=248070,
    top_k=16,
    input_embedding_scale=None,
    variant=DFlash2(2, 16, 256),
)
FULL = (LayerAttention(None, False),) * 5


def settled(config: DrafterConfig, context: int, max_batch_size: int | None = None) -> tuple[Resolved, DrafterCost]:
    drafter = Drafter(Checkpoint(TINY), config, config.block_size, {})
    asked = BuildOptions(
        output=Path("o"),
        precision="bf16",
        provider="cuda",
        input=Path("i"),
        drafter_path=Path("d"),
        max_batch_size=max_batch_size,
    )
    options = beside_drafter(asked, drafter, context, 256)
    assert options.max_batch_size is not None
    pages = drafter.ring_pages(context, 256)
    return options, DrafterCost(drafter, 1, 1, 65536, 256, pages, options.max_batch_size)


def test_a_window_bounds_the_ring() -> None:
    options, cost = settled(CONFIG, 262144)
    assert cost.drafter.token_bytes() == 20480
    assert cost.pages == 10  # 2048 + 2 * 8 positions in pages of 256, and one more
    assert cost.pool == 838_860_800 and options.max_batch_size == 16
    assert not cost.note(262144)


def test_full_attention_over_a_long_context_is_for_one_request() -> None:
    """A request's ring is the whole context, 5.4 GB: of the 16 that the runtime would plan for, one is left."""
    options, cost = settled(replace(CONFIG, layers=FULL), 262144)
    assert cost.pages == 1026 and options.max_batch_size == 1
    (note,) = cost.note(262144)
    assert "max_batch_size (1)" in note and "context_length (262144)" in note and "8.0 GB" in note


def test_fewer_requests_where_they_would_not_fit() -> None:
    options, cost = settled(replace(CONFIG, layers=FULL), 65536)
    assert options.max_batch_size == 5 and cost.pool <= 8e9 < cost.pool * 6 / 5
    assert "the most that stay within 8.0 GB" in cost.note(65536)[0]


def test_what_is_asked_for_is_done() -> None:
    options, cost = settled(replace(CONFIG, layers=FULL), 65536, max_batch_size=12)
    assert options.max_batch_size == 12 and cost.pool > 8e9
    assert "lower one of them" in cost.note(65536)[0]
    options, cost = settled(CONFIG, 262144, max_batch_size=3)
    assert options.max_batch_size == 3 and not cost.note(262144)


def test_one_request_that_is_too_large_is_a_note() -> None:
    options, cost = settled(replace(CONFIG, layers=FULL), 1_000_000)
    assert options.max_batch_size == 1 and "lower one of them" in cost.note(1_000_000)[0]


def test_the_widest_window_counts() -> None:
    layers = (LayerAttention(64, True), LayerAttention(40, True))
    assert replace(CONFIG, layers=layers).window == replace(CONFIG, layers=layers[::-1]).window == 64
    assert replace(CONFIG, layers=(*layers, LayerAttention(None, True))).window is None


@pytest.mark.parametrize("window", [None, 2048])
def test_dspark_has_a_ring_only_with_a_window(window: int | None) -> None:
    layers = (LayerAttention(window, False),) * 5
    config = replace(CONFIG, layers=layers, variant=DSpark(256, False))
    options, cost = settled(config, 262144)
    assert options.max_batch_size == 16
    assert cost.pages == (None if window is None else 10)
    text = "\n".join(cost.lines())
    assert ("24% fewer tokens" in text) == (window is None)  # 20480 of 20480 + 65536


def test_pages_that_are_too_few_for_the_ring() -> None:
    _, cost = settled(CONFIG, 262144)
    cost.check_blocks(51)  # 838.9 MB of rings are 50 of the target's pages of 16.8 MB, and one is left for a text
    cost.check_blocks(None)
    with pytest.raises(ExportError, match="no room") as caught:
        cost.check_blocks(50)
    assert "takes 50 for 16 requests" in str(caught.value) and "51 or more" in str(caught.value)


@pytest.mark.parametrize("kind", ["dflash2", "dspark"])
@pytest.mark.parametrize("requests", [1, 4])
def test_the_fewest_pages_are_those_that_the_engine_starts_with(kind: str, requests: int, tmp_path: Path) -> None:
    """One fewer, and the Engine says that num_blocks is too small."""
    pair = Path(__file__).parent / "assets" / "pair"
    options = [f"drafter_path={pair / kind}", "context_length=512", f"max_batch_size={requests}"]
    arguments = ["-i", str(pair / "target"), "-o", str(tmp_path / "out"), "-p", "bf16", "-e", "cuda", "--extra_options"]
    least = next(n for n in range(1, 99) if main([*arguments, *options, f"num_blocks={n}"]) == 0)
    for blocks in (least, least - 1):
        widen(tmp_path / "out", tmp_path / str(blocks), num_blocks=blocks)
    assert run_engine(tmp_path / str(least), [[5, 6, 7]], 4).count("draft_tokens_proposed")
    with pytest.raises(Exception, match="num_blocks is too small"):
        run_engine(tmp_path / str(least - 1), [[5, 6, 7]], 4)


@pytest.mark.parametrize(("scheduled", "drafts", "good"), [(8, 7, True), (7, 7, False), (1, 1, False), (2, 1, True)])
def test_a_step_has_room_for_the_drafts_of_a_request(scheduled: int, drafts: int, good: bool) -> None:
    """With fewer tokens the Engine drafts less, and with one token it drafts nothing, in silence."""

    def options() -> BuildOptions:
        return BuildOptions(
            output=Path("o"),
            precision="bf16",
            provider="cuda",
            input=Path("i"),
            use_paged_attention=True,
            max_draft_tokens=drafts,
            state_update_capacity=drafts,
            max_scheduled_tokens=scheduled,
        )

    if good:
        assert options().max_scheduled_tokens == scheduled
    else:
        with pytest.raises(ExportError, match="no room for the drafts") as caught:
            options()
        assert f"{drafts + 1} or more" in str(caught.value)


def test_a_step_has_room_for_the_drafts_that_follow_from_a_drafter() -> None:
    asked = BuildOptions(
        output=Path("o"),
        precision="bf16",
        provider="cuda",
        input=Path("i"),
        drafter_path=Path("d"),
        max_scheduled_tokens=7,
    )
    with pytest.raises(ExportError, match="no room for the drafts"):
        beside_drafter(asked, Drafter(Checkpoint(TINY), CONFIG, CONFIG.block_size, {}), 262144, 256)
