"""Layers as ONNX modules: each declares its parameters with their sources, and emits its nodes in ``forward``."""
