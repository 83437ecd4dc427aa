"""Block drafters: models that propose a block of tokens at once from a target's hidden states."""
