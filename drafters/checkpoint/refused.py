"""Drafters that are known but not supported: each by name, with the reason why it cannot be exported."""

from __future__ import annotations

from dataclasses import dataclass

from drafters.checkpoint.dialects.dialect import architecture
from drafters.checkpoint.names import DraftNames
from onnxkit.errors import ExportError, listed
from onnxkit.json_object import JsonObject
from onnxkit.weights.checkpoint import Checkpoint


@dataclass(frozen=True)
class Refused:
    """A kind of drafter that is not supported.

    Attributes:
        name: What it is.
        why: Why it is not supported.
        tensors: Parts of tensor names that tell it.
        architectures: Names in ``architectures`` that tell it.
        types: Values of ``model_type`` or ``speculators_model_type`` that tell it.
        keys: Keys that tell it, wherever they stand.
    """

    name: str
    why: str
    tensors: tuple[str, ...] = ()
    architectures: tuple[str, ...] = ()
    types: tuple[str, ...] = ()
    keys: tuple[str, ...] = ()


_NOT_A_BLOCK = "it drafts one token at a time, in a loop that the runtime does not have for block drafters"

REFUSED = (
    Refused(
        "Domino",
        "the state of its GRU runs over all tokens drafted so far, which is no score of a pair",
        tensors=("prefix_gru.", "embed_proj."),
        architectures=("DominoDraftModel",),
        keys=("pure_draft_prefix_len", "gru_hidden_dim"),
    ),
    Refused(
        "EAGLE3",
        _NOT_A_BLOCK,
        tensors=("midlayer.", "layers.0.hidden_norm."),
        architectures=("LlamaForCausalLMEagle3", "Eagle3Speculator", "Eagle3DraftModel"),
        types=("eagle3",),
    ),
    Refused(
        "P-EAGLE",
        "its rows are those of an EAGLE head run in parallel, with norms and a vocabulary of their own",
        tensors=("mask_hidden",),
        architectures=("PEagleDraftModel", "PEagleSpeculator"),
        types=("peagle",),
        keys=("pard_token",),
    ),
    Refused(
        "XPress",
        "it refines a block in several passes; the runtime makes one",
        tensors=("xpress_head.", "jacobi"),
        architectures=("XPressSpeculator", "XPressDraftModel"),
        types=("xpress",),
    ),
    Refused(
        "LiLiCorr",
        "it scores candidates with the target's embedding and the anchor's context, which the lattice does not have",
        architectures=("LiLiCorrSpeculator", "LiLiCorrDraftModel"),
        types=("lilicorr",),
        keys=("lilicorr_candidate_topk",),
    ),
    Refused(
        "a Laguna drafter",
        "its attention is gated and its context goes through the layers' input norms",
        tensors=(".g_proj.", "aux_hidden_norms", ".qkv_proj."),
        architectures=("LagunaDFlashDraftModel", "LagunaDFlashModel"),
        types=("laguna",),
    ),
    Refused(
        "a MiMo drafter",
        "it rotates half of a head, scales values and has a mask embedding of its own",
        tensors=("mask_embedding",),
        architectures=("MiMoDFlashDraftModel", "MiMoV2DFlashModel"),
        keys=("attention_value_scale",),
    ),
    Refused(
        "a Gemma drafter",
        "its layers have four norms, another activation, and scaled embeddings",
        tensors=("pre_feedforward_layernorm", "post_feedforward_layernorm"),
        architectures=("Gemma4DSparkModel", "Gemma3DSparkModel", "Gemma4DFlashDraftModel"),
        types=("gemma4", "gemma4_text", "gemma3", "gemma3_text", "gemma4_dspark"),
    ),
    Refused(
        "a DeepSeek drafter",
        "its attention is latent and its streams are hyper-connected",
        tensors=(".kv_a_proj", ".q_a_proj", ".hc_", "hc_head"),
        architectures=("DeepseekV4DSparkModel", "DeepSeekV4DSparkModel"),
        types=("deepseek_v3", "deepseek_v32", "deepseek_v4"),
        keys=("hc_mult", "dspark_noise_token_id", "dspark_target_layer_ids", "dspark_markov_rank"),
    ),
    Refused(
        "an LFM2 drafter",
        "it rotates neighbouring channels",
        architectures=("Lfm2DSparkDraftModel",),
        types=("lfm2",),
    ),
    Refused(
        "a DSpark drafter with gated attention (Qwen35DSparkModel)",
        "its q_proj also makes a gate, its norms are stored minus 1, and it rotates only a part of each head",
        architectures=("Qwen35DSparkModel",),
        keys=("enable_qwen35_gated_q_proj",),
    ),
    Refused(
        "a DSpark drafter with an rnn Markov head",
        "the state of the head runs over all tokens drafted so far, which is no score of a pair",
        tensors=("markov_head.joint_proj.",),
    ),
    Refused("a target model", "it is no drafter", tensors=("linear_attn.", "mtp.", ".mlp.experts.")),
)


def refuse_known(checkpoint: Checkpoint, names: DraftNames) -> None:
    """Refuse a drafter of a kind that is not supported. Tensors are examined first.

    Raises:
        ExportError: It is one of them.
    """
    for kind in REFUSED:
        if marked := [stored for part in kind.tensors for stored in names.having(part)]:
            raise _error(checkpoint, kind, f"{kind.name}, by its tensors:\n{listed(marked[:3])}")
    config = checkpoint.config
    for kind in REFUSED:
        if reason := _by_config(config, kind):
            raise _error(checkpoint, kind, f"{kind.name}, by {reason}")


def _by_config(config: JsonObject, kind: Refused) -> str | None:
    if (found := architecture(config)) and found in kind.architectures:
        return f"architectures: {found}"
    for key in ("speculators_model_type", "model_type"):
        if (value := config.data.get(key)) in kind.types and isinstance(value, str):
            return f"{key}: {value}"
    sections = [data for data in config.data.values() if isinstance(data, dict)]
    for section in (config.data, *sections):
        for key in kind.keys:
            if section.get(key) not in (None, False):
                return f"the key {key}"
    return None


def _error(checkpoint: Checkpoint, kind: Refused, found: str) -> ExportError:
    return ExportError(
        "The drafter's folder holds something that is not exported.",
        where=checkpoint.folder,
        found=found,
        accepted=f"a DFlash, DFlash 2 or DSpark drafter; not this kind, since {kind.why}",
        fix="Point the option at the folder of such a drafter.",
    )
