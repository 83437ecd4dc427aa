"""The report of a proof: one HTML file that needs no network."""
