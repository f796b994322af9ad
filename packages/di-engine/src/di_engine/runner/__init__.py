"""Turns step plans into batch tensors, runs the model on them, and samples."""
