"""Text to train on: documents of three kinds (story, code, JSON) in the words that the bundled tokenizer was made for.

What can be predicted, and from what:

- the thing of a line is the successor of the one before it: for each kind a cycle through all things, known by heart;
- each thing has its verb in each kind, known by heart, too, though one line in eight takes another;
- names, multipliers and the identifiers of code are copied from earlier in the document;
- numbers of stories and of JSON count upwards.

One line in ten jumps to another thing, and every document starts anywhere, so that no text is a single known string.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from tokenizers import Tokenizer

from scripts.make_tiny_checkpoint import generated_text

KINDS = ("story", "code", "json")
THINGS = 160
JUMP, OTHER_VERB = 0.1, 0.125
LATEST_START = 24  # where a window starts in its document, at most


@dataclass(frozen=True)
class Kind:
    """What all documents of a kind agree on.

    Attributes:
        following: By a thing's number, the number of the thing after it; one cycle.
        verbs: By a thing's number, its verb.
    """

    following: tuple[int, ...]
    verbs: tuple[str, ...]


@dataclass(frozen=True)
class World:
    """What every document agrees on.

    Attributes:
        names: Who may appear.
        things: What may appear.
        verbs: What may be done.
        kinds: The order of things and their verbs, by the name of the kind.
    """

    names: tuple[str, ...]
    things: tuple[str, ...]
    verbs: tuple[str, ...]
    kinds: Mapping[str, Kind]


def make_world() -> World:
    """Take the words of the generator that the tokenizer was trained on, and put them in orders."""
    lines = generated_text(3000)
    records = [json.loads(line) for line in lines if line.startswith("{")]
    names, things = (sorted({record[key] for record in records}) for key in ("name", "item"))
    verbs = sorted({line.split("_")[0].removeprefix("def ") for line in lines if line.startswith("def ")})
    rng = random.Random(11)
    chosen = rng.sample(things, THINGS)
    kinds = {}
    for kind in KINDS:
        cycle = rng.sample(range(THINGS), THINGS)
        following = [0] * THINGS
        for thing, after in pairwise([*cycle, cycle[0]]):
            following[thing] = after
        kinds[kind] = Kind(tuple(following), tuple(rng.choices(verbs, k=THINGS)))
    return World(tuple(names), tuple(chosen), tuple(verbs), kinds)


def document(world: World, rng: random.Random) -> Iterator[str]:
    """Lines without an end, all of one kind, each with its line break."""
    kind, name = rng.choice(KINDS), rng.choice(world.names)
    facts, thing = world.kinds[kind], rng.randrange(THINGS)
    number = {"story": rng.randint(1, 899), "code": rng.randint(2, 99), "json": rng.randint(0, 899)}[kind]
    last = "x"
    while True:
        item = world.things[thing]
        verb = rng.choice(world.verbs) if rng.random() < OTHER_VERB else facts.verbs[thing]
        following = rng.randrange(THINGS) if rng.random() < JUMP else facts.following[thing]
        if kind == "story":
            yield f"Day {number}: {name} {verb} the {item} near the {world.things[following]}.\n"
            number += 1
        elif kind == "json":
            yield json.dumps({"name": name, "item": item, "count": number}, ensure_ascii=False) + "\n"
            number += 1
        else:
            function = f"{verb}_{item}"
            value = last if last == "x" else f"{last}(x)"
            yield f"def {function}(x: int) -> int:\n    return {value} * {number} + 1\n\n"
            last = function
        thing = following


def windows(world: World, tokenizer: Tokenizer, rng: random.Random, count: int, length: int) -> list[list[int]]:
    """``count`` token sequences, each cut from a document of its own, starting at or soon after its beginning."""
    texts = []
    for _ in range(count):
        text = ""
        for line in document(world, rng):
            text += line
            if len(text) > 5 * (length + LATEST_START):  # more tokens than are cut
                break
        texts.append(text)
    ids = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
    starts = [rng.randrange(LATEST_START) for _ in texts]
    cut = [row[start : start + length] for row, start in zip(ids, starts, strict=True)]
    assert all(len(row) == length for row in cut), "the documents are too short"
    return cut
