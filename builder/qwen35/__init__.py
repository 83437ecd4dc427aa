"""The target: Qwen 3.5 / 3.6 / 3.8 text decoders (architecture ``qwen3_5``) as ONNX modules."""
