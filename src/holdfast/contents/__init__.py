"""What is inside a checkpoint, without torch: which tensors and values, in which bytes of which files.

- `records`: what every rank says about itself, and the tensors in a skeleton
- `regions`: blocks of tensors, and which stored bytes make a block
- `state`, `tensors`, `dcp`, `weights`: a whole state as flat paths, for people and other programs
- `diff`, `numbers`: what differs between two of them

Capture builds live states on it, DCP and the command line read through it.
"""
