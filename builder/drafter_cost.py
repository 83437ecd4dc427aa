"""What a drafter costs beside its target: bytes on the disk, and the memory that its cache takes from the target's."""

from __future__ import annotations

from dataclasses import dataclass

from builder.drafter import Drafter
from builder.resolved import POOL_LIMIT
from genai_config import runtime
from onnxkit.errors import ExportError
from onnxkit.sizes import readable


@dataclass(frozen=True)
class DrafterCost:
    """The cost of a drafter.

    Attributes:
        drafter: The drafter.
        own: Bytes of its own data file.
        shared: Bytes of the target's tensors that it reads.
        target_token: Bytes of the target's cache for a position.
        page_size: Tokens in a page.
        pages: Pages of a request's ring; None if its cache grows with the target's.
        requests: Requests at once.
    """

    drafter: Drafter
    own: int
    shared: int
    target_token: int
    page_size: int
    pages: int | None
    requests: int

    @property
    def pool(self) -> int:
        """Bytes of the rings of all requests, which the runtime allocates at the start; 0 where there are none."""
        return (self.pages or 0) * self.page_size * self.drafter.token_bytes() * self.requests

    @property
    def least_blocks(self) -> int:
        """The fewest pages that the Engine starts with: it takes the drafter's cache from num_blocks of the target's.

        A ring is there from the start; a cache that grows has a page for each of the target's, and those of a block
        more for each request. Beside it one page of the target's must be left.
        """
        more = runtime.block_pages(self.drafter.config.block_size, self.page_size)
        growing = self.page_size * self.drafter.token_bytes() * (1 + self.requests * more)
        reserved = growing if self.pages is None else self.pool
        return 1 - (-reserved // (self.page_size * self.target_token))

    def check_blocks(self, num_blocks: int | None) -> None:
        """Check that the requested pages have room for the drafter's cache.

        Raises:
            ExportError: They do not; the Engine would not start.
        """
        if num_blocks is not None and num_blocks < self.least_blocks:
            raise ExportError(
                "The cache has no room for the drafter's.",
                where=f"--extra_options num_blocks={num_blocks}",
                found=f"{num_blocks} pages of {self.page_size} tokens, of which the drafter's cache takes "
                f"{self.least_blocks - 1} for {self.requests} requests",
                accepted=f"{self.least_blocks} or more, and as many as the texts need",
                fix="Raise num_blocks, lower max_batch_size, or leave num_blocks out.",
            )

    def lines(self) -> list[str]:
        """The cost in words, a line each."""
        config, token = self.drafter.config, self.drafter.token_bytes()
        taps = ", ".join(map(str, config.taps))
        window = "full attention" if config.window is None else f"a window of {config.window}"
        lines = [
            f"Drafter: {self.drafter.title}, {config.num_draft_tokens} drafts from blocks of {config.block_size} rows, "
            f"{window}, taps {taps}",
            f"  weights  {readable(self.own)}; embedding and head, {readable(self.shared)}, are the target's",
        ]
        if self.pages is None:
            share = token / (token + self.target_token)
            return [
                *lines,
                f"  cache    {token} B a token, in as many pages as the target has ({self.target_token} B a token)",
                f"  context  the same memory holds {share:.0%} fewer tokens than without the drafter",
            ]
        rings = f"{self.requests} requests x {self.pages} pages of {self.page_size} tokens"
        return [
            *lines,
            f"  cache    {token} B a token; {rings}: {readable(self.pool)}",
            f"  context  that is the room of {self.pool // self.target_token} tokens of the target's cache "
            f"({self.target_token} B a token)",
        ]

    def note(self, context_length: int) -> list[str]:
        """A note where the cache is larger than one would expect, or where fewer requests were chosen for its sake."""
        size = f"drafter: its cache takes {readable(self.pool)} for {self.requests} requests"
        causes = f"it goes with max_batch_size ({self.requests}) and, where attention is full, context_length"
        if self.pool > POOL_LIMIT:
            return [f"{size}; {causes} ({context_length}): lower one of them"]
        if self.pool + self.pool // self.requests > POOL_LIMIT and self.requests < runtime.DEFAULT_BATCH:
            return [f"{size}, the most that stay within {readable(POOL_LIMIT)}; {causes} ({context_length})"]
        return []
