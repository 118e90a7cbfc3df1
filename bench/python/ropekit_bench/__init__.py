"""What times other packages beside ropekit, and what shows results: docs/benchmarks.md."""
