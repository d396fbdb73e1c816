"""A job of two ranks that is at work, a death in it, and what is seen of it then from outside."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from tests.clusters import NAMES, ROOT, Hosts, Slurm
from tests.failures.deaths import HANG_SECONDS, MPIS, SECONDS, START_SECONDS, Death
from tests.launcher.processes import wait_until

HOOK = Path(__file__).parent / "hook"
DAEMONS = ("prted", "orted", "hydra_pmi_proxy", "hydra_bstrap_proxy")
"""What an mpirun starts on hosts, to which ssh passes no variable by which it would be known."""
_START_SECONDS = 60
_MEMORY = Path("/sys/fs/cgroup/memory")
_MEMORY_2 = Path("/sys/fs/cgroup")
_RANK_BYTES = 192 << 20


@dataclass
class Outcome:
    """What came of one cell: ``problems`` is empty where all is as it must be."""

    problems: list[str]
    first_line: str = ""
    code: int | None = None
    seconds: float = 0.0
    errors: str = ""


@dataclass
class Launched:
    """A process that stands for the job on a host: the launcher or, with scripts, that host's run_all.sh."""

    host: str
    process: subprocess.Popen[str]
    errors: Path
    output: Path

    def said(self) -> list[str]:
        return self.errors.read_text(errors="replace").splitlines()


class Jobs:
    """Starts jobs on two hosts, one at a time, and kills in them.

    ``mpis``: the folders of other MPIs, by starter; ``seconds``: within which all is to be over;
    ``start``: after how many a cable is cut whose job is still to start.
    """

    def __init__(
        self,
        hosts: Hosts,
        folder: Path,
        slices: Path,
        mpis: Mapping[str, Path],
        slurm: Slurm | None,
        *,
        seconds: float = SECONDS,
        start: float = START_SECONDS,
    ) -> None:
        self.hosts, self.folder, self.slices, self.mpis, self.slurm = hosts, folder, slices, mpis, slurm
        self.seconds, self.start = seconds, start

    def missing(self, starter: str) -> str:
        """Why this machine cannot use a starter; "" where it can."""
        if starter in MPIS.values() and starter not in self.mpis:
            return "no such MPI is here"
        if starter == "slurm" and self.slurm is None:
            return "no Slurm is here"
        return ""

    def run(self, death: Death, starter: str, count: int, rank: int = 1) -> Outcome:
        """One cell."""
        cell = Cell(self, death, starter, count, rank)
        try:
            return cell.run()
        finally:
            cell.clean()


class Cell:
    def __init__(self, jobs: Jobs, death: Death, starter: str, count: int, rank: int) -> None:
        self.jobs, self.death, self.starter, self.count, self.rank = jobs, death, starter, count, rank
        self.hosts = jobs.hosts
        self.folder = jobs.folder / f"cell-{uuid.uuid4().hex[:8]}"
        self.folder.mkdir()
        self.victim = NAMES[1] if count == 2 and rank == 1 else NAMES[0]
        self.launched: list[Launched] = []
        self.began = 0.0
        self.before = {host: self.shared_memory(host) for host in NAMES}
        self.group: Path | None = None
        self.disk = self.folder / "disk"
        self.closing = contextlib.ExitStack()

    # Starting.

    def start(self) -> None:
        words = [
            "run",
            self.jobs.slices,
            "--repeat",
            10**9,
            "--timeout",
            HANG_SECONDS if self.is_met_late else 60,
        ]
        places = f"{NAMES[0]}:1,{NAMES[1]}:1"
        before: list[object] = []
        own = ["--hang-timeout", HANG_SECONDS, "--env", "FAILURES_FOLDER", "--env", "FAILURES_NEVER"]
        if self.starter == "scripts":
            self.start_scripts(words, places)
            return
        name = self.starter.partition(" ")[0]
        words += ["--launcher", name, *own]
        if name == "slurm":
            before = ["salloc", "--quiet", f"--nodes={self.count}", "--ntasks=2"]
        elif self.count == 2:
            words += ["--hosts", places]
        else:
            words += ["--ranks", 2]
        if self.death.how == "port":
            words += ["--collectives", "gloo"]
        self.launch(NAMES[0], [*before, sys.executable, "-m", "launcher.cli", *words])

    def start_scripts(self, words: list[object], places: str) -> None:
        job = self.folder / "job"
        hosts = ["--hosts", places] if self.count == 2 else ["--ranks", 2]
        command = [
            sys.executable,
            "-m",
            "launcher.cli",
            "scripts",
            *words[1:],
            *hosts,
            "--hang-timeout",
            HANG_SECONDS,
            "--output",
            job,
        ]
        if self.death.how == "port":
            command += ["--collectives", "gloo"]
        subprocess.run(
            list(map(str, command)), env=self.environment(), check=True, capture_output=True, cwd=self.folder
        )
        if self.death.how == "never" and self.count == 2:
            self.launch(NAMES[0], [job / "run_all.sh", NAMES[0]])
            return
        for name in NAMES[: self.count]:
            self.launch(name, [job / "run_all.sh", *([name] if self.count == 2 else [])])

    def environment(self) -> dict[str, str]:
        kept = {
            k: v for k, v in os.environ.items() if not k.startswith(("OMPI_", "PMI", "SLURM_", "SHARDRUN_"))
        }
        return {**kept, "PYTHONPATH": f"{ROOT}{os.pathsep}{HOOK}"}

    def launch(self, host: str, words: list[object]) -> None:
        number = len(self.launched)
        errors, output = self.folder / f"errors_{number}", self.folder / f"output_{number}"
        told = {
            "FAILURES_FOLDER": str(self.folder),
            "FAILURES_NEVER": str(self.rank) if self.death.how == "never" else "",
            "SHARDRUN_CACHE": str(self.jobs.folder / "cache"),
            **(self.jobs.slurm.environment if self.jobs.slurm is not None else {}),
        }
        if self.starter == "scripts" and self.count == 2:
            told["SHARDRUN_JOB"] = "0123456789abcdef" * 2
        if self.port is not None:
            told["MASTER_PORT"] = str(self.port)
        # What started this one in the background, or by nohup, has them ignored: nobody could die of them.
        words = ["env", "--default-signal=INT,HUP", *words]
        path = os.pathsep.join(
            [str(self.hosts.bin), str(Path(sys.executable).parent), os.environ["PATH"], "/usr/sbin"]
        )
        if mpi := self.jobs.mpis.get(self.starter):
            path = f"{mpi}/bin{os.pathsep}{path}"
        told["PATH"] = path
        self.began = self.began or time.monotonic()  # scripts have been written before
        with errors.open("w") as err, output.open("w") as out:
            process = subprocess.Popen(
                self.hosts.command(host, words, **told), cwd=self.folder, env=self.environment(),
                stdin=subprocess.DEVNULL, stdout=out, stderr=err, start_new_session=True, text=True,
            )  # fmt: skip
        self.launched.append(Launched(host, process, errors, output))

    # Watching.

    @property
    def is_met_late(self) -> bool:
        """Whether only the job's time-out says that a rank does not come: scripts have nobody above them."""
        at_start = self.death.victim == "start" and self.starter == "scripts"
        return at_start or self.death.how == "never"

    @property
    def port(self) -> int | None:
        return 29777 if self.death.how == "port" else None

    def words_of(self, host: str) -> Iterator[tuple[int, list[str]]]:
        with contextlib.suppress(OSError, IndexError):
            for pid in self.hosts.processes(host):
                try:
                    words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace").split("\0")
                except OSError:
                    continue
                yield pid, words[:-1]

    def left(self) -> dict[str, list[str]]:
        """What runs of the job on the hosts, and the files that it has left in their shared memory."""
        found = {}
        for host in NAMES:
            mine = [
                f"{pid} {' '.join(words)[:160]}"
                for pid, words in self.words_of(host)
                if self.is_of_a_job(pid, words)
            ]
            mine += sorted(self.shared_memory(host) - self.before[host])
            if mine:
                found[host] = mine
        return found

    def shared_memory(self, host: str) -> set[str]:
        """The files in a host's shared memory."""
        with contextlib.suppress(OSError, IndexError):  # a host that was killed
            folder = Path(f"/proc/{self.hosts.process(host)}/root/dev/shm")
            return {f"/dev/shm/{path.name}" for path in folder.iterdir()}
        return set()

    def is_of_a_job(self, pid: int, words: list[str]) -> bool:
        daemon = bool(words) and Path(words[0]).name in DAEMONS
        return daemon or any(self.is_ours(word) for word in words) or self.is_marked(pid, words)

    def is_ours(self, word: str) -> bool:
        return word in {"ranks.boot", "launcher.cli", "launcher.starters.agent"} or word.endswith(
            "run_all.sh"
        )

    def is_marked(self, pid: int, words: list[str]) -> bool:
        if not words or words[0].split(":")[0] in {"sshd", "slurmstepd"}:
            return False
        try:
            return f"FAILURES_FOLDER={self.folder}".encode() in Path(f"/proc/{pid}/environ").read_bytes()
        except OSError:
            return False

    def launcher(self) -> tuple[int, str]:
        """The launcher's process on this machine."""
        for pid, words in self.words_of(NAMES[0]):
            if self.starter == "scripts":
                if any(word.endswith("run_all.sh") for word in words) and words[0].endswith("bash"):
                    return pid, NAMES[0]
            elif words[:1] == [sys.executable] and "launcher.cli" in words:
                return pid, NAMES[0]
        raise RuntimeError("no launcher runs")

    def at_work(self) -> bool:
        busy = all((self.folder / f"busy_{rank}").exists() for rank in range(2))
        return busy or any(one.process.poll() is not None for one in self.launched)

    # Dying.

    def run(self) -> Outcome:
        problems: list[str] = []
        if self.death.how == "memory" and not self.make_group():
            return Outcome(["left out: no cgroup of memory can be made here"])
        if self.death.how == "port":
            self.take_port()
        if self.death.how == "disk":
            self.make_full_disk()
        self.start()
        began = self.began
        if self.death.victim == "start":
            time.sleep(self.jobs.start)
            began = time.monotonic()
            self.cut_cable(self.victim)
        elif self.death.victim != "before":
            if not wait_until(self.at_work, _START_SECONDS) or not (self.folder / "busy_1").exists():
                return Outcome(["did not start"], errors=self.errors())
            time.sleep(0.3)
            began = time.monotonic()
            self.kill()
            if self.death.lives:
                return self.lived()
        limit = self.jobs.seconds + (HANG_SECONDS if self.death.hangs or self.is_met_late else 0)
        if self.death.how == "never" or self.death.victim == "start":
            limit += _START_SECONDS / 4
        alive = [
            one for one in self.launched if not (self.death.victim == "host" and one.host == self.victim)
        ]
        over = wait_until(
            lambda: all(one.process.poll() is not None for one in alive) and not self.left(), limit
        )
        took = time.monotonic() - began
        if not over:
            running = [f"the launcher on {one.host}" for one in alive if one.process.poll() is None]
            problems.append(f"after {took:.0f} s there are {'; '.join([*running, str(self.left())])}")
        self.judge(problems, alive, over)
        own = next((one for one in alive if one.host == self.victim), alive[0])
        said = own.said()
        return Outcome(problems, said[0] if said else "", own.process.poll(), took, self.errors())

    def judge(self, problems: list[str], alive: list[Launched], over: bool) -> None:
        for one in alive:
            said, code = one.said(), one.process.poll()
            place = NAMES[0] if self.death.victim == "launcher" else self.victim
            # A port that is taken is known to every rank: nobody is at it, or somebody else.
            own = one.host == place or len(alive) == 1 or self.death.how == "port"
            codes = self.death.own_script_codes if self.starter == "scripts" and own else self.death.codes
            if self.starter == "slurm" and self.death.how == "SIGKILL" and self.death.victim == "launcher":
                codes = (code or 0,)  # salloc's own, which says nothing of what ran in it
            if over and code not in codes and (own or not code):
                problems.append(f"{one.host}: exit code {code}, not {' or '.join(map(str, codes))}")
            if not self.death.says or (self.death.victim == "launcher" and one.host != NAMES[0]):
                continue
            pattern = self.death.says.format(rank=self.rank, host=self.victim)
            if not own:  # of another host it can be known only that the rank is gone
                pattern = rf".*\b[Rr]ank {self.rank}\b"
            if self.death.victim in {"host", "cable", "start"} and self.starter == "scripts":
                # Nobody but the other rank is left to say anything, and it knows its peers by number.
                other = own and self.death.victim != "host"  # the victim's side misses the other rank
                gone = 1 - self.rank if other else self.rank
                pattern = rf".*\b([Rr]ank {gone}\b|host {self.victim}\b)"
            if not said or not re.match(pattern, said[0]):
                problems.append(f"{one.host}: the first line is {said[0] if said else ''!r}")

    def lived(self) -> Outcome:
        time.sleep(8)
        running = all(one.process.poll() is None for one in self.launched)
        problems = [] if running else [f"the job ended: {self.errors()}"]
        before = self.counts()
        if running and not wait_until(
            lambda: all(now > then for now, then in zip(self.counts(), before, strict=True)), 15
        ):
            problems.append("the ranks do not go on")
        return Outcome(problems, errors=self.errors())

    def counts(self) -> list[int]:
        """The processor time of the job's ranks."""
        found = []
        for host in NAMES:
            for pid, words in self.words_of(host):
                if words and (words[0].startswith("shardrun rank ") or "external" in words):
                    with contextlib.suppress(OSError):
                        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
                        found.append(int(fields[11]) + int(fields[12]))
        return found

    def kill(self) -> None:
        match self.death.victim:
            case "rank":
                order = {"rank": self.rank, "how": self.death.how, "where": str(self.group or self.disk)}
                (self.folder / "die.new").write_text(json.dumps(order))
                (self.folder / "die.new").rename(self.folder / "die")
            case "launcher":
                pid, _ = self.launcher()
                if self.death.cut:
                    self.cut_cable(NAMES[1])
                os.kill(pid, signal.Signals[self.death.how])
            case "host":
                self.hosts.kill(self.victim)
                self.closing.callback(self.revive)
            case "cable":
                if self.death.how == "cut":
                    self.cut_cable(self.victim)
                else:
                    self.hosts.link(self.victim, "down")
                    time.sleep(14 if self.death.how == "restored" else 2)
                    self.hosts.link(self.victim, "up")

    def cut_cable(self, host: str) -> None:
        self.hosts.link(host, "down")
        self.closing.callback(self.hosts.link, host, "up")

    def revive(self) -> None:
        self.hosts.revive(self.victim)
        if self.jobs.slurm is not None:
            self.jobs.slurm.serve(self.victim)

    def make_group(self) -> bool:
        parent = _MEMORY if _MEMORY.is_dir() else _MEMORY_2
        self.group = parent / f"shardrun-failures-{os.getpid()}"
        try:
            self.group.mkdir(exist_ok=True)
            for name, value in (
                ("memory.limit_in_bytes", _RANK_BYTES),
                ("memory.max", _RANK_BYTES),
                ("memory.swap.max", 0),
            ):
                if (self.group / name).exists():
                    (self.group / name).write_text(str(value))
        except OSError:
            return False
        return (self.group / "cgroup.procs").exists()

    def make_full_disk(self) -> None:
        """A file system of the victim's host that has no room."""
        self.disk.mkdir()
        for words in (
            ["mount", "-t", "tmpfs", "-o", "size=64k", "tmpfs", self.disk],
            ["dd", "if=/dev/zero", f"of={self.disk}/all", "bs=64k", "count=1", "status=none"],
        ):
            subprocess.run(self.hosts.command(self.victim, words), check=True)
        self.closing.callback(
            subprocess.run, self.hosts.command(self.victim, ["umount", "--lazy", self.disk]), check=True
        )

    def take_port(self) -> None:
        # In the network of the first host, where the ranks would meet.
        script = f"import socket,time; s=socket.create_server(('', {self.port})); time.sleep(10**6)"
        process = subprocess.Popen(self.hosts.command(NAMES[0], [sys.executable, "-c", script]))
        self.closing.callback(process.wait)
        self.closing.callback(self.kill_command, script)
        wait_until(lambda: self.answers(self.port), 10)

    def answers(self, port: int | None) -> bool:
        asked = [sys.executable, "-c", f"import socket; socket.create_connection(('127.0.0.1', {port}), 1)"]
        return (
            subprocess.run(self.hosts.command(NAMES[0], asked), capture_output=True, check=False).returncode
            == 0
        )

    def kill_command(self, script: str) -> None:
        for pid, words in self.words_of(NAMES[0]):
            if script in words:
                os.kill(pid, signal.SIGKILL)

    def errors(self) -> str:
        return "\n".join(
            f"--- {one.host} ({one.process.poll()})\n{one.errors.read_text(errors='replace')}"
            for one in self.launched
        )

    def clean(self) -> None:
        """Kills what is left, so that the next cell begins with nothing."""
        for host in NAMES:
            for pid, words in self.words_of(host):
                if self.is_of_a_job(pid, words):
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
        for one in self.launched:
            if one.process.poll() is None:
                one.process.kill()
            one.process.wait()
        self.closing.close()
        if self.group is not None:
            wait_until(lambda: not (self.group / "cgroup.procs").read_text(), 5)
            with contextlib.suppress(OSError):
                self.group.rmdir()
        if self.jobs.slurm is not None:
            # Of a killed salloc Slurm would keep the nodes.
            with contextlib.suppress(RuntimeError):
                self.jobs.slurm.cancel()
                self.jobs.slurm.idle()
        shutil.rmtree(self.folder, ignore_errors=True)
