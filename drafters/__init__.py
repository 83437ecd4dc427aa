"""Block drafters: one module per family on a shared backbone. Empty until their export arrives."""
