"""A cluster on paper: failures, costs, policies."""
