"""Training state: what is tracked, taken and given back."""
