"""The proof of an export: what it ships, compared with PyTorch and run in the real runtime, without a GPU."""
