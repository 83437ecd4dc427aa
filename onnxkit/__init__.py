"""The floor that everything stands on: errors, weights (checkpoints in, external data out), layers as ONNX modules."""

__version__ = "0.1.0"
