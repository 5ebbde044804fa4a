"""What bytes: trees, images, digests, manifests. Pure: no I/O, no clock, no torch."""
