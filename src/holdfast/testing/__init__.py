"""Public test doubles. Nothing in holdfast imports them."""
