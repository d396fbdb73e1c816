"""Above every launcher: started ranks are watched, the first cause is found, and everything is ended.

A `Job` is the ranks of one start. Ranks and the launching program tell of their ends in several ways at
once (an error message, a closed socket, an exit status, mpirun's report); the job waits a moment for all of
them, decides which was first, tells the caller, and ends the rest.
"""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, cast

from launcher.errors import LaunchError, RankFailedError
from launcher.group import halted
from launcher.group.answers import CLOSED, Answers, NoAnswers
from launcher.group.control import Listener, Peer, kill_peers
from launcher.group.late import NOTICE_SECONDS, late, say_who_is_awaited
from launcher.group.logs import opened
from launcher.group.output import Output
from launcher.job.places.hosts import over_ssh, remote_hosts
from launcher.starters import cause
from launcher.starters.base import SOME_RANK, Ended, Handle, Launcher
from launcher.starters.findings import Findings
from ranks.common import heap
from ranks.common.settings import CONTROL, IDENTITY, JOB
from ranks.errors import SILENT
from ranks.talk import wire
from ranks.talk.title import short_name

if TYPE_CHECKING:
    from launcher.common.logs import Logs
    from launcher.job.rank_table import RankTable
    from ranks.talk.reports import Ready
    from sharding.common.arrays import Array

SETTLE_SECONDS = 0.05  # what was sent before the first sign of trouble has come by then
GATHER_SECONDS = 0.45  # a rank's own reason may take this long to come
ECHO_SECONDS = 1.2  # and so may the end of a rank that others miss, who stay a little longer
LAST_LINES_SECONDS = 2.0
STOP_SECONDS = 3.0
TERMINATE_SECONDS = 1.0
KILL_SECONDS = 2.0  # for all that comes after it; what ranks have left may then take 3.2: all ends within 10
LAST_WORDS_SECONDS = 7.0  # by then a connection that brings nothing more is known to be lost


class Job:
    """The ranks of one start, from the first process to the last."""

    def __init__(
        self,
        launcher: Launcher,
        program: Sequence[str],
        world_size: int,
        *,
        environment: Mapping[str, str],
        table: RankTable | None = None,
        patience: float | None = None,
        hang: float | None = None,
        logs: Logs | None = None,
    ) -> None:
        """Starts the ranks; raises `LaunchError`. ``patience``, ``hang``: what `halted.Watch` is given.

        ``changed`` guards and announces everything else; ``ready``: what serving ranks say first; ``answers``
        is told the rest.
        """
        self.patience, self.hang, self.world_size = patience, hang, world_size
        self._owner, self._is_script = os.getpid(), program[0] == "exec"
        self.failure: RankFailedError | LaunchError | None = None
        self.changed = threading.Condition()
        self._launcher, self.launcher_name = launcher, launcher.name
        self.ready: dict[int, Ready] = {}
        self.answers: Answers = NoAnswers()
        self._peers: dict[int, Peer] = {}
        self._hosts = {d.rank: d.host for d in table.devices} if table is not None else {}
        self._found = Findings(world_size, self._peers, self._hosts)
        self._all_ended = self._started = self._settled = self._closing = self._hung_up = False
        self._noticed, self.seen = False, halted.Seen()
        self._why = halted.Inquest(self.changed, self.seen)
        self._ending, self._suspicious = threading.Lock(), threading.Event()
        launcher.check(table)
        heap.spare_addresses()
        self._remote = remote_hosts(table)
        self._far = over_ssh(self._remote) if launcher.over_ssh else []
        self._listener = Listener(
            world_size, self._remote, self._hello, self._message, self._lost, on_shortage=self._shortage,
            on_ended=self._ended,
        )  # fmt: skip
        self.name = short_name(self._listener.secret)
        ours = {JOB.name: self._listener.secret, CONTROL.name: self._listener.address}
        if launcher.identity:
            ours[IDENTITY.name] = ",".join(launcher.identity)
        try:
            shown, files = opened(logs, self, program, environment, table)
            self._handle: Handle = launcher.start(program, world_size, {**environment, **ours}, table)
        except BaseException:
            self._listener.close()
            raise
        self._started = True
        self._settle()
        try:
            self.output = self._found.said = Output(self._handle, self._named, shown, files)
            for target in (self._wait, self._judge):
                threading.Thread(target=target, name=f"shardrun {target.__name__}", daemon=True).start()
        except (RuntimeError, MemoryError, OSError) as error:
            self._listener.close()
            self._handle.kill()
            raise cause.shortage(error) from None

    # What the ranks and the launching program tell; each in a thread of its own.

    def _hello(self, peer: Peer) -> None:
        with self.changed:
            self._peers[peer.rank] = peer
            self.changed.notify_all()
        self._settle()

    def _settle(self) -> None:
        """Once, when all ranks are there: nothing is to be open to other hosts where none takes part."""
        with self.changed:
            if self._remote or self._settled or not self._started or len(self._peers) < self.world_size:
                return
            self._settled = True
        self._handle.settle([peer.pid for peer in self._peers.values()])

    def _message(self, peer: Peer, message: wire.Message) -> None:
        late: Sequence[Peer] = ()
        with self.changed:
            self._why.wait()
            if message.kind is wire.Kind.ERROR:
                self._trouble(peer.rank).error = message.fields
                late = self._why.begin(self._peers, self._found.troubles, self._found.done, message.fields)
            elif message.kind is wire.Kind.BYE:
                code = message.fields.get("code")
                if isinstance(code, int) and code:
                    self._trouble(peer.rank).ended = Ended(peer.rank, code, cause.ITSELF)
                else:
                    self._found.done.add(peer.rank)
            elif message.kind is wire.Kind.READY:
                self.ready[peer.rank] = cast("Ready", message.fields)
                peer.ready = True
            elif (unlike := self.answers.take(peer.rank, message)) is not None:
                self._trouble(unlike[0]).error = cause.unlike(unlike[1])
            self.changed.notify_all()
        self._why.ask(late)  # now: mpirun soon ends them
        self.answers.took()

    def _lost(self, peer: Peer) -> None:
        with self.changed:
            self._found.gone.add(peer.rank)
            if peer.rank not in self._found.done and not self._hung_up:
                trouble = self._trouble(peer.rank)
                if peer.cut:
                    trouble.end(Ended(peer.rank, None, SILENT))
                    self._handle.cut_off(peer.rank)
            self.changed.notify_all()

    def _shortage(self, error: Exception) -> None:
        self.fail(error if isinstance(error, LaunchError) else cause.shortage(error))
        self._suspicious.set()

    def _ended(self, ended: Ended) -> None:
        with self.changed:
            if ended.rank is None:
                self._found.launched = ended
                if ended.code or not self._found.finished:
                    self._suspicious.set()
            elif ended.rank == SOME_RANK:
                self._found.some = self._found.some or ended
            elif ended.code or not self._said_done(ended.rank):
                self._trouble(ended.rank).end(ended)
            self.changed.notify_all()

    def _named(self, ended: Ended) -> None:
        """The launching program says how the first rank ended, or what it had started for one."""
        with self.changed:
            if ended.process is not None:
                place, number = ended.process
                known = (
                    peer.rank for peer in self._peers.values()
                    if peer.above.pid == number and place in {peer.host, self._hosts.get(peer.rank)}
                )  # fmt: skip
                if (rank := next(known, None)) is None:
                    return
                ended = Ended(rank, ended.code, heard=True)
            else:
                self._found.name(ended.rank)
        self._ended(ended)

    def _said_done(self, rank: int) -> bool:
        """Whether a rank said that it was done before it ended. News of its end, which come another way, may
        overtake that; the end of its connection comes after."""
        if rank in self._peers:
            self.changed.wait_for(lambda: rank in self._found.done | self._found.gone, LAST_WORDS_SECONDS)
        return rank in self._found.done

    def _trouble(self, rank: int) -> cause.Trouble:
        """The record of a rank in trouble; has the first cause looked for. Call it with the lock held."""
        self._suspicious.set()
        return self._found.troubles.setdefault(rank, cause.Trouble(rank, self.host(rank)))

    def _wait(self) -> None:
        while (ended := self._handle.wait()) is not None:
            self._ended(ended)
        with self.changed:
            self._all_ended = True
            self.changed.notify_all()

    # The judgement.

    def _judge(self) -> None:
        self._suspicious.wait()
        with self.changed:
            if self._closing:
                return
            until = self.changed.wait_for
            until(lambda: self._closing, SETTLE_SECONDS)
            until(self._certain, GATHER_SECONDS)
            # Others may notice first that a rank is gone, or that the network to it is cut.
            most = LAST_WORDS_SECONDS if self._remote else ECHO_SECONDS
            until(lambda: self._certain() or not self._found.only_echoes(), most)
            self._found.look_for_another_program(self.name)
            if not self._certain() and self._found.silent():
                # A rank is gone and only mpirun can tell why; Intel's does so when the others have ended too.
                reports = self._handle.report_seconds
                if self._remote:
                    until(self._certain, reports)
                self._hung_up = True
                self._listener.close()
                self.changed.wait_for(lambda: self._certain() or not self._found.silent(), reports)
            until(lambda: self._closing or not self._why.open)
            if self._closing:
                return
        # What the launching program has written before its end says most.
        self.output.join(SETTLE_SECONDS if self._found.launched is None else LAST_LINES_SECONDS)
        with self.changed:
            self.fail(
                self._found.verdict(
                    self._launcher.name, far=self._far, short=self._handle.short, trace=self._is_script,
                    started=len(self._peers) == self.world_size, more=self._why.said,
                )
            )  # fmt: skip
        self._end()

    def _certain(self) -> bool:
        return self._closing or self._found.certain(remote=bool(self._remote))

    def fail(self, error: RankFailedError | LaunchError) -> None:
        """Makes ``error`` what every waiting and later call raises, unless there is one; ends nothing yet."""
        with self.changed:
            if self.failure is None and not self._why.deciding:
                self.failure = error
                self.answers.lost(self, error)
            self.changed.notify_all()

    def abort(self, error: RankFailedError | LaunchError) -> None:
        """`fail`, and ends every rank."""
        self.fail(error)
        self._end()

    def host(self, rank: int) -> str:
        """The host of a rank, as it said itself or the rank table says."""
        peer = self._peers.get(rank)
        return peer.host if peer is not None else self._hosts.get(rank, os.uname().nodename)

    def pid(self, rank: int) -> int:
        """The process id of a rank that said hello, on its host."""
        return self._peers[rank].pid

    # What the caller does.

    def wait_for(self, condition: Callable[[], bool], timeout: float | None, what: str) -> None:
        """Blocks until ``condition`` holds (checked under ``changed``); raises the job's failure. ``what``
        completes "... within N s" for `LaunchError` when ``timeout`` seconds pass."""
        self.check_owner()
        watch = halted.Watch(self.patience, self.hang, self.seen)
        with self.changed:
            found = halted.wait_aloud(
                self.changed.wait_for,
                lambda: self.failure is not None or condition(),
                timeout,
                lambda waited: self._look(waited, watch),
            )
            if found is False:
                raise LaunchError(self._late(what, timeout or 0.0))
        self._decide(found)
        if self.failure is not None:
            raise cause.copied(self.failure)  # else the tracebacks of several threads would mix

    def look(self, watch: halted.Watch) -> None:
        """One look for stopped ranks; ends all where one has been stopped for too long."""
        self._decide(self._why.look(watch, self._peers.values(), self.failure))

    def _decide(self, hung: halted.Hung | bool | None) -> None:
        if isinstance(hung, halted.Hung):
            self._why.decide(hung, self.fail)
            self._end()

    def _look(self, waited: float, watch: halted.Watch) -> halted.Hung | None:
        """Says, once, for which hosts and stopped ranks it waits; what is to end the wait."""
        missing = {self.host(rank) for rank in range(self.world_size) if rank not in self._peers}
        if missing and self._remote and not self._noticed and waited >= NOTICE_SECONDS:
            self._noticed = True
            say_who_is_awaited(len(self._peers), self.world_size, self._launcher, missing)
        here = [peer.pid for peer in self._peers.values() if peer.host == os.uname().nodename]
        if lost := self._handle.lost_host(here, missing):
            from launcher.starters.reach import words

            self._shortage(LaunchError(words.lost(self._launcher.name, lost, ssh=self._launcher.over_ssh)))
        return self._why.look(watch, self._peers.values(), self.failure)

    def _late(self, what: str, timeout: float) -> str:
        missing = [rank for rank in range(self.world_size) if rank not in self._peers]
        said, more = self.output.tail(None) if missing else [], self.seen.in_sentences(self._peers.values())
        return late(what, timeout, missing, self._launcher.name, self._far, said, more)

    def check_owner(self) -> None:
        """Raises `LaunchError` in a child that the starting process forked: it has neither the threads that
        listen to the ranks nor the sockets."""
        if os.getpid() != self._owner:
            raise LaunchError(
                f"These ranks were started by process {self._owner}, of which this one is a forked child "
                f"(process {os.getpid()}): use them there, or start a group here."
            )

    def wait(self) -> None:
        """Blocks until every rank has ended well; raises `RankFailedError` or `LaunchError` otherwise."""
        self.wait_for(
            lambda: self._found.finished and (self._all_ended or len(self._found.gone) == self.world_size),
            None,
            "",
        )
        self._handle.end_children([peer.pid for peer in self._peers.values() if peer.process is not None])
        self.wait_for(lambda: self._all_ended, None, "")

    def send(
        self,
        rank: int,
        kind: wire.Kind,
        fields: Mapping[str, object],
        tensors: dict[str, Array] | None = None,
        slot: int = 0,
    ) -> None:
        """As `Peer.send`. A rank that is gone is not an error here: its end is the job's failure."""
        with contextlib.suppress(OSError):
            self._peers[rank].send(kind, fields, tensors, slot)

    def send_frame(self, rank: int, frame: bytes) -> None:
        """The same of a message that was encoded before."""
        with contextlib.suppress(OSError):
            self._peers[rank].send_frame(frame)

    def close(self) -> None:
        """Ends every rank, politely if all is well, and returns when no process of this job is left.

        In a forked child it does nothing: the ranks are the parent's.
        """
        if os.getpid() != self._owner:
            return
        with self.changed:
            busy, run = self.answers.busy, self.answers.running
            polite = self.failure is None and not (busy or self._closing or self._all_ended)
            self._closing = True
            # Other threads wait for what will not come, or are about to.
            self.fail(LaunchError(CLOSED))
            self._suspicious.set()
            self.changed.notify_all()
        if polite and len(self._peers) == self.world_size:
            if run is not None:
                self.send(0, wire.Kind.LIMIT, {"request": run, "most": 0})
            for rank in range(self.world_size):
                self.send(rank, wire.Kind.STOP, {})
            self._until_ended(STOP_SECONDS)
        self._end()
        self._why.wait()  # who waits for an answer is told of the rank that hangs

    def _end(self) -> None:
        """Ends whatever is left: closed sockets first, SIGTERM, then SIGKILL, also to ranks that mpirun
        left behind."""
        with self._ending:
            self._listener.close()
            if not self._until_ended(0):
                self._handle.terminate()
                if not self._until_ended(TERMINATE_SECONDS):
                    self._handle.kill()
            with self.changed:
                peers = [peer for peer in self._peers.values() if peer.process is not None]
            by = time.monotonic() + KILL_SECONDS
            kill_peers(peers, KILL_SECONDS)
            self._until_ended(by - time.monotonic())
            self.output.join(max(0.0, min(TERMINATE_SECONDS, by - time.monotonic())))
            self._handle.close()

    def _until_ended(self, timeout: float) -> bool:
        with self.changed:
            return self.changed.wait_for(lambda: self._all_ended, timeout)
