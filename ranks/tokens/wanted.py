"""What a step is asked for instead of all logits: of each position the best tokens, and those named besides.

Each rank finds those of its own part of the vocabulary. Put together they are as good as all: what is
chosen is the same to the bit, equal scores and the order of sums included. Whoever asks names the tokens that
it will treat in another way than the rest, by penalties or biases: these come whatever their logits are, and
the best are found among the others.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from ranks.tokens import sampling
from ranks.tokens.best import MOST, SPARE
from ranks.tokens.draws import Draw
from ranks.tokens.penalties import Ids, Row, changed
from ranks.tokens.scores import Norm, Scores, total

if TYPE_CHECKING:
    from ranks.talk.reports import AskReport
    from sharding.common.arrays import Array


ALSO, DRAWS, SHOWN = "shardrun.also", "shardrun.draws", "shardrun.shown"
OWN = (ALSO, DRAWS)
"""The tensors by which an `Ask` goes to the ranks; what they show comes back by the last one above."""
_ROUNDING = 2.0**-20
"""Beyond what a few roundings to float32 may change, in relation to the numbers: so close to the last of the
best tokens, another one may become its equal on the way to a score."""
_LONGEST_LOG = 16.0
"""More than the logarithm of a vocabulary's size."""


@dataclass(frozen=True)
class Want:
    """What is wanted of the logits of one position."""

    count: int
    """So many of the best tokens; 0: the likeliest alone."""
    also: NDArray[np.int64] = field(default_factory=lambda: np.empty(0, np.int64))
    """Tokens that come besides, and do not count among the best; by rising id, each once."""
    logs: bool = False
    """Whether log-probabilities are wanted."""
    slack: float = 0.0
    """The size of what will be added to them."""
    draw: Draw | None = None
    """Tokens that the ranks shall draw, which change the logits of ``also`` before."""

    @property
    def room(self) -> int:
        """How many tokens a rank may show, but for those of ``also``."""
        return self.count + SPARE if self.count else 1

    @property
    def width(self) -> int:
        """How many numbers a rank shows: how many tokens (-1: they do not suffice), their ids, their logits,
        those of ``also``, the ids of drawn tokens (-1: another rank's) and their logits, and for
        log-probabilities the highest logit of all, and this rank's `total`."""
        return self._drawn_end + 2 * self.logs

    @property
    def drawn(self) -> slice:
        """Where among these numbers the drawn tokens stand."""
        return slice(1 + 2 * self.room + len(self.also), self._drawn_end)

    @property
    def _drawn_end(self) -> int:
        drawn = 2 * len(self.draw.numbers) if self.draw is not None else 0
        return 1 + 2 * self.room + len(self.also) + drawn

    def fits(self, part: int) -> bool:
        """Whether a rank with so many tokens should show some of them, and not all."""
        return max(self.count, len(self.also)) <= min(MOST, part // 4)

    def plus(self, tokens: Ids) -> Want:
        """The same, and these tokens (by rising id) besides."""
        also = np.union1d(self.also, tokens)
        draw = None if self.draw is None else self.draw.plus(self.also, also)
        return replace(self, also=also, draw=draw)

    def own(self, begin: int, size: int) -> tuple[NDArray[np.bool_], Ids]:
        """Which of ``also`` a rank has whose tokens begin there, and their places among these."""
        mine = (self.also >= begin) & (self.also < begin + size)
        return mine, self.also[mine] - begin

    def scores(self, row: Row, begin: int) -> Row:
        """The scores (part,) by which a rank draws."""
        assert self.draw is not None
        mine, places = self.own(begin, len(row))
        if not len(places):
            return row
        scores: Row = row.copy()
        scores[places] = changed(row[places], self.draw.changes[mine])
        return scores


def show(row: Row, begin: int, want: Want, highest: float, drawn: Sequence[int] = ()) -> NDArray[np.float64]:
    """What a rank shows, (width,): of the logits (part,) of the tokens from ``begin`` on. ``highest``: the
    highest logit of all ranks, where log-probabilities are wanted; ``drawn``: the places of drawn tokens
    here, -1 for those of other ranks."""
    shown = np.zeros(want.width)
    room, scores = want.room, row
    mine, own = want.own(begin, len(row))
    if len(own):
        shown[1 + 2 * room :][: len(want.also)][mine] = row[own]
        scores = row.copy()
        scores[own] = -np.inf
    if drawn:
        places = np.array(drawn)
        is_mine = places >= 0
        shown[want.drawn] = np.concatenate(
            [np.where(is_mine, begin + places, -1), np.where(is_mine, row[places], 0)]
        )
    if want.logs:
        shown[-2] = highest
        shown[-1:].view(np.int64)[0] = total(row, highest)
    ids = _best(scores, want, highest, hidden=len(own) > 0)
    if ids is None or len(ids) > room:
        shown[0] = -1
        return shown
    shown[0] = len(ids)
    shown[1 : 1 + len(ids)] = begin + ids
    shown[1 + room : 1 + room + len(ids)] = scores[ids]
    return shown


def _best(scores: Row, want: Want, highest: float, *, hidden: bool) -> NDArray[np.int64] | None:
    """The places of the best tokens; None where they do not suffice. ``hidden``: some are left out, which
    have the lowest score."""
    if not want.count:
        place = int(np.argmax(scores))  # the lowest id of equal ones, and what is no number before all
        return np.arange(place, place + (not hidden or scores[place] != -np.inf))
    if not scores.max() < np.inf:
        return None
    least = float(sampling.highest(scores, want.count))
    if least == -np.inf:
        return None
    if want.logs:
        least -= _ROUNDING * (highest - least + _LONGEST_LOG + want.slack)
    return np.flatnonzero(scores >= np.float32(least))


def likeliest(rows: Array, begin: int) -> NDArray[np.float64]:
    """What a rank shows (rows, width) of its rows (rows, part), of each of which the likeliest is wanted."""
    places = rows.argmax(axis=1)
    values = rows[np.arange(len(rows)), places]
    return np.stack([np.ones(len(rows)), begin + places, values.astype(np.float64)], axis=1)


def enough(shown: NDArray[np.float64], wants: Sequence[Want]) -> bool:
    """Whether what all ranks show, (ranks, sum of widths), is as good as all logits."""
    starts = np.cumsum([0, *(want.width for want in wants[:-1])])
    return bool((shown[:, starts] >= 0).all())


def nothing(wants: Sequence[Want]) -> NDArray[np.float64]:
    """What is shown of positions whose logits come whole, (1, sum of widths)."""
    return np.full((1, sum(want.width for want in wants)), -1.0)


def joined(
    shown: Sequence[NDArray[np.float64]], rows: Sequence[Sequence[int]], wants: Sequence[Want]
) -> NDArray[np.float64]:
    """What several copies of a model show, each of its own rows of a batch, as if one had all rows.

    ``rows``: of each copy; a row has as many positions as any other. A copy whose ranks have not shown enough
    by their parts tells what one of them has found in all logits: then the others show nothing of its rows.
    """
    ranks, count = max(len(piece) for piece in shown), sum(map(len, rows))
    each = len(wants) // count
    ends = np.cumsum([0, *(want.width for want in wants)])
    whole = np.full((ranks, ends[-1]), -1.0)
    for piece, own in zip(shown, rows, strict=True):
        begin = 0
        for row in own:
            first, last = ends[row * each], ends[(row + 1) * each]
            whole[:, first:last] = piece[:, begin : begin + last - first]
            begin += last - first
            for place in range(row * each, (row + 1) * each) if piece[0, 0] >= 0 else ():
                # The tokens of `also` stay: each is read where the rank is that has it.
                whole[len(piece) :, ends[place]] = 0
                if wants[place].logs:
                    whole[len(piece) :, ends[place + 1] - 1] = 0
    return whole


def together(
    shown: NDArray[np.float64], wants: Sequence[Want], vocabulary: int, rest: Iterable[Row] = ()
) -> list[Scores]:
    """The logits of each position by what all ranks show, in the order of their parts; ``rest``: whole logits
    (vocabulary,) of the positions of which not enough is shown, in order."""
    found, begin, part, others = [], 0, vocabulary // len(shown), iter(rest)
    for want in wants:
        own = shown[:, begin : begin + want.width]
        begin += want.width
        if own[0, 0] < 0:
            found.append(Scores(next(others)))
            continue
        room, counts = want.room, own[:, 0].astype(int).tolist()
        ids = np.concatenate([row[1 : 1 + n] for row, n in zip(own, counts, strict=True)]).astype(np.int64)
        values = np.concatenate([row[1 + room : 1 + room + n] for row, n in zip(own, counts, strict=True)])
        if len(want.also):
            of_also = own[want.also // part, 1 + 2 * room + np.arange(len(want.also))]
            ids, values = np.concatenate([ids, want.also]), np.concatenate([values, of_also])
            order = np.argsort(ids)
            ids, values = ids[order], values[order]
        drawn = None
        if want.draw is not None:
            tokens, logits = np.split(own[:, want.drawn], 2, axis=1)
            ranks = tokens.argmax(axis=0), np.arange(tokens.shape[1])
            drawn = dict(zip(want.draw.numbers, tokens[ranks].astype(int).tolist(), strict=True))
            ids, first = np.unique(np.concatenate([ids, tokens[ranks].astype(np.int64)]), return_index=True)
            values = np.concatenate([values, logits[ranks]])[first]
        norm = None
        if want.logs:
            totals = np.ascontiguousarray(own[:, -1]).view(np.int64)
            norm = Norm(float(own[0, -2]), int(totals.sum()))
        found.append(Scores(values.astype(np.float32), ids, norm, drawn))
    return found


def _said(draw: Draw | None) -> list[float]:
    """What of a draw is the same for each token of a text."""
    return [] if draw is None else [draw.temperature, draw.top_p, draw.min_p, len(draw.numbers)]


@dataclass(frozen=True)
class Ask:
    """What is wanted of each row of an output of logits. ``every``: each position of a step is a row; else
    only its last one."""

    output: str
    vocabulary: int
    wants: Sequence[Want]
    every: bool = False

    def told(self) -> tuple[AskReport, dict[str, Array]]:
        """How it travels: as JSON, and the tensors that go with it."""
        rows = [
            [want.count, len(want.also), int(want.logs), want.slack, *_said(want.draw)] for want in self.wants
        ]
        report: AskReport = {
            "output": self.output, "vocabulary": self.vocabulary, "every": self.every, "rows": rows
        }  # fmt: skip
        tensors: dict[str, Array] = {}
        if any(len(want.also) for want in self.wants):
            tensors[ALSO] = np.concatenate([want.also for want in self.wants]).astype(np.int32)
        draws = [want.draw for want in self.wants if want.draw is not None]
        if draws:
            tensors[DRAWS] = np.concatenate(
                [part for draw in draws for part in (draw.numbers, draw.changes.reshape(-1))]
            ).astype(np.float64)
        return report, tensors

    @classmethod
    def of(cls, report: AskReport, tensors: dict[str, Array]) -> Ask:
        """What `told` gave; what is its own is taken from the tensors."""
        also, begin, wants = tensors.pop(ALSO, np.empty(0)).astype(np.int64), 0, []
        draws, first = tensors.pop(DRAWS, np.empty(0)), 0
        for count, more, logs, slack, *said in report["rows"]:
            end, draw = begin + int(more), None
            if said:
                temperature, top_p, min_p, numbers = said
                middle = first + int(numbers)
                last = middle + 3 * int(more)
                draw = Draw(
                    temperature, tuple(draws[first:middle].tolist()), top_p, min_p,
                    draws[middle:last].astype(np.float32).reshape(-1, 3),
                )  # fmt: skip
                first = last
            wants.append(Want(int(count), also[begin:end], bool(logs), float(slack), draw))
            begin = end
        return cls(report["output"], report["vocabulary"], wants, report["every"])

    def read(self, results: Mapping[str, Array]) -> list[Scores] | None:
        """The logits of each row by what a step gave; None where it gave the output itself, of all rows."""
        shown = results.get(SHOWN)
        if shown is None:
            return None
        rest = self.chosen(results[self.output]) if self.output in results else ()
        return together(shown, self.wants, self.vocabulary, rest)

    def chosen(self, output: Array) -> NDArray[np.float32]:
        """The rows that are asked about, (rows, words), of the output or a part of it along its last axis, as
        whoever reads the whole output has them."""
        asked = output if self.every or output.ndim < 3 else output[..., -1, :]
        return np.asarray(asked.reshape(-1, output.shape[-1]), np.float32)
