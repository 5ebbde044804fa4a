"""One keeper per node: together they start the workers, replace lost nodes, and save what is left."""
