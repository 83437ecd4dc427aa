"""A block drafter's configuration, normalised: one form, whoever trained it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar

from drafters.checkpoint.kinds import Family, RuntimeKind
from drafters.checkpoint.mask_row import MaskRow
from onnxkit.rotary import Rotary


@dataclass(frozen=True)
class LayerAttention:
    """How one layer attends.

    Attributes:
        window: How many positions a row sees to its left, itself included; None for all of them.
        causal: Whether a row of the block sees only the rows before it. Otherwise it sees the whole block.
    """

    window: int | None
    causal: bool


@dataclass(frozen=True)
class DFlash:
    """A plain DFlash drafter has nothing beside the backbone. Its lattice's pairs score nothing.

    Attributes:
        output_multiplier: What the logits are multiplied by; None for no scaling.
        final_logit_softcapping: The bound of the logits' tanh cap, applied after the multiplier; None for none.
        anchor_predicts: Whether the anchor's row also predicts. Only one producer trains it so.
    """

    family: ClassVar[Family] = Family.DFLASH

    output_multiplier: float | None = None
    final_logit_softcapping: float | None = None
    anchor_predicts: bool = False


@dataclass(frozen=True)
class DFlash2:
    """What a DFlash 2 drafter has beside the backbone: convolutions around each sub-layer, and a candidate selector.

    Attributes:
        conv_kernel_size: Taps of the convolution, the row itself included.
        conv_group_size: Channels that share one set of predicted coefficients.
        selector_rank: Width of the two codebooks.
        output_multiplier: What the logits are multiplied by before pairs are scored; None for nothing.
        final_logit_softcapping: The bound of the logits' tanh cap, applied after the multiplier; None for none.
        anchor_predicts: Whether the anchor's row also predicts. Only one producer trains it so.
    """

    family: ClassVar[Family] = Family.DFLASH2

    conv_kernel_size: int
    conv_group_size: int
    selector_rank: int
    output_multiplier: float | None = None
    final_logit_softcapping: float | None = None
    anchor_predicts: bool = False


@dataclass(frozen=True)
class DSpark:
    """What a DSpark drafter has beside the backbone: a Markov head, and perhaps a confidence head.

    Attributes:
        markov_rank: Width of the Markov head's two tables; 0 where there is no such head, and pairs score nothing.
        gated: Whether the row's hidden state gates the previous token's embedding; otherwise the head is vanilla.
        confidence_width: Width of the confidence head's input, None if there is no such head. No runtime uses it.
        anchor_predicts: Whether the anchor's row also predicts. Some are trained as DFlash is, where it does not.
    """

    family: ClassVar[Family] = Family.DSPARK

    markov_rank: int
    gated: bool
    confidence_width: int | None = None
    anchor_predicts: bool = True


@dataclass(frozen=True)
class DrafterConfig:
    """What shapes a drafter's graph. Sizes are counts; names follow the published ``config.json``.

    Attributes:
        layers: How each layer attends; their number is that of the layers.
        target_layer_ids: The target's layers whose *outputs* are read, in the order in which they are put together.
        block_size: Rows of a block: the anchor (the newest token) and masks.
        mask_token_id: Token of the rows that are not the anchor; a row of the embedding, perhaps not of the tokenizer.
        top_k: Candidates per drafted position.
        input_embedding_scale: What the block's embeddings are multiplied by; None for no scaling.
        variant: What only this kind has.
        attention_bias: Whether the four attention projections have biases.
        attention_sinks: Whether each head has a sink: one more logit of its softmax, without a value.
        own_embedding: Whether the block's embeddings come from a table of the drafter's own.
        own_head: Whether the logits come from a head of the drafter's own.
        draft_vocab_size: Rows of that head and of the Markov head's second table; None if they are the vocabulary's.
        mask_row: What stands in the place of the mask token's row of the embedding; None for that row itself.
        notes: What the user should know of how the configuration was read.
    """

    hidden_size: int
    intermediate_size: int
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    vocab_size: int
    max_position_embeddings: int | None
    rotary: Rotary
    layers: tuple[LayerAttention, ...]
    target_layer_ids: tuple[int, ...]
    block_size: int
    mask_token_id: int
    top_k: int
    input_embedding_scale: float | None
    variant: DFlash | DFlash2 | DSpark
    attention_bias: bool = False
    attention_sinks: bool = False
    own_embedding: bool = False
    own_head: bool = False
    draft_vocab_size: int | None = None
    mask_row: MaskRow | None = None
    notes: tuple[str, ...] = ()

    @property
    def family(self) -> Family:
        """What it is, as its trainers call it."""
        return self.variant.family

    @property
    def kind(self) -> RuntimeKind:
        """What the runtime runs it as."""
        return RuntimeKind.of(anchor_predicts=self.anchor_predicts)

    @property
    def anchor_predicts(self) -> bool:
        """Whether row 0 of a block predicts; row ``j`` then predicts the token after its own position."""
        return self.variant.anchor_predicts

    @property
    def reduced(self) -> bool:
        """Whether candidates come from a part of the vocabulary and are mapped to the target's ids."""
        return self.own_head and (self.draft_vocab_size or self.vocab_size) < self.vocab_size

    @property
    def num_draft_tokens(self) -> int:
        """Tokens drafted per block: one a row, except the anchor's if it predicts nothing."""
        return self.block_size if self.anchor_predicts else self.block_size - 1

    @property
    def taps(self) -> tuple[int, ...]:
        """The target's taps: the stream that enters a layer is the output of the layer before it."""
        return tuple(layer + 1 for layer in self.target_layer_ids)

    @property
    def window(self) -> int | None:
        """The widest window of all layers; None if one of them sees everything."""
        widest = 0
        for layer in self.layers:
            if layer.window is None:
                return None
            widest = max(widest, layer.window)
        return widest

    def shortened(self, drafts: int) -> DrafterConfig:
        """The same drafter with a block of the given number of drafts."""
        return replace(self, block_size=self.block_size - self.num_draft_tokens + drafts)
