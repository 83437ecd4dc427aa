"""Weights: safetensors checkpoints in, ONNX external data out, a block at a time."""
