"""Serve an export with the Engine of onnxruntime-genai: serve_engine.py EXPORT_DIR < PROMPTS

A prompt a line from standard input. Requests are decoded together: one that ends makes room for the next, and a drafter
in the folder is used by itself. Each text is printed as it ends, what the drafts were worth at the end. Where the model
cannot be loaded, draftsmith doctor EXPORT_DIR says why.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Iterator

import numpy as np
import onnxruntime
import onnxruntime_genai as og


class Server:
    """The Engine of an export, and the requests that it works on.

    Args:
        export: The export's folder; its layout must be packed.
        slots: Requests that are open at once. The Engine runs ``max_batch_size`` of them together; others wait in it.
        count: Tokens after each prompt, at most.
    """

    def __init__(self, export: str, slots: int, count: int) -> None:
        onnxruntime.preload_dlls()  # finds CUDA's libraries in NVIDIA's packages; does nothing in the CPU's build
        model = og.Model(og.Config(export))
        self.tokenizer = og.Tokenizer(model)
        self.engine = og.Engine(model)
        self.events = self.engine.create_event_buffer(64)
        self.slots, self.count = slots, count
        self.open: list[tuple[og.Request, str, list[int]]] = []

    def serve(self, prompts: Iterable[str]) -> Iterator[tuple[str, str]]:
        """Each prompt with its continuation, in the order in which they end."""
        waiting = iter(prompts)
        while True:
            while len(self.open) < self.slots and (prompt := next(waiting, None)) is not None:
                self._begin(prompt)
            if not self.open:
                return
            yield from self._step()

    def _begin(self, prompt: str) -> None:
        request = self.engine.create_request()
        options = og.TurnOptions(request)
        options.set_max_generated_tokens(self.count)
        request.begin_turn(np.array(self.tokenizer.encode(prompt), np.int32), options)
        self.open.append((request, prompt, []))

    def _step(self) -> Iterator[tuple[str, str]]:
        """Run the Engine once: a pass of the target over all requests, with the drafts of each."""
        for event in self.engine.run(self.events):
            place = next(i for i, (request, _, _) in enumerate(self.open) if request is event.request)
            request, prompt, tokens = self.open[place]
            flags = int(event.flags)  # a sum: the last token may come with the end of the turn
            if flags & int(og.EngineEventFlags.FAILED):
                raise RuntimeError(f"the Engine failed: {event.error_code}")
            if flags & int(og.EngineEventFlags.TOKEN):
                tokens.append(event.token)
            if flags & int(og.EngineEventFlags.TURN_FINISHED):
                request.close()  # an open request waits for a further turn, and keeps its pages
                del self.open[place]
                yield prompt, self.tokenizer.decode(tokens)

    def drafts(self) -> str:
        """What the drafts were worth, in a line."""
        statistics = dict(self.engine.get_speculative_stats())
        accepted = statistics["acceptance_length_histogram"]
        rounds = sum(accepted)
        if not rounds:
            return "no drafts"
        mean = sum(length * count for length, count in enumerate(accepted)) / rounds
        return f"{statistics['draft_tokens_proposed']} drafts in {rounds} rounds, {mean:.2f} accepted in a round"


def main() -> None:
    """Serve what comes on standard input."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("export", help="a packed export that draftsmith has written, with a tokenizer")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    parser.add_argument("--slots", type=int, default=4, help="requests at once")
    arguments = parser.parse_args()

    server = Server(arguments.export, arguments.slots, arguments.max_new_tokens)
    for prompt, text in server.serve(line.rstrip("\n") for line in sys.stdin if line.strip()):
        print(f"--- {prompt}\n{text}", flush=True)
    print(f"---\n{server.drafts()}")


if __name__ == "__main__":
    main()
