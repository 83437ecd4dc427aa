"""A block drafter as a graph: the way from its inputs to a lattice of candidates."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import onnx_ir as ir
from onnxscript import OpBuilder, nn

from drafters.checkpoint.config import DrafterConfig
from drafters.graph.backbone import DraftLayer, DraftRun
from drafters.graph.graph_io import (
    AUX_HIDDEN_STATES,
    BLOCK_ROW_INDEX,
    CANDIDATE_IDS,
    INPUT_IDS,
    QKV_ROW_MAP,
    SCORES,
    DrafterOptions,
    cache_type,
)
from drafters.graph.lattice import Candidates, candidates, scored, unary_scores
from onnxkit.layers.graph import BF16, F32, I32, I64, Outputs, cast
from onnxkit.layers.kv_cache import PRESENT, KeyValueCache
from onnxkit.layers.norms import ResidualNorm, RMSNorm
from onnxkit.layers.paged_attention import Paging
from onnxkit.layers.precision import Precision
from onnxkit.layers.projection import Linear, Lookup, Product, declared_by
from onnxkit.layers.rotary import RotaryTables
from onnxkit.weights.parameters import Table, Weight

# The body's element type, whatever the target's: fused features of 1e4 and more do not fit into float16.
BODY = Precision.dense(BF16)


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
        self.embedding = declared_by(self, _embedding(config, options))
        self.head = declared_by(self, _head(config, options, self.embedding))
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

    def forward(self, op: OpBuilder, inputs: Mapping[str, ir.Value], caches: Sequence[KeyValueCache]) -> Outputs:
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
        self, op: OpBuilder, inputs: Mapping[str, ir.Value], caches: Sequence[KeyValueCache]
    ) -> tuple[ir.Value, list[KeyValueCache]]:
        """The final norm's output of every block row, ``[block rows, hidden]``, and the caches."""
        run = self.run(op, inputs)
        residual, branch, presents = self.embedded(op, inputs[INPUT_IDS]), None, []
        for layer, cache in zip(self.layers, caches, strict=True):
            residual, branch, present = layer(op, residual, branch, run, cache)
            presents.append(present)
        hidden, _ = self.norm(op, residual, branch)
        return hidden, presents

    def run(self, op: OpBuilder, inputs: Mapping[str, ir.Value]) -> DraftRun:
        """What the layers share, the context rows among it."""
        features = cast(op, inputs[AUX_HIDDEN_STATES], self.options.target.activations, BF16)
        cos, sin = self.rotary_emb(op)
        return DraftRun(
            context=self.hidden_norm(op, self.fc(op, features)),
            qkv_row_map=inputs[QKV_ROW_MAP],
            block_row_index=inputs[BLOCK_ROW_INDEX],
            paging=Paging.of(inputs),
            cos=cos,
            sin=sin,
        )

    def embedded(self, op: OpBuilder, input_ids: ir.Value) -> ir.Value:
        """The embedding of the block's tokens, ``[block rows, hidden]``; scaled in float32, then rounded."""
        scale = self.config.input_embedding_scale
        if scale is None and self.mask_embedding is None:
            return self.embedding(op, input_ids)
        x = self.embedding(op, input_ids, into=F32)
        if self.mask_embedding is not None:
            masked = op.Unsqueeze(op.Equal(input_ids, self.config.mask_token_id), [1])
            x = op.Where(masked, self.mask_embedding, x)
        return op.Cast(x if scale is None else op.Mul(x, scale), to=BF16)

    def lattice(self, op: OpBuilder, hidden: ir.Value, input_ids: ir.Value) -> tuple[ir.Value, ir.Value]:
        """Candidates ``[slots, drafts, top k]`` int32 and scores ``[slots, drafts, top k, top k]`` float32.

        The anchor's row is left out if it predicts nothing.
        """
        config, drafts = self.config, self.config.num_draft_tokens
        if not config.anchor_predicts:
            blocks = op.Reshape(hidden, [-1, config.block_size, config.hidden_size])
            hidden = op.Reshape(op.Slice(blocks, [1], [config.block_size], [1]), [-1, config.hidden_size])
        unary, rows = unary_scores(op, self.head(op, hidden, into=F32), config.top_k)
        sizes = config.block_size, drafts, config.top_k
        found = candidates(op, self.transformed(op, unary), rows, input_ids, sizes, self.d2t)
        return scored(op, found, self.pairs(op, hidden, found, drafts), sizes)

    def transformed(self, op: OpBuilder, unary: ir.Value) -> ir.Value:
        """The candidates' own scores, as the pair scores were trained against them. The order must stay."""
        return unary

    def pairs(self, op: OpBuilder, hidden: ir.Value, found: Candidates, drafts: int) -> ir.Value | None:
        """Scores of pairs, ``[slots, drafts, previous, current]`` float32; None if pairs score nothing."""
        raise NotImplementedError


def _embedding(config: DrafterConfig, options: DrafterOptions) -> Lookup:
    """The target's embedding, in the target's format, or one of the drafter's own."""
    shape = config.vocab_size, config.hidden_size
    if config.own_embedding:
        return Lookup(BODY.weights.matrix("embed_tokens.weight", shape), BODY)
    weights = options.target.weights
    return Lookup(weights.shared(options.embedding, shape), Precision(BF16, weights))


def _head(config: DrafterConfig, options: DrafterOptions, embedding: Lookup) -> Product:
    """The target's head, which may be its embedding's table, or one of the drafter's own."""
    if config.own_head:
        rows = config.draft_vocab_size or config.vocab_size
        return Product(BODY.weights.matrix("lm_head.weight", (rows, config.hidden_size)), BODY)
    weights = options.target.weights
    if options.head == options.embedding and not config.own_embedding:
        return Product(embedding.matrix, Precision(BF16, weights))
    return Product(weights.shared(options.head, (config.vocab_size, config.hidden_size)), Precision(BF16, weights))


def scaled_and_capped(op: OpBuilder, unary: ir.Value, factor: float | None, cap: float | None) -> ir.Value:
    """A multiplier, then a tanh cap, each if there is one. Neither changes the order."""
    if factor is not None:
        unary = op.Mul(unary, factor)
    if cap is not None:
        unary = op.Mul(op.Tanh(op.Div(unary, cap)), cap)
    return unary
