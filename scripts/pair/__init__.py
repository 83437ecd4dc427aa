"""The parts of ``train_tiny_pair.py``: text, target, drafters, their measure and the figure."""
