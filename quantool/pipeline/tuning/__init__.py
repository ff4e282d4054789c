"""Commands that compare many ways to quantize: sensitivity, tune, and recipes."""
