"""The command line: one file a command, each parses, calls the pipeline and renders what came back."""
