"""What a training process and its supervisor say by ending. Scripts rely on it: never change a number.

| code | who | meaning | what should happen |
|---|---|---|---|
| 0 | both | the work is complete | nothing; leftover array tasks may end at once |
| 1 | training | stopped early, and the last save failed; an older checkpoint is whole | restart, look why |
| 75 | both | stopped early, its checkpoint committed (signal, deadline, spot notice) | run it again |
| 78 | training | running again cannot help; the supervisor passes it on | a person must look |
| 91 | keeper | too few nodes are left; the newest state is in the run's folder | run it on enough nodes |
| 92 | supervisor | the budget of restarts is used up | a person must look |
| 93 | supervisor | restarts made no new checkpoint | a person must look |
| 94 | keeper | this node was taken for lost, the others go on without it | look at the node |
| 126, 127 | supervisor | the command cannot be executed, or does not exist | correct the command |
| 130 | both | Ctrl-C; the state is committed | run it again when you like |

Anything else is a crash, and is restarted. A script that knows better ends with `sys.exit(78)`.
"""

from __future__ import annotations

FINISHED = 0
STOPPED_UNSAVED = 1
# EX_TEMPFAIL of sysexits.h: "try again later", which is what it says.
PLEASE_RUN_AGAIN = 75
# EX_CONFIG of sysexits.h.
DO_NOT_RESTART = 78
TOO_FEW_NODES = 91
OUT_OF_RESTARTS = 92
NO_PROGRESS = 93
GIVEN_UP = 94
CANNOT_EXECUTE = 126
NOT_FOUND = 127
INTERRUPTED = 130
