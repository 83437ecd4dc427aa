"""Scripts to run by hand; tests use some of their functions."""
