"""The command line of onnxruntime-genai's own model builder, release 0.18, and what becomes of each part of it here.

One table, read by the command line, which refuses or accepts by it, and by ``scripts/make_peer_table.py``, which writes
``docs/from-the-model-builder.md``. A name stands here with its meaning there: the nearest name of ours may mean
something else.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

PEER = "onnxruntime-genai's model builder"


class Fate(Enum):
    """What becomes of an option of the other builder."""

    SAME = "the same here"
    ANYWAY = "accepted where it asks for what happens anyway"
    LATER = "not here yet"
    OTHER = "not for these models"


@dataclass(frozen=True)
class PeerOption:
    """One ``--extra_options`` key, or one flag, of the other builder.

    Attributes:
        name: Its name.
        fate: What becomes of it here.
        meaning: What it does there.
        here: What happens here, or what to do instead; for values that do not pass, where some do.
        passes: Values that ask for what happens anyway, in lower case; they are accepted with a note.
        default: What holds there when it is not given, where something else does here.
        secret: Whether its value is never to be shown.
    """

    name: str
    fate: Fate
    meaning: str
    here: str
    passes: tuple[str, ...] = ()
    default: str = ""
    secret: bool = False

    def accepts(self, value: str) -> bool:
        """Whether a value asks for what happens anyway."""
        text = value.strip().lower()
        return {"1": "true", "0": "false"}.get(text, text) in self.passes or text in self.passes


def _same(name: str, meaning: str, here: str = "", default: str = "") -> PeerOption:
    return PeerOption(name, Fate.SAME, meaning, here, default=default)


def _anyway(name: str, passes: str, meaning: str, here: str, default: str = "", *, secret: bool = False) -> PeerOption:
    return PeerOption(name, Fate.ANYWAY, meaning, here, tuple(passes.split()), default, secret)


def _later(name: str, meaning: str, here: str, default: str = "") -> PeerOption:
    return PeerOption(name, Fate.LATER, meaning, here, default=default)


def _other(name: str, meaning: str, here: str) -> PeerOption:
    return PeerOption(name, Fate.OTHER, meaning, here)


_UNQUANTIZED = "Leave it out: weights are written in the type that -p names, none is quantized yet."
_NO_EXPERTS = "Leave it out: mixture-of-experts checkpoints are not exported yet."
_PROVIDER = "Leave it out: exports are for -e cpu and -e cuda."

OPTIONS = (
    _same(
        "aux_hidden_state_layers", "taps for a drafter", "from 1 to the number of layers, which is one more than there"
    ),
    _same("dflash2_num_draft_tokens", "drafts of a DFlash 2 block"),
    _same(
        "dflash2_path",
        "a DFlash 2 drafter",
        "it implies use_paged_attention, the taps and the state updates, which must be given there; drafter_path takes "
        "drafters of every kind",
    ),
    _same("dspark_num_draft_tokens", "drafts of a DSpark block"),
    _same("dspark_path", "a DSpark drafter", "the same as for dflash2_path"),
    _same("dspark_top_k", "candidates of a position of a DSpark block"),
    _same("enable_cuda_graph", "CUDA graphs", "an option of the packed layout", default="false"),
    _same("gpu_utilization_factor", "the share of the GPU's memory for the cache"),
    _same("include_hidden_states", "a further output, hidden_states"),
    _same("max_batch_size", "requests that run at once", default="100"),
    _same(
        "max_draft_tokens",
        "drafts that a step verifies",
        "at most 7, which is what the Engine takes; 16 there",
        default="unset, which is 4 in the runtime",
    ),
    _same("max_scheduled_tokens", "tokens of a step"),
    _same("num_blocks", "pages of the cache"),
    _same("paged_block_size", "tokens of a page"),
    _same("paged_chunk_size", "tokens of a prompt in one step"),
    _same("prune_lm_head", "logits of the last token only, or of those that are asked for", default="false"),
    _same(
        "state_update_capacity",
        "drafts per step that the linear layers can take back",
        "with a drafter it is set to what its drafts need",
        default="0",
    ),
    _same("use_paged_attention", "the packed layout, for the Engine", "a drafter implies it"),
    _anyway(
        "config_only",
        "false",
        "write genai_config.json and the tokenizer, and no graph",
        "Export as a whole: a folder is written complete or not at all. genai_config.json and the tokenizer's files "
        "can be taken from the result.",
    ),
    _anyway(
        "dflash2_fuse_gate_up",
        "true",
        "one product for a DFlash 2 drafter's gate and up projections",
        "Leave it out: they are always one product.",
        default="false",
    ),
    _anyway(
        "dflash2_fuse_qkv",
        "true",
        "one product for a DFlash 2 drafter's query, key and value projections",
        "Leave it out: they are always one product.",
        default="false",
    ),
    _anyway(
        "dflash2_precision",
        "bf16",
        "the type of a DFlash 2 drafter's weights",
        "Leave it out: a drafter's body is bf16 in any export, and is not quantized yet.",
    ),
    _anyway(
        "disable_qkv_fusion",
        "false",
        "separate query, key and value projections (an old name of fuse_qkv=false)",
        "Leave it out: they are always one product.",
    ),
    _anyway(
        "enable_cuda_fpa_intb_gemm",
        "false",
        "the CUDA kernels for int4 and int8 weights that are stored raw",
        _UNQUANTIZED,
    ),
    _anyway(
        "enable_dml_graph",
        "false",
        "graph capture of DirectML",
        _PROVIDER,
    ),
    _anyway(
        "enable_webgpu_graph",
        "false",
        "graph capture of WebGPU",
        _PROVIDER,
    ),
    _anyway(
        "exclude_embeds",
        "false",
        "a graph that reads inputs_embeds in place of input_ids",
        "Leave it out: images, which need it, are not exported yet. The table model.embed_tokens.weight is in the "
        "checkpoint, to be looked up outside.",
    ),
    _anyway(
        "exclude_lm_head",
        "false",
        "a graph that ends with hidden_states and has no logits",
        "Use include_hidden_states=true, which adds the output hidden_states; the head stays, and prune_lm_head keeps "
        "it cheap.",
    ),
    _anyway(
        "exclude_mtp",
        "true",
        "leave the checkpoint's multi-token prediction head out",
        "Leave it out: the head (mtp.*) is not exported yet, and the summary says so. For drafts, give a block drafter "
        "with drafter_path.",
        default="false",
    ),
    _anyway(
        "filename",
        "model.onnx",
        "the name of model.onnx",
        "Rename after the export: model.onnx, and filename in genai_config.json. Leave model.onnx.data, which the "
        "graph names, as it is.",
    ),
    _anyway(
        "fuse_mlp_gate_up",
        "true",
        "one product for each gate and up projection",
        "Leave it out: they are always one product.",
        default="false",
    ),
    _anyway(
        "fuse_qkv",
        "true",
        "one product for query, key and value projections",
        "Leave it out: they are always one product.",
    ),
    _anyway(
        "hf_remote",
        "false",
        "run Python code from the repository",
        "Leave it out: no code from a repository is loaded, and none is needed.",
    ),
    _anyway(
        "hf_token",
        "true",
        "log in to the Hub with a token, or with false not at all",
        "Set the environment variable HF_TOKEN to a token, or run: hf auth login. To stay logged out, set "
        "HF_HUB_DISABLE_IMPLICIT_TOKEN=1. A token on the command line ends up in logs: if this was one, revoke it.",
        secret=True,
    ),
    _anyway(
        "kv_cache_quant_scheme",
        "none",
        "int8, int4 or fp8 in the cache",
        "Leave it out: the cache holds the type that -p names. num_blocks and gpu_utilization_factor size it.",
    ),
    _anyway(
        "kv_cache_rotation",
        "none",
        "a Hadamard rotation of a quantized cache",
        "Leave it out: the cache is not quantized.",
    ),
    _anyway(
        "linear_attn_op",
        "linear_attention",
        "the operator of the linear layers in the dense layout",
        "Leave it out: it is LinearAttention in the dense layout. For GatedDeltaNet choose the packed layout, with "
        "use_paged_attention=true.",
    ),
    _anyway(
        "matmulnbits_weights_prepacked",
        "0",
        "the layout of int4 and int8 weights for CUDA's kernels",
        _UNQUANTIZED,
    ),
    _anyway(
        "state_window",
        "0",
        "a history of the linear layers' states",
        "Use state_update_capacity, with use_paged_attention=true: states that drafts can take back.",
    ),
    _anyway(
        "use_8bits_moe",
        "false",
        "int8 experts (an old name of moe_quant_type=int8)",
        _NO_EXPERTS,
    ),
    _anyway(
        "use_cuda_bf16",
        "false",
        "bf16 activations beside int4 or int8 weights",
        "Give -p bf16, which makes weights and activations bf16; there are no quantized weights yet.",
    ),
    _anyway(
        "use_device_allocator_for_initializers",
        "false",
        "a switch of the session for weights that are packed again when they are loaded",
        'Write "session.use_device_allocator_for_initializers": "1" into the decoder\'s session_options in '
        "genai_config.json after the export. The weights here are not packed again.",
    ),
    _anyway(
        "use_qdq",
        "false",
        "quantization as pairs of QuantizeLinear and DequantizeLinear",
        _UNQUANTIZED,
    ),
    _anyway(
        "use_webgpu_fp32",
        "false",
        "fp32 on WebGPU",
        _PROVIDER,
    ),
    _anyway(
        "windowed_kv_cache",
        "true false",
        "a shorter cache for the target's layers with a window",
        "Leave it out: no layer of these targets has a window. A drafter's windows are always used.",
    ),
    _later("accuracy_level", "the type that int4 and int8 products compute in", _UNQUANTIZED),
    _later(
        "adapter_path",
        "a LoRA adapter",
        "Merge it first: PeftModel.from_pretrained(base, adapter).merge_and_unload().save_pretrained(FOLDER) of the "
        "peft library, then -i FOLDER.",
    ),
    _later("algo_config", "the method of int4 and int8 quantization", _UNQUANTIZED),
    _later(
        "block_size",
        "weights of one scale, in int4 and int8 quantization",
        f"{_UNQUANTIZED} (Pages of the cache are paged_block_size, a drafter's blocks drafter_block_size.)",
    ),
    _later("is_symmetric", "signed int4 and int8, without zero points", _UNQUANTIZED),
    _later(
        "kv_cache_scale_file",
        "scales of a quantized cache",
        "Leave it out: the cache is not quantized, so that it needs no scales.",
    ),
    _later("matmul_mixed_precision", "other types for some int4 products", _UNQUANTIZED),
    _later("moe_quant_type", "the type of a mixture's experts", _NO_EXPERTS),
    _later(
        "mtp_quant_config",
        "the quantization of the multi-token prediction head",
        "Leave it out: the head is not exported yet. For drafts, give a block drafter with drafter_path.",
    ),
    _later("nodes_to_exclude", "nodes that are not quantized", _UNQUANTIZED),
    _later("op_types_to_quantize", "operators that are quantized", _UNQUANTIZED),
    _later("qmoe_block_size", "weights of one scale in a mixture's experts", _NO_EXPERTS),
    _later("qmoe_weights_prepacked", "the layout of a mixture's experts", _NO_EXPERTS),
    _other(
        "fuse_qk_norm_gqa",
        "query and key norms inside GroupQueryAttention",
        "Leave it out: they are inside PagedAttention in the packed layout, and nodes of their own in the dense one, "
        "whose CPU kernel has none.",
    ),
    _other(
        "num_hidden_layers",
        "fewer layers, for unit tests",
        "Leave it out: the checkpoint says how many layers it has, and all are exported. "
        "scripts/make_tiny_checkpoint.py makes a small checkpoint for tests.",
    ),
    _other(
        "shared_embeddings",
        "one table for embedding and head",
        "Leave it out: config.json and the tensors tell. One table is written where tie_word_embeddings is true, two "
        "where it is not.",
    ),
)

_STRUCTURED = "Give what it holds as --extra_options"

FLAGS = (
    _same("--model_name", "a repository on the Hub", "-m"),
    _same("--input", "the checkpoint's folder", "-i; no GGUF file"),
    _same("--output", "the folder to write", "-o; replaced as a whole"),
    _same("--precision", "the type", "-p; always needed: bf16, fp16 or fp32"),
    _same("--execution_provider", "where the graph will run", "-e; cpu or cuda"),
    _same("--cache_dir", "where downloads are kept", "-c", default="./cache_dir"),
    _same(
        "--extra_options",
        "key=value ...",
        "given more than once, all of them hold; there, the last. A name that is not known is refused; there, ignored",
    ),
    _later(
        "--builder_config_version", "the version of the options that are given as JSON", f"{_STRUCTURED} key=value ..."
    ),
    _later(
        "--target_options",
        "options of the target as JSON",
        f"{_STRUCTURED}: use_paged_attention=true for attention.implementation paged, paged_block_size for "
        "attention.paged.block_size. Weights are not quantized yet.",
    ),
    _later(
        "--drafter_options",
        "options of the drafter as JSON",
        f"{_STRUCTURED}: drafter_path for path, dflash2_num_draft_tokens or dspark_num_draft_tokens for "
        "num_draft_tokens, dspark_top_k for dspark.top_k.",
    ),
    _later(
        "--speculative_options",
        "taps and state updates as JSON",
        f"{_STRUCTURED}: aux_hidden_state_layers and state_update_capacity. With drafter_path both follow "
        "from the drafter.",
    ),
    _later(
        "--runtime_config",
        "a part of genai_config.json",
        "Edit genai_config.json after the export.",
    ),
    _later(
        "--search",
        "search settings of genai_config.json",
        "Edit the section search of genai_config.json after the export, or call set_search_options of the runtime.",
    ),
)
