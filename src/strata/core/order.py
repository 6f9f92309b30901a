"""The order of samples: which samples a step trains, as arithmetic.

Positions. Batch place j of step s is global position P = s × G + j (G: the global batch); its epoch
is P ÷ N and its place in the epoch p = P mod N. The last step of an epoch takes its remaining
samples from the next epoch. There is no state, so a step's samples are the same for any number of
workers, and seeking to any step costs the same as going to the next one.

Lanes. Position P belongs to lane P mod C, where C divides G: every step has G ÷ C samples of every
lane, so the shape of a worker's batch changes only when its lanes change. (With p mod C instead,
the step in which an epoch ends would give some lanes more samples and others none.) When C does not
divide N, some lanes have one sample more than others, and which ones changes from epoch to epoch.

Modes. `global`: one permutation of all samples, a different one in each epoch; for data with fast
random access. `window`: the shards in a seeded permutation form a line; each lane owns a contiguous
part of it, cut into windows of equal size, and each window is permuted differently in each epoch.
The line stays the same over the epochs, so that a lane's shards stay in its worker's cache.
`sequential`: the same line and parts, in order. Without `shuffle` sample p is at place p. A short
last shard stays at the end of the line, so that a place on the line is computed without a table.

The permutation. A keyed Feistel network over Z_a × Z_b with a ≈ b ≈ √n: in each of six rounds a
keyed hash of one half is added to the other, which is invertible, so the whole is a bijection of a
× b ≥ n numbers. A result outside n is permuted again until it is inside (cycle walking; at most a
fraction 1/√n needs it), which keeps the bijection. A tweak per epoch and window selects a different
permutation. There is no table: the cost per sample does not depend on n. Below 1,024 samples there
are 24 rounds, because with small halves six rounds leave a pattern: over 100,000 epochs, the counts
of neighbouring pairs among 16 samples are 30 standard deviations off with six rounds and 3 with
eight; 6 samples need twenty. Written in NumPy by hand, since no library has a vectorised one: 30 to
40 ns per index in blocks of 8,192 (benchmarks/bench_data.py).

The version is part of the key. Any change of the result is a new version;
tests/golden/order-v1.json holds the results of version 1.
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
_SMALL = 1_024  # permutations of fewer samples have more rounds
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
    """Evaluates one order; its memory does not depend on the size of the dataset."""

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
        """The positions of some lanes (or all) in steps `step` to `stop` (exclusive), by step.

        They ascend within a row: a worker's batch is the global batch without the other lanes.
        """
        if not 0 <= step <= stop or stop * self.global_batch > MAX_POSITION:
            raise InvalidArgument(
                f"steps {step} to {stop} are not a valid range",
                hint=f"steps begin at 0 and end at {MAX_POSITION // self.global_batch}",
            )
        chosen = self.checked_lanes(range(self.lanes) if lanes is None else lanes)
        rounds = np.arange(0, self.global_batch, self.lanes, dtype=np.int64)
        places = (rounds[:, None] + chosen).ravel()
        begins = np.arange(step, stop, dtype=np.int64) * self.global_batch
        return begins[:, None] + places

    def checked_lanes(self, lanes: Sequence[int]) -> Integers:
        """The lanes in ascending order; raises if one does not exist or is repeated."""
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
        """The samples of a step, of all lanes or some, in batch order."""
        return self.samples(self.positions(step, step + 1, lanes)[0])

    def epoch_of(self, step: int) -> int:
        """The epoch in which a step begins."""
        return step * self.global_batch // self.total_samples

    def steps_for(self, epochs: int, *, drop_tail: bool = False) -> int:
        """The number of steps in some epochs; a last, incomplete step is included or dropped."""
        positions = epochs * self.total_samples
        return positions // self.global_batch if drop_tail else -(-positions // self.global_batch)

    def shards_of(self, lane: int, epoch: int) -> Integers:
        """The shards that a lane reads in an epoch, in the order of reading."""
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
        """The number of samples of a lane's part of an epoch that are trained after some steps.

        They are the first ones of the part on the line. The samples of a window count when all of
        them are trained, since they are permuted.
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
        """Permute each place along a lane within its window."""
        number, first, sizes = self._windows(along, lengths)
        tweak = self._keys.tweak(epochs, lanes, number)
        moved: Integers = first + self._keys.permute(along - first, sizes, tweak, self._rounds)
        return moved

    def _windows(self, along: Integers, lengths: Integers) -> tuple[Integers, Integers, Integers]:
        """The number, first place and size of the window that each place along a lane is in.

        If the windows cannot have equal sizes, the first ones are one sample longer.
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
        """One word that identifies a permutation: a hash of its epoch, lane and window."""
        word = self._salt
        for part in parts:
            word = mix(word + part.astype(np.uint64))
        return word

    def permute(self, values: Integers, sizes: Integers, tweak: Words, rounds: int) -> Integers:
        """Map each value below its size to another value below it; a bijection for each tweak."""
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
        """Apply the rounds to value = high × rows + low; both halves stay below 2^32."""
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
    """SplitMix64: a hash of each word."""
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
    """The number of rounds that a permutation of `size` samples needs to show no pattern."""
    return _ROUNDS if size >= _SMALL else _SMALL_ROUNDS


def _at(values: Words, places: NDArray[np.intp]) -> Words:
    return values if values.size == 1 else values[places]


def lane_parts(
    begins: Integers, lanes: Integers, total: int, count: int
) -> tuple[Integers, Integers]:
    """The starts and lengths of lanes' parts of the line, in epochs that begin at `begins`.

    The first position of the epoch is in lane `turn`. From this lane on, `extra` lanes (after the
    last comes lane 0) have one sample more than the rest.
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
            f"the order has version {spec.version}, but this release has version {ORDER_VERSION}",
            hint="continue with the release that started this run, or start a new run",
        )
    for name in ("total_samples", "shard_size", "global_batch", "lanes"):
        if getattr(spec, name) <= 0:
            raise InvalidArgument(f"{name} is {getattr(spec, name)}", hint="it must be at least 1")
    if spec.total_samples > MAX_SAMPLES:
        raise InvalidArgument(
            f"total_samples is {spec.total_samples}", hint=f"it must be at most {MAX_SAMPLES}"
        )
    if spec.window < 0:
        raise InvalidArgument(
            f"window is {spec.window}", hint="use 0 for the default, or at least 1"
        )
    if spec.mode not in ("global", "window", "sequential"):
        raise InvalidArgument(
            f"there is no order mode {spec.mode!r}", hint="choose global, window or sequential"
        )
    if spec.global_batch % spec.lanes:
        raise InvalidArgument(
            f"{spec.lanes} lanes do not divide a global batch of {spec.global_batch}",
            hint="choose lanes that divide the global batch",
        )
