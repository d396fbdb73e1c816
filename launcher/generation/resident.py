"""A decoder whose state stays on the ranks: a step sends tokens there, and logits come back."""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Several
from typing import TYPE_CHECKING

import numpy as np

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.decoder import Arrays, Ids, Logits, Sequence
from launcher.generation.runs import TokenRun, TokenRunHost
from launcher.generation.scoring import Wants, alike, asked, checked, one_by_one, probing, whole
from launcher.generation.stateful import Program, SaidOfDecoder, StatefulDecoder, StatefulSequence
from ranks.state.rows import Batch
from ranks.state.session import Session
from ranks.tokens.scores import Scores
from ranks.tokens.wanted import Ask
from sharding.slices.state import LOGITS_FROM

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from ranks.state.session import Host
    from ranks.talk.reports import RunReport
    from ranks.tokens.chooser import Chooser
    from sharding.common.arrays import Array

Member = tuple[int, int, int]


def decoder_of(
    first: Program,
    later: Program | None = None,
    encoder: Program | None = None,
    **said: Unpack[SaidOfDecoder],
) -> StatefulDecoder:
    """The decoder over these graphs, whose state stays on the ranks where they can keep it. The arguments are
    those of `StatefulDecoder`."""
    if (later or first).group is None:
        return StatefulDecoder(first, later, encoder, **said)
    return ResidentDecoder(first, later, encoder, **said)


class ResidentDecoder(StatefulDecoder):
    """As `StatefulDecoder`, over ranks that keep the state of the graph of later steps.

    Sequences that are stepped together (`step_many`) lie in one batch there. Threads take turns.
    """

    def __init__(self, first: Program, *others: Program | None, **said: Unpack[SaidOfDecoder]) -> None:
        super().__init__(first, *others, **said)
        assert self.later.group is not None
        self._group = group = self.later.group
        self.host: Host = group.session_host
        self.cuts_logits = any(spec.name == LOGITS_FROM for spec in group.optional_inputs)
        self.turn = threading.RLock()
        """Whoever moves sequences into the batch, or out of it, holds this."""
        self._batch: Batch | None = None
        self._rows: list[ResidentSequence] = []
        self._proved = self._apart = False

    @property
    def runs(self) -> TokenRunHost | None:
        """The host, where its ranks can go on by themselves."""
        return self.host if isinstance(self.host, TokenRunHost) else None

    @property
    def batches(self) -> bool:
        """Whether sequences of different lengths can be read on in one batch, as far as is known."""
        return not self._apart and self.encoder is None and Batch.possible(self.host.known)

    def sequence(self, inputs: Arrays | None = None) -> Sequence:
        """A new sequence; the encoder runs here."""
        if self._group.session_host is not self.host:  # of ranks that came for lost ones
            with self.turn:
                if (host := self._group.session_host) is not self.host:  # still: no other thread's are there
                    self.host, self._batch, self._rows = host, None, []
        given, state = ({}, {}) if self.encoder is None else self._encode(inputs or {})
        return ResidentSequence(self, given, state)

    def step_many(self, sequences: Several[Sequence], ids: Ids) -> list[Logits]:
        """All in one batch, where the model can tell their lengths apart."""
        return [whole([row]) for row in self.scores_many(sequences, ids, [None] * len(ids))]

    def scores_many(self, sequences: Several[Sequence], ids: Ids, wants: Wants) -> list[Scores]:
        """As `launcher.generation.scoring.ScoresMany.scores_many`."""
        mine = [one for one in sequences if isinstance(one, ResidentSequence) and one.joins]
        if len(mine) < len(sequences) or len(mine) < 2:
            return one_by_one(sequences, ids, wants)
        with self.turn:
            if not self._proved and len({one.length for one in mine}) > 1:
                return self._prove(mine, ids, wants)
            found = self._batch_step(mine, ids, wants)
            for one, token in zip(mine, ids.tolist(), strict=True):
                one.note(token)
        return found

    def read(self, results: Mapping[str, Array], ask: Ask | None) -> list[Scores]:
        """The logits of each row by what a step gave. Raises as `checked`."""
        shown = None if ask is None else ask.read(results)
        if shown is not None:
            return shown
        return [Scores(row) for row in checked(results[self.logits], self.vocabulary)]

    def _batch_step(self, mine: list[ResidentSequence], ids: Ids, wants: Wants) -> list[Scores]:
        ask = asked(self.logits, self.vocabulary, wants)
        return self.read(self._gather(mine).step(np.asarray(ids), ask), ask)

    def _prove(self, mine: list[ResidentSequence], ids: Ids, wants: Wants) -> list[Scores]:
        """The first step of sequences of different lengths in one batch: are they what each is alone?

        A graph may work out positions in a way that holds for sequences of one length only. Then, or where
        it takes no such batch at all, this decoder makes no batch from here on.
        """
        wants = probing(wants, self.vocabulary)
        alone = one_by_one(twins := [one.fork() for one in mine], ids, wants)
        try:
            same = alike(self._batch_step(mine, ids, wants), alone)
        except (RankFailedError, LaunchError):
            raise
        except ShardrunError:
            same = False
        if same:
            self._proved = True
            for one, token in zip(mine, ids.tolist(), strict=True):
                one.note(token)
        else:
            self._apart = True
            for one, twin in zip(mine, twins, strict=True):
                one.become(twin)
        for twin in twins:
            twin.close()
        self.forget()
        return alone

    def _gather(self, wanted: list[ResidentSequence]) -> Batch:
        """Makes these sequences, and no others, the rows of the batch, in order."""
        batch = self._batch
        if batch is None:
            batch = self._batch = Batch(self.host)
        if len(self._rows) == len(wanted) and all(
            one is other and one.is_row for one, other in zip(self._rows, wanted, strict=True)
        ):
            return batch
        kept = {id(one) for one in wanted}
        for one in list(self._rows):
            if id(one) not in kept:
                one.leave()
        batch.regroup([one.member() for one in wanted])
        for row, one in enumerate(wanted):
            one.enter(batch, row)
        self._rows = list(wanted)
        return batch

    def forget(self) -> None:
        """A sequence has left the batch. Its row goes with the next change of the batch, or with the last
        row."""
        if self._batch is not None and not any(one.is_row for one in self._rows):
            self._batch.close()
            self._rows = []


class ResidentSequence(StatefulSequence):
    """A sequence whose state is on the ranks: in a session of its own, or in a row of the batch."""

    _decoder: ResidentDecoder

    def __init__(
        self,
        decoder: ResidentDecoder,
        given: dict[str, Array],
        state: dict[str, Array],
        session: Session | None = None,
    ) -> None:
        super().__init__(decoder, given, state)
        self._session, self._host = session, decoder.host
        self._batch: Batch | None = None
        self._row = self.expected = 0
        self._run_of: TokenRun | None = None
        self.closed = False

    @property
    def is_row(self) -> bool:
        """Whether the state lies in the batch."""
        return self._batch is not None

    @property
    def joins(self) -> bool:
        """Whether the sequence can be a row of a batch."""
        ready = self._session is not None or self._batch is not None
        return ready and not self._given and self._decoder.batches

    def scores(self, ids: Ids, wants: Wants, *, every: bool = False) -> list[Scores]:
        """As `launcher.generation.scoring.Scored.scores`."""
        if self.closed:
            raise ShardrunError("This sequence is closed: start another one.")
        self._check_free()
        with self._decoder.turn:
            if every and len(ids) > 1 and not self._decoder.rewinds:
                # Were the logits of all but the last left out, the step could not be undone.
                return self._one_by_one(ids, wants)
            return super().scores(ids, wants, every=every)

    def _run(self, program: Program, ids: Ids, past: int, every: bool, wants: Wants) -> list[Scores]:
        decoder = self._decoder
        if program is not decoder.later:  # a first graph of its own, which takes no state
            return super()._run(program, ids, past, every, wants)
        self.leave()
        known = decoder.host.known
        feeds = self._asked(program, ids, past, every)
        session, fresh = self._session, self._session is None
        if session is None:
            session = Session(decoder.host, expected=self.expected)
        # The session keeps what the graph gives back; caches of an encoder that it only takes come each time.
        feeds |= self._state
        ask = asked(decoder.logits, decoder.vocabulary, wants, every=every)
        try:
            rows = decoder.read(session.step(feeds, ask), ask)
            if every and len(rows) < len(ids):  # as if it had not been read
                if fresh:
                    session.close()
                else:
                    session.rewind(past)
                return rows
        except BaseException:
            if fresh:
                session.close()
            raise
        self._session = session
        self._state = {name: array for name, array in self._state.items() if name not in known.states}
        return rows

    def _asked(self, program: Program, ids: Ids, past: int, every: bool) -> dict[str, Array]:
        """What a step of a session is given, but for state."""
        filled = self._decoder.host.known.filled
        feeds = {
            name: array
            for name, array in self._feeds(program, ids, past, every).items()
            if name not in filled
        }
        if self._decoder.cuts_logits:
            feeds[LOGITS_FROM] = np.array([0 if every else len(ids) - 1], np.int64)
        return feeds

    @property
    def follows(self) -> bool:
        """Whether `follow` can go on from here: what the steps are given differs by their tokens only."""
        if self._decoder.runs is None or not self._ids or (self._session is None and self._batch is None):
            return False
        program, one = self._decoder.later, np.zeros(1, np.int64)
        now, then = (self._asked(program, one, len(self._ids) + k, False) for k in (0, 1))
        return all(np.array_equal(array, then[name]) for name, array in now.items())

    def follow(
        self, chooser: Chooser, most: int, ahead: int, wanted: Callable[[], bool] | None = None
    ) -> Generator[int]:
        """Reads the text's last token, and up to ``most`` - 1 more, each chosen by the one before it: those
        chosen, as they come. Ends early with a token that ends the text, where the ranks are asked for
        something else, or where no more are ``wanted``. Only where the sequence `follows`."""
        decoder = self._decoder
        token, taken = chooser.ids[-1], 0
        with decoder.turn:
            self._check_free()
            self.leave()
            assert decoder.runs is not None and self._session is not None
            session = self._session
            feeds = {
                **self._asked(decoder.later, np.array([token], np.int64), len(self._ids), False),
                **self._state,
            }
            report: RunReport = {
                "tokens": decoder.names.of("input_ids"),
                "logits": decoder.logits,
                "vocabulary": decoder.vocabulary,
                "most": most,
                "ahead": ahead,
                "text": chooser.told(),
            }
            try:
                self._run_of = decoder.runs.run(session.number, feeds, report)
            except ShardrunError:
                raise
            except BaseException:  # Ctrl-C: nobody knows how far the state is
                self.close()
                raise
        try:
            limit, run = ahead, self._run_of
            while (found := run.next()) is not None:
                self._ids.append(token)
                taken += 1
                if wanted is not None and not wanted():
                    run.extend(0)
                elif limit < most and taken + ahead >= limit + ahead // 2:
                    limit = taken + ahead
                    run.extend(limit)
                yield (token := found)
        finally:
            self._end_run(taken)

    def _end_run(self, taken: int) -> None:
        """Forgets what the ranks have read beyond what was ``taken``."""
        run, self._run_of, session = self._run_of, None, self._session
        try:
            read = run.close() if run is not None else 0
        except BaseException:  # Ctrl-C: nobody knows how far the state is
            self.close()
            raise
        if session is None:
            return
        session.read(read)
        if read > taken and self._decoder.rewinds:
            session.rewind(session.length - (read - taken))
        elif read > taken:
            self.close()

    def _check_free(self) -> None:
        if self._run_of is not None:
            raise ShardrunError("This sequence is read on by the ranks: end that first.")

    def member(self) -> Member:
        """Where the state lies, for a batch."""
        if self._host is not self._decoder.host:
            raise LaunchError("This sequence is lost with its ranks: start another one.")
        if self._batch is not None:
            return self._batch.member(self._row)
        assert self._session is not None
        return self._session.number, 0, self._session.length

    def enter(self, batch: Batch, row: int) -> None:
        """The state lies in a row of a batch from now on."""
        if self._session is not None:
            self._session.close()
        self._session, self._batch, self._row = None, batch, row

    def leave(self) -> None:
        """The state lies in a session of its own from now on, unless the sequence is closed."""
        if self._batch is not None:
            self._session, self._batch = self._batch.session(self._row), None
            self._decoder.forget()

    def become(self, twin: ResidentSequence) -> None:
        """Takes what a copy has read; the copy is of no use then."""
        if self._session is not None:
            self._session.close()
        twin.leave()
        self._session, self._ids, self._batch = twin._session, twin._ids, None
        twin._session = None

    def note(self, token: int) -> None:
        """A token was read in the batch."""
        self._ids.append(token)

    def rewind(self, length: int) -> None:
        """Forgets tokens from ``length`` on."""
        self._check_free()
        with self._decoder.turn:
            if length == len(self._ids):
                return
            self.leave()
            if self._session is None or not 0 <= length < len(self._ids):
                super().rewind(length)
            elif length:
                if not self._decoder.rewinds:
                    raise ConfigError("the model's state is recurrent: it cannot forget its last tokens")
                # What a first graph of its own has read is in the session too: it began with that.
                self._session.rewind(length)
                del self._ids[length:]
            else:
                self._session.close()
                self._session = None
                self._state, self._ids = dict(self._start), []

    def fork(self) -> ResidentSequence:
        """An independent sequence that has read the same."""
        self._check_free()
        with self._decoder.turn:
            session = None
            if self._batch is not None:
                session = self._batch.session(self._row)
            elif self._session is not None:
                session = self._session.fork()
            twin = ResidentSequence(self._decoder, self._given, self._start, session)
            twin._state, twin._ids = dict(self._state), list(self._ids)
            return twin

    def close(self) -> None:
        """Frees the state."""
        with self._decoder.turn:
            if self.closed:
                return
            self.closed = True
            if self._run_of is not None:
                self._run_of.close()
            session, self._session, self._batch, self._state = self._session, None, None, {}
            if session is not None:
                session.close()
            self._decoder.forget()
