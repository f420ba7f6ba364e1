"""One module per question that a user asks."""
