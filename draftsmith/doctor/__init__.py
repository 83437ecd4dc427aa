"""``draftsmith doctor``: what is installed, what the machine has, and whether an export runs on it."""
