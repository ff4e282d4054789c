"""What a report tells in detail: each tensor, each layer, and what would make the result better."""
