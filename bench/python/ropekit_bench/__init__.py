"""What times other packages beside ropekit, and what shows results. docs/bench.md has the method."""
