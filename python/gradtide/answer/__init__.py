"""What the answer of every study states beside its figures."""
