"""The base of everything else: errors, weights (checkpoints in, external data out), layers as ONNX modules."""

__version__ = "0.1.0"
