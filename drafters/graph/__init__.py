"""A drafter's graph: the backbone that all kinds share, and one module for each kind."""
