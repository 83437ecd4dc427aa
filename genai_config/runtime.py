"""Facts of onnxruntime-genai 0.18 that no configuration can change, or that hold if it says nothing."""

from __future__ import annotations

ENGINE_DRAFTS = 7  # the most drafts that the Engine takes in one step, whatever is configured
DEFAULT_DRAFTS = 4  # what it takes if speculative.max_draft_tokens is not set
DEFAULT_PAGE = 256  # tokens in a page if dynamic_batching.block_size is not set
DEFAULT_BATCH = 16  # requests at once if dynamic_batching.max_batch_size is not set


def ring_pages(window: int, block: int, page: int) -> int:
    """Pages in a request's ring, in which the runtime keeps the cache of a drafter that has a window.

    Args:
        window: ``sliding_window``, positive.
        block: Rows in a block.
        page: Tokens per page.
    """
    return -(-(window + 2 * block) // page) + 1


def block_pages(block: int, page: int) -> int:
    """Pages that a drafter's cache has for each request beyond the target's, if it grows with the text."""
    return -(-block // page)


def ingested(window: int, block: int) -> int:
    """The most context rows that are handed to a drafter with a window; earlier ones are skipped."""
    return window + block


def token_bytes(layers: int, key_value_heads: int, head_size: int, itemsize: int = 2) -> int:
    """Bytes of cache per position: the keys and values of all layers, at ``itemsize`` bytes per element."""
    return 2 * layers * key_value_heads * head_size * itemsize
