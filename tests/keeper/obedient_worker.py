"""A worker that does what the test tells it: says where it is, then waits. Standard library only."""

import json
import os
import signal
import socket
import sys
import time

director = socket.socket(socket.AF_UNIX)
director.connect(os.environ["DIRECTOR"])
signal.signal(signal.SIGTERM, lambda *_: director.sendall(b"SIGTERM\n"))
where = {name: os.environ.get(name) for name in os.environ if name.isupper()}
director.sendall(json.dumps({"pid": os.getpid(), "environ": where}).encode() + b"\n")
words = director.makefile()
count = 0
while True:
    order = words.readline().split()
    if not order:
        time.sleep(60)  # the test is over; somebody kills us
    elif order[0] == "exit":
        sys.exit(int(order[1]))
    elif order[0] == "beat":
        count += 1
        record = {"count": count, "pid": os.getpid(), "run": order[1], "step": count, "phase": "training"}
        record["why"] = " ".join(order[2:])
        with open(os.environ["HOLDFAST_HEARTBEAT"], "r+b") as file:
            file.write(json.dumps(record).encode().ljust(8192))
        director.sendall(b"done\n")
