"""A real Slurm of three nodes on this machine, from Debian's packages, for as long as a test session lasts.

Own configuration, own ports, own state folder: a Slurm that runs here already is never touched.
"""

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable
from pathlib import Path

COMMANDS = ("slurmctld", "slurmd", "munged", "sbatch", "scontrol", "scancel", "squeue", "srun")
NODES = ("n1", "n2", "n3")
CONTROLLER_PORT = 16817
FIRST_NODE_PORT = 16901

# partition_prio with REQUEUE is what makes the jobs of "low" give way to those of "normal". A grace time of
# 15 s stands for the minutes that real sites leave.
CONFIGURATION = """\
ClusterName=holdfast
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/filetxt
JobCompLoc={home}/log/completed.txt
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=5,bf_interval=5,batch_sched_delay=0
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobRequeue=1
ReturnToService=2
KillWait=5
MinJobAge=300
InactiveLimit=0
SlurmctldTimeout=30
SlurmdTimeout=30
MessageTimeout=10
StateSaveLocation={home}/state
SlurmdSpoolDir={home}/spool.%n
SlurmctldPidFile={home}/run/slurmctld.pid
SlurmdPidFile={home}/run/slurmd.%n.pid
SlurmctldLogFile={home}/log/slurmctld.log
SlurmdLogFile={home}/log/slurmd.%n.log
SlurmctldPort={controller_port}
SlurmdParameters=config_overrides
{nodes}
PartitionName=normal Nodes=n1,n2,n3 Default=YES MaxTime=INFINITE State=UP PriorityTier=10 OverSubscribe=NO
PartitionName=low Nodes=n1,n2,n3 MaxTime=INFINITE State=UP PriorityTier=1 PreemptMode=REQUEUE GraceTime=15
"""


def why_not() -> str | None:
    """The reason why no cluster can be started here, or None."""
    missing = [command for command in COMMANDS if shutil.which(command, path=_path()) is None]
    if missing:
        return f"needs {', '.join(missing)}: apt-get install --no-install-recommends slurm-wlm munge"
    return None if os.geteuid() == 0 else "needs root, to start munged and slurmd"


def _path() -> str:
    return os.environ.get("PATH", "") + ":/usr/sbin:/sbin"


class SlurmCluster:
    def __init__(self, home: Path) -> None:
        self.home = home
        self.configuration = home / "slurm.conf"
        self._started_munge = False
        # A job must not inherit a surrounding allocation, nor the settings of the pytest that runs it.
        self.environment = {
            name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "PYTEST_"))
        }
        self.environment |= {
            "SLURM_CONF": str(self.configuration),
            "SLURM_TIME_FORMAT": "%s",  # seconds since 1970
            "PATH": _path(),
        }

    def start(self) -> None:
        for folder in ("state", "log", "run", *(f"spool.{node}" for node in NODES)):
            (self.home / folder).mkdir(parents=True)
        host = socket.gethostname().partition(".")[0]
        nodes = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={FIRST_NODE_PORT + i}"
            " CPUs=2 RealMemory=4000 State=UNKNOWN"
            for i, node in enumerate(NODES)
        )
        self.configuration.write_text(
            CONFIGURATION.format(host=host, home=self.home, nodes=nodes, controller_port=CONTROLLER_PORT)
        )
        self._start_munge()
        self.run("slurmctld", "-f", str(self.configuration))
        for node in NODES:
            self.run("slurmd", "-N", node, "-f", str(self.configuration))
        self.wait_until(lambda: self.run("sinfo", "-h", "-t", "idle", "-o", "%D").strip() == "3", 60, "idle")

    def _start_munge(self) -> None:
        if self._call("munge", "-n").returncode == 0:
            return
        folder = Path("/run/munge")
        folder.mkdir(exist_ok=True)
        shutil.chown(folder, "munge", "munge")
        folder.chmod(0o755)
        self.run("runuser", "-u", "munge", "--", "/usr/sbin/munged", "--force")
        self._started_munge = True
        self.wait_until(lambda: self._call("munge", "-n").returncode == 0, 20, "munge")

    def stop(self) -> None:
        self._call("scancel", "--user=root", "--full")
        pids = [self.home / "run" / f"slurmd.{node}.pid" for node in NODES]
        for file in (*pids, self.home / "run" / "slurmctld.pid"):
            self._end(file)
        if self._started_munge:
            self._end(Path("/run/munge/munged.pid"))

    def _end(self, pid_file: Path) -> None:
        if not pid_file.exists():
            return
        pid = int(pid_file.read_text())
        subprocess.run(["kill", str(pid)], check=False, capture_output=True)
        self.wait_until(lambda: not Path(f"/proc/{pid}").exists(), 30, f"the end of {pid_file.name}")

    # ---- jobs

    def run(self, *command: str) -> str:
        done = self._call(*command)
        assert done.returncode == 0, f"{command}: {done.stderr or done.stdout}"
        return done.stdout

    def _call(self, *command: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=60, check=False
        )

    def submit(self, *arguments: str) -> str:
        """The job id."""
        return self.run("sbatch", "--parsable", *arguments).strip().partition(";")[0]

    def states(self, job: str) -> dict[str, str]:
        """Array task (or job) id -> state, of everything Slurm still knows of the job."""
        states = {}
        for line in self._call("scontrol", "--oneliner", "show", "job", job).stdout.splitlines():
            said = dict(word.partition("=")[::2] for word in line.split())
            states[said.get("ArrayTaskId") or said["JobId"]] = said["JobState"]
        return states

    def hurry(self) -> None:
        """Slurm lets a requeued job wait two minutes before it may begin again. A few seconds must remain: a
        node refuses a job that begins in the second in which it was ended."""
        for job in self._call("squeue", "--noheader", "--format=%A|%r|%S").stdout.splitlines():
            number, reason, start = job.split("|")
            if reason == "BeginTime" and start.isdecimal() and int(start) > time.time() + 10:
                self._call("scontrol", "update", f"JobId={number}", "StartTime=now+5seconds")

    def wait_until(self, is_so: Callable[[], bool], seconds: float, what: str) -> None:
        end = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < end, f"waited {seconds:.0f} s for {what}\n{self.last_words()}"
            time.sleep(0.3)

    def wait_for_end(self, job: str, seconds: float) -> dict[str, str]:
        def ended() -> bool:
            self.hurry()
            return not set(self.states(job).values()) - {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT"}

        self.wait_until(ended, seconds, f"the end of job {job}")
        return self.states(job)

    def last_words(self) -> str:
        log = self.home / "log" / "slurmctld.log"
        tail = "\n".join(log.read_text(errors="replace").splitlines()[-15:]) if log.exists() else ""
        return f"{self._call('squeue', '--all').stdout}\n{tail}"
