"""The order of samples: which samples a step trains, as arithmetic.

Position, not cursor. Batch place j of step s is global position P = s × G + j (G: the global
batch); its epoch is P ÷ N and its place in the epoch p = P mod N. The tail of an epoch runs on
into the next. Nothing is remembered, so a step's samples are the same for any number of workers,
and going to any step costs the same as going to the next.

Lanes. Position P belongs to lane P mod C, where C divides G: every step has G ÷ C samples of every
lane, so a worker's batch has one shape for as long as its lanes stay. (With p mod C instead, the
step in which an epoch ends would give some lanes more samples and others none.) When C does not
divide N, lanes take turns at being one sample longer from epoch to epoch.

Modes. `global`: one permutation of all samples, another one each epoch; for data that is read at
random. `window`: the shards in a seeded permutation form a line; each lane owns a contiguous part
of it, cut into windows of equal size, and each window is permuted anew each epoch. The line stays
the same over the epochs, so that a lane's shards stay in its worker's cache. `sequential`: the same
line and parts, walked as they are. Without `shuffle` sample p is at place p. A short last shard
stays at the end of the line, so that places on the line need no table.

The permutation. A keyed Feistel network over Z_a × Z_b with a ≈ b ≈ √n: in each of six rounds one
half is moved by a keyed hash of the other, which can be undone, so the whole is a bijection of
a × b ≥ n numbers; what falls outside n is sent through again until it is inside, which keeps it one
(at most a fraction 1/√n needs it). A tweak per epoch and window makes each another permutation.
No table: 10^10 samples cost what ten do. Below 1,024 there are 24 rounds, since with small halves
six show: over 100,000 epochs, pairs of neighbours among 16 are 30 standard deviations off with six
rounds, 3 with eight, and among 6 they need twenty. Written in NumPy by hand, since no library has
a vectorised one: 30 to 40 ns an index in blocks of 8,192 (benchmarks/bench_data.py).

The version is part of the key. Any change to what is computed here is a new version, and
tests/golden/order-v1.json holds what version 1 gives.
"""

from collections.abc import Sequence
from hashlib import blake2b
from typing import Literal, TypeAlias

import numpy as np
from msgspec import Struct
from numpy.typing import NDArray

from strata.core.rule_settings import SHUFFLE_SEED
from strata.errors import InvalidArgument

ORDER_VERSION = 1
MAX_SAMPLES = 1 << 48
MAX_POSITION = 1 << 62

Mode: TypeAlias = Literal["global", "window", "sequential"]
Integers: TypeAlias = NDArray[np.int64]
Words: TypeAlias = NDArray[np.uint64]

_ROUNDS = 6
_SMALL = 1_024  # permutations of fewer than this take more rounds
_SMALL_ROUNDS = 24
_BLOCK = 8_192  # intermediate arrays of a block stay in the processor's cache
_SHARDS_PER_WINDOW = 4
_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1 = np.uint64(0xBF58476D1CE4E5B9)
_MIX_2 = np.uint64(0x94D049BB133111EB)
_27, _30, _31, _32 = (np.uint64(bits) for bits in (27, 30, 31, 32))


class OrderSpec(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Everything that the order depends on. `window` is in samples; 0 means four shards."""

    total_samples: int
    shard_size: int
    global_batch: int
    lanes: int = 1
    seed: int = SHUFFLE_SEED
    fingerprint: str = ""
    shuffle: bool = True
    mode: Mode = "global"
    window: int = 0
    version: int = ORDER_VERSION


class Order:
    """Evaluates one order. Holds a few numbers, whatever the size of the dataset."""

    def __init__(self, spec: OrderSpec) -> None:
        _check(spec)
        self.spec = spec
        self.total_samples = spec.total_samples
        self.global_batch = spec.global_batch
        self.lanes = spec.lanes
        self._keys = Keys(f"{spec.version}/{spec.seed}/{spec.fingerprint}")
        self._full_shards = spec.total_samples // spec.shard_size
        self._window = spec.window or _SHARDS_PER_WINDOW * spec.shard_size
        shortest = max(1, spec.total_samples // spec.lanes)
        self._rounds = rounds_for(shortest // -(-shortest // self._window))

    def samples(self, positions: Integers) -> Integers:
        """The sample at each global position."""
        if positions.size <= _BLOCK:
            return self._samples(positions)
        found = np.empty(positions.size, np.int64)
        for first in range(0, positions.size, _BLOCK):
            block = slice(first, first + _BLOCK)
            found[block] = self._samples(positions[block])
        return found

    def positions(self, step: int, stop: int, lanes: Sequence[int] | None = None) -> Integers:
        """The positions of some lanes (or all) in steps `step` to `stop`, exclusive: a row a step.

        They ascend within a row: the batch of one worker is the global batch less what others have.
        """
        if not 0 <= step <= stop or stop * self.global_batch > MAX_POSITION:
            raise InvalidArgument(
                f"steps {step} to {stop} are not a range of steps",
                hint=f"steps begin at 0 and end at {MAX_POSITION // self.global_batch}",
            )
        chosen = self.checked_lanes(range(self.lanes) if lanes is None else lanes)
        rounds = np.arange(0, self.global_batch, self.lanes, dtype=np.int64)
        places = (rounds[:, None] + chosen).ravel()
        begins = np.arange(step, stop, dtype=np.int64) * self.global_batch
        return begins[:, None] + places

    def checked_lanes(self, lanes: Sequence[int]) -> Integers:
        """The lanes in ascending order; one that does not exist or comes twice is refused."""
        given = np.asarray(lanes)
        if given.size and given.dtype.kind not in "iu":
            raise InvalidArgument(f"lanes are numbers, not {lanes!r}")
        chosen: Integers = np.unique(given.astype(np.int64))
        if chosen.size != len(lanes):
            raise InvalidArgument(f"a lane is named twice in {list(lanes)}")
        if chosen.size and not 0 <= chosen[0] <= chosen[-1] < self.lanes:
            raise InvalidArgument(
                f"lane {chosen[-1] if chosen[0] >= 0 else chosen[0]} does not exist",
                hint=f"lanes are 0 to {self.lanes - 1}",
            )
        return chosen

    def step_samples(self, step: int, lanes: Sequence[int] | None = None) -> Integers:
        """What a step trains, or the share of some lanes, in batch order."""
        return self.samples(self.positions(step, step + 1, lanes)[0])

    def epoch_of(self, step: int) -> int:
        """The epoch in which a step begins."""
        return step * self.global_batch // self.total_samples

    def steps_for(self, epochs: int, *, drop_tail: bool = False) -> int:
        """How many steps train so many epochs; the last one runs on into the next, or is left."""
        positions = epochs * self.total_samples
        return positions // self.global_batch if drop_tail else -(-positions // self.global_batch)

    def shards_of(self, lane: int, epoch: int) -> Integers:
        """The shards that a lane reads in an epoch, in the order in which it comes to them."""
        (chosen,) = self.checked_lanes([lane])
        count = -(-self.total_samples // self.spec.shard_size)
        if not self.spec.shuffle or self.spec.mode == "global":
            return np.arange(count, dtype=np.int64)
        begin = np.array([epoch * self.total_samples], np.int64)
        start, length = lane_parts(begin, np.array([chosen]), self.total_samples, self.lanes)
        if not length[0]:
            return np.empty(0, np.int64)
        size = self.spec.shard_size
        last = (start[0] + length[0] - 1) // size
        return self._shards_at(np.arange(start[0] // size, last + 1, dtype=np.int64))

    def _samples(self, positions: Integers) -> Integers:
        total = self.total_samples
        epochs = positions // total
        begins = epochs * total
        places = positions - begins
        if not self.spec.shuffle:
            return places
        if epochs.size and epochs[0] == epochs[-1] and (epochs == epochs[0]).all():
            epochs, begins = epochs[:1], begins[:1]
        if self.spec.mode == "global":
            size, tweak = np.array([total], np.int64), self._keys.tweak(epochs)
            return self._keys.permute(places, size, tweak, rounds_for(total))
        return self.on_line(self._line_places(positions, places, epochs, begins))

    def line_places(self, positions: Integers) -> Integers:
        """The places on the line of the samples at some positions; not for `global`."""
        epochs = positions // self.total_samples
        begins = epochs * self.total_samples
        return self._line_places(positions, positions - begins, epochs, begins)

    def settled(self, lane: int, epoch: int, steps: int) -> int:
        """How many samples of a lane's part of an epoch are trained after so many steps.

        They are the first of the part on the line. Of a window that is trained in part none count,
        since its samples are permuted.
        """
        begin = epoch * self.total_samples
        done = min(max(steps * self.global_batch - begin, 0), self.total_samples)
        trained = max(-(-(done - (lane - begin) % self.lanes) // self.lanes), 0)
        if self.spec.mode != "window" or not self.spec.shuffle:
            return trained
        turn = np.array([begin % self.lanes], np.int64)
        _, lengths = lane_parts(turn, np.array([lane]), self.total_samples, self.lanes)
        if trained >= lengths[0]:
            return trained
        _, first, _ = self._windows(np.array([trained], np.int64), lengths)
        return int(first[0])

    def _line_places(
        self, positions: Integers, places: Integers, epochs: Integers, begins: Integers
    ) -> Integers:
        lanes = positions % self.lanes
        starts, lengths = lane_parts(begins, lanes, self.total_samples, self.lanes)
        along = places // self.lanes
        if self.spec.mode == "window":
            along = self._shuffle_windows(along, lengths, epochs, lanes)
        return starts + along

    def _shuffle_windows(
        self, along: Integers, lengths: Integers, epochs: Integers, lanes: Integers
    ) -> Integers:
        """Each place along a lane, moved within its window."""
        number, first, sizes = self._windows(along, lengths)
        tweak = self._keys.tweak(epochs, lanes, number)
        moved: Integers = first + self._keys.permute(along - first, sizes, tweak, self._rounds)
        return moved

    def _windows(self, along: Integers, lengths: Integers) -> tuple[Integers, Integers, Integers]:
        """The number, first place and size of the window that each place along a lane is in.

        The first windows are one longer.
        """
        windows = -(-lengths // self._window)
        size = lengths // windows
        longer = lengths - size * windows
        edge = longer * (size + 1)
        number = np.where(along < edge, along // (size + 1), longer + (along - edge) // size)
        first = number * size + np.minimum(number, longer)
        return number, first, size + (number < longer)

    def on_line(self, line: Integers) -> Integers:
        """The samples at some places of the line."""
        slots = line // self.spec.shard_size
        within = line - slots * self.spec.shard_size
        return self._shards_at(slots) * self.spec.shard_size + within

    def _shards_at(self, slots: Integers) -> Integers:
        count = self._full_shards
        if count <= 1:
            return slots
        full = np.minimum(slots, count - 1)
        size = np.array([count], np.int64)
        shards = self._keys.permute(full, size, self._keys.line, rounds_for(count))
        return np.where(slots < count, shards, slots)


class Keys:
    """The round keys of one order, and the permutations made with them."""

    def __init__(self, text: str) -> None:
        (seed,) = np.frombuffer(blake2b(text.encode(), digest_size=8).digest(), "<u8")
        words = mix(seed ^ mix(np.arange(2 + _SMALL_ROUNDS, dtype=np.uint64)))
        self._salt, self.line, *self._rounds = np.split(words, words.size)

    def tweak(self, *parts: Integers) -> Words:
        """One word for what a permutation belongs to: its epoch, lane and window."""
        word = self._salt
        for part in parts:
            word = mix(word + part.astype(np.uint64))
        return word

    def permute(self, values: Integers, sizes: Integers, tweak: Words, rounds: int) -> Integers:
        """Each value below its size sent to another below it; a bijection for each tweak."""
        bounds = sizes.astype(np.uint64)
        rows = np.ceil(np.sqrt(bounds.astype(np.float64))).astype(np.uint64)
        columns = (bounds + rows - np.uint64(1)) // rows
        moved = self._feistel(values.astype(np.uint64), rows, columns, tweak, rounds)
        outside = np.flatnonzero(moved >= bounds)
        while outside.size:
            again = self._feistel(
                moved[outside],
                _at(rows, outside),
                _at(columns, outside),
                _at(tweak, outside),
                rounds,
            )
            moved[outside] = again
            outside = outside[again >= _at(bounds, outside)]
        return moved.astype(np.int64)

    def _feistel(
        self, values: Words, rows: Words, columns: Words, tweak: Words, rounds: int
    ) -> Words:
        """The rounds on value = high × rows + low. Both halves stay below 2^32."""
        high = values // rows
        low = values - high * rows
        for number, key in enumerate(self._rounds[:rounds]):
            moving, other, modulus = (high, low, columns) if number % 2 else (low, high, rows)
            word = (other ^ (key ^ tweak)) * _MIX_1
            word ^= word >> _32
            word *= _MIX_2
            word >>= _32
            word *= modulus
            word >>= _32
            word += moving
            # Below 2 × modulus, so one subtraction is the remainder; the other case wraps to huge.
            np.minimum(word, word - modulus, out=word)
            if number % 2:
                high = word
            else:
                low = word
        return high * rows + low


def mix(words: Words) -> Words:
    """SplitMix64: neighbouring words become unrelated ones."""
    words = words + _GOLDEN
    words = (words ^ (words >> _30)) * _MIX_1
    words = (words ^ (words >> _27)) * _MIX_2
    return words ^ (words >> _31)


def digest(positions: Integers, samples: Integers) -> int:
    """Eight bytes for "these samples at these positions".

    The digests of a step's parts add up (modulo 2^64) to that of the step, however it was divided.
    """
    return int(digests(positions.reshape(1, -1), samples.reshape(1, -1))[0])


def digests(positions: Integers, samples: Integers) -> Words:
    """The digest of each row."""
    words = mix(mix(positions.astype(np.uint64)) ^ samples.astype(np.uint64))
    total: Words = np.add.reduce(words, axis=1)
    return total


def rounds_for(size: int) -> int:
    """How many rounds a permutation of so many needs to show no pattern."""
    return _ROUNDS if size >= _SMALL else _SMALL_ROUNDS


def _at(values: Words, places: NDArray[np.intp]) -> Words:
    return values if values.size == 1 else values[places]


def lane_parts(
    begins: Integers, lanes: Integers, total: int, count: int
) -> tuple[Integers, Integers]:
    """Where the lanes' parts of the line start in the epochs that begin at positions `begins`.

    The epoch's first position is in lane `turn`; from there on, `extra` lanes in a circle have one
    sample more than the rest. The start of a lane's part counts those before it.
    """
    base, extra = divmod(total, count)
    turn = begins % count
    upper = np.clip(lanes - turn, 0, np.minimum(extra, count - turn))
    wrapped = np.minimum(lanes, np.maximum(turn + extra - count, 0))
    lengths = base + ((lanes - turn) % count < extra)
    return base * lanes + upper + wrapped, lengths


def _check(spec: OrderSpec) -> None:
    if spec.version != ORDER_VERSION:
        raise InvalidArgument(
            f"the order has version {spec.version}, and this is version {ORDER_VERSION}",
            hint="go on with the release that began this run, or start a new one",
        )
    for name in ("total_samples", "shard_size", "global_batch", "lanes"):
        if getattr(spec, name) <= 0:
            raise InvalidArgument(f"{name} is {getattr(spec, name)}", hint="it must be at least 1")
    if spec.total_samples > MAX_SAMPLES:
        raise InvalidArgument(
            f"total_samples is {spec.total_samples}", hint=f"at most {MAX_SAMPLES} have an order"
        )
    if spec.window < 0:
        raise InvalidArgument(f"window is {spec.window}", hint="0 chooses one; else at least 1")
    if spec.mode not in ("global", "window", "sequential"):
        raise InvalidArgument(
            f"there is no order mode {spec.mode!r}", hint="choose global, window or sequential"
        )
    if spec.global_batch % spec.lanes:
        raise InvalidArgument(
            f"{spec.lanes} lanes do not divide a global batch of {spec.global_batch}",
            hint="choose lanes that divide the global batch",
        )
