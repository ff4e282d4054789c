"""One file a model family: where the model is, what it is fed and how its answers are judged."""
