"""Generate text from an export with onnxruntime-genai: generate.py EXPORT_DIR PROMPT [--max-new-tokens N]"""

from __future__ import annotations

import argparse

import onnxruntime
import onnxruntime_genai as og


def main() -> None:
    """Print the prompt's continuation as it comes."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("export", help="a folder that draftsmith has written, with a tokenizer")
    parser.add_argument("prompt")
    parser.add_argument("--max-new-tokens", type=int, default=64)
    arguments = parser.parse_args()

    onnxruntime.preload_dlls()  # finds CUDA's libraries in NVIDIA's packages; does nothing in the CPU's build
    model = og.Model(arguments.export)
    tokenizer = og.Tokenizer(model)
    prompt = tokenizer.encode(arguments.prompt)
    parameters = og.GeneratorParams(model)
    parameters.set_search_options(max_length=len(prompt) + arguments.max_new_tokens)
    generator = og.Generator(model, parameters)
    generator.append_tokens(prompt)
    stream = tokenizer.create_stream()
    print(arguments.prompt, end="", flush=True)
    while not generator.is_done():
        generator.generate_next_token()
        print(stream.decode(generator.get_next_tokens()[0]), end="", flush=True)
    print()


if __name__ == "__main__":
    main()
