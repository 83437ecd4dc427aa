"""A block drafter as a graph: its borders, and the way from its inputs to a lattice of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import onnx_ir as ir
from onnxscript import GraphBuilder, OpBuilder, nn

from drafters.checkpoint.config import DrafterConfig
from drafters.graph.backbone import Cache, DraftLayer, Rows
from drafters.graph.lattice import Candidates, candidates, scored, unary_scores
from onnxkit.layers.basic import Linear, ResidualNorm, RMSNorm, Style, cast
from onnxkit.layers.graph import BF16, F32, I32, I64, Outputs, Type
from onnxkit.layers.rotary import RotaryTables
from onnxkit.weights.parameters import Shared, Table, Weight

INPUT_IDS, AUX_HIDDEN_STATES = "input_ids", "aux_hidden_states"
QKV_ROW_MAP, BLOCK_ROW_INDEX = "qkv_row_map", "block_row_index"
CUMULATIVE, PAST_LENGTHS, BLOCK_TABLE = "cumulative_sequence_lengths", "past_sequence_lengths", "block_table"
METADATA = "attention_metadata"
CANDIDATE_IDS, SCORES = "draft_candidate_ids", "draft_scores"
PAST = {"key": "past_key_values.%d.key", "value": "past_key_values.%d.value"}
PRESENT = {"key": "present.%d.key", "value": "present.%d.value"}

# The body's element type, whatever the target's: fused features of 1e4 and more do not fit into float16.
BODY = Style(BF16)


@dataclass(frozen=True)
class DrafterOptions:
    """What a drafter's graph takes from the target that it drafts for.

    Attributes:
        dtype: The element type of the target's hidden states, embedding and head.
        context_length: Positions that a sequence may have.
        page_size: Tokens in a page of the cache, which both graphs share.
        embedding: The name of the target's embedding in its graph.
        head: The name of its LM head; the embedding's where they are one table.
    """

    dtype: ir.DataType
    context_length: int
    page_size: int
    embedding: str
    head: str


class BlockDrafter(nn.Module):
    """The parts of every block drafter; a kind adds its layers and its scores.

    Args:
        config: The drafter.
        options: What comes from the target.
        layer: The class of its layers.
    """

    def __init__(self, config: DrafterConfig, options: DrafterOptions, layer: type[DraftLayer]) -> None:
        super().__init__()
        self.config, self.options = config, options
        size, epsilon = config.hidden_size, config.rms_norm_eps
        table = [config.vocab_size, size]
        # The target's tables have its type; one of the drafter's own has the body's.
        self.embedding: nn.Parameter = (
            Weight("embed_tokens.weight", table, BF16)
            if config.own_embedding
            else Shared(options.embedding, table, options.dtype)
        )
        self.head: nn.Parameter
        if config.own_head:
            self.head = Weight("lm_head.weight", [config.draft_vocab_size or config.vocab_size, size], BF16)
        elif options.head == options.embedding and not config.own_embedding:
            self.head = self.embedding
        else:
            self.head = Shared(options.head, table, options.dtype)
        self.mask_embedding = (
            Table("mask_embedding", [size], F32, config.mask_row.rows) if config.mask_row is not None else None
        )
        self.d2t = Weight("d2t", [config.draft_vocab_size or 0], I64) if config.reduced else None
        # A block may begin at the context's last position.
        self.rotary_emb = RotaryTables(config.rotary, options.context_length + config.block_size, BODY)
        self.fc = Linear(size * len(config.taps), size, BODY)
        self.hidden_norm = RMSNorm(size, epsilon, BODY)
        self.layers = nn.ModuleList([layer(config, attention, BODY) for attention in config.layers])
        self.norm = ResidualNorm(size, epsilon, BODY)

    def forward(self, op: OpBuilder, inputs: Mapping[str, ir.Value], caches: Sequence[Cache]) -> Outputs:
        """The graph's outputs, typed and named."""
        config, drafts = self.config, self.config.num_draft_tokens
        hidden, presents = self.run_layers(op, inputs, caches)
        ids, scores = self.lattice(op, hidden, inputs[INPUT_IDS])
        outputs = Outputs()
        outputs.add(CANDIDATE_IDS, ids, I32, ("slots", drafts, config.top_k))
        outputs.add(SCORES, scores, F32, ("slots", drafts, config.top_k, config.top_k))
        kind = cache_type(config, self.options)
        for layer, present in enumerate(presents):
            for part, value in vars(present).items():
                outputs.add(PRESENT[part] % layer, value, *kind)
        return outputs

    def run_layers(
        self, op: OpBuilder, inputs: Mapping[str, ir.Value], caches: Sequence[Cache]
    ) -> tuple[ir.Value, list[Cache]]:
        """The final norm's output of every block row, ``[block rows, hidden]``, and the caches."""
        rows = self.rows(op, inputs)
        residual, branch, presents = self.embedded(op, inputs[INPUT_IDS]), None, []
        for layer, cache in zip(self.layers, caches, strict=True):
            residual, branch, present = layer(op, residual, branch, rows, cache)
            presents.append(present)
        hidden, _ = self.norm(op, residual, branch)
        return hidden, presents

    def rows(self, op: OpBuilder, inputs: Mapping[str, ir.Value]) -> Rows:
        """What the layers share, the context rows among it."""
        features = cast(op, inputs[AUX_HIDDEN_STATES], self.options.dtype, BF16)
        cos, sin = self.rotary_emb(op)
        return Rows(
            context=self.hidden_norm(op, self.fc(op, features)),
            qkv_row_map=inputs[QKV_ROW_MAP],
            block_row_index=inputs[BLOCK_ROW_INDEX],
            cumulative_lengths=inputs[CUMULATIVE],
            past_lengths=inputs[PAST_LENGTHS],
            block_table=inputs[BLOCK_TABLE],
            attention_metadata=inputs[METADATA],
            cos=cos,
            sin=sin,
        )

    def embedded(self, op: OpBuilder, input_ids: ir.Value) -> ir.Value:
        """The embedding of the block's tokens, ``[block rows, hidden]``; scaled in float32, then rounded."""
        x, scale = op.Gather(self.embedding, input_ids), self.config.input_embedding_scale
        if scale is None and self.mask_embedding is None:
            return cast(op, x, BF16 if self.config.own_embedding else self.options.dtype, BF16)
        x = op.Cast(x, to=F32)
        if self.mask_embedding is not None:
            masked = op.Unsqueeze(op.Equal(input_ids, self.config.mask_token_id), [1])
            x = op.Where(masked, self.mask_embedding, x)
        return op.Cast(x if scale is None else op.Mul(x, scale), to=BF16)

    def logits(self, op: OpBuilder, hidden: ir.Value) -> ir.Value:
        """The head over ``[rows, hidden]``: ``[rows, vocab]`` float32."""
        dtype = BF16 if self.config.own_head else self.options.dtype
        y = op.Gemm(cast(op, hidden, BF16, dtype), self.head, transB=1)
        return cast(op, y, dtype, F32)

    def lattice(self, op: OpBuilder, hidden: ir.Value, input_ids: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Candidates ``[slots, drafts, top k]`` int32 and scores ``[slots, drafts, top k, top k]`` float32.

        The anchor's row is left out where it predicts nothing.
        """
        config, drafts = self.config, self.config.num_draft_tokens
        if not config.anchor_predicts:
            blocks = op.Reshape(hidden, [-1, config.block_size, config.hidden_size])
            hidden = op.Reshape(op.Slice(blocks, [1], [config.block_size], [1]), [-1, config.hidden_size])
        unary, rows = unary_scores(op, self.logits(op, hidden), config.top_k)
        sizes = config.block_size, drafts, config.top_k
        found = candidates(op, self.transformed(op, unary), rows, input_ids, sizes, self.d2t)
        return scored(op, found, self.pairs(op, hidden, found, drafts), sizes)

    def transformed(self, op: OpBuilder, unary: ir.Value) -> ir.Value:
        """The candidates' own scores, as the pair scores were trained against them. The order must stay."""
        return unary

    def pairs(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value | None:
        """Scores of pairs, ``[slots, drafts, previous, current]`` float32; None where pairs score nothing."""
        raise NotImplementedError


def scaled_and_capped(op: OpBuilder, unary: ir.Value, factor: float | None, cap: float | None) -> ir.Value:
    """A multiplier, then a tanh cap, each where there is one. Neither changes the order."""
    if factor is not None:
        unary = op.Mul(unary, factor)
    if cap is not None:
        unary = op.Mul(op.Tanh(op.Div(unary, cap)), cap)
    return unary


def cache_type(config: DrafterConfig, options: DrafterOptions) -> Type:
    """Element type and shape of a layer's keys, and of its values."""
    return BF16, ["num_blocks", options.page_size, config.num_key_value_heads, config.head_dim]


def declare_inputs(
    builder: GraphBuilder, config: DrafterConfig, options: DrafterOptions
) -> tuple[dict[str, ir.Value], list[Cache]]:
    """Declare the graph's inputs. Slots, whose rows are ``block_rows``, are not the requests: either may be more."""
    kinds: dict[str, Type] = {
        AUX_HIDDEN_STATES: (options.dtype, ["context_rows", config.hidden_size * len(config.taps)]),
        INPUT_IDS: (I64, ["block_rows"]),
        QKV_ROW_MAP: (I32, ["rows"]),
        BLOCK_ROW_INDEX: (I32, ["block_rows"]),
        CUMULATIVE: (I32, ["requests + 1"]),
        PAST_LENGTHS: (I32, ["requests"]),
        BLOCK_TABLE: (I32, ["requests", "max_num_blocks"]),
        METADATA: (I32, [3]),
    }
    inputs = {name: builder.input(name, *kind) for name, kind in kinds.items()}
    cache = cache_type(config, options)
    caches = [
        Cache(**{part: builder.input(name % layer, *cache) for part, name in PAST.items()})
        for layer in range(len(config.layers))
    ]
    return inputs, caches
