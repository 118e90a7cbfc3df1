"""Documents of any number of machines as one page and one summary."""
