"""`LLM`, sampling parameters, outputs, stop strings and streaming."""
