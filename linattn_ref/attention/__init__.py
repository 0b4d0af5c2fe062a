"""The text: one mechanism a file, its formula, forward pass and hand-derived backward pass, in plain NumPy."""
