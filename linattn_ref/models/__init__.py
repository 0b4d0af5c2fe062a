"""Real transformers in plain NumPy."""
