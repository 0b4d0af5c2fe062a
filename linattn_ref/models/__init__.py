"""Real transformers in plain NumPy: ``bert`` loads and runs a pretrained BERT or RoBERTa encoder."""
