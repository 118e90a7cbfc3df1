"""Runs of any number of machines as one page, one summary and regions of documents."""
