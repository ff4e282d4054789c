"""What a run says about itself: one Report, rendered as JSON, HTML, Markdown, JUnit or text."""
