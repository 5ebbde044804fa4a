"""holdfast under other frameworks: each file serves one of them."""
