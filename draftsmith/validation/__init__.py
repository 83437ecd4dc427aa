"""The proof of an export: a lowered copy on the CPU, and what to compare it with. Needs the extras cpu and verify."""
