"""Records to numbers: bounds, summaries, fairness, and the run folders that hold them."""
