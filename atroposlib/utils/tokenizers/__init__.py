"""Tokenizers with mended chat templates."""
