"""A drafter's folder: its configuration as its producer writes it, the names of its tensors, what is refused."""
