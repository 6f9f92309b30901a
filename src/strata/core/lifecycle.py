"""Life cycles as tables: which state may follow which, and through what.

A table is the single source for three things: the rules ask it before a fact is recorded, the
invariants check it after, and the diagrams in docs/LIFECYCLES.md are drawn from it.
"""

from msgspec import Struct

from strata.errors import NotAllowedNow


class Lifecycle(Struct, frozen=True):
    """`moves` lists (from, to, through what), in the order a reader wants to see them."""

    name: str
    initial: str
    moves: tuple[tuple[str, str, str], ...]

    def allows(self, before: str, after: str) -> bool:
        """Whether one move leads from `before` to `after`."""
        return any(a == before and b == after for a, b, _ in self.moves)

    def require(self, subject: str, before: str, after: str) -> None:
        """Refuses a move that is not in the table."""
        if not self.allows(before, after):
            options = ", ".join(sorted({b for a, b, _ in self.moves if a == before}))
            raise NotAllowedNow(
                f"{self.name} {subject} is {before} and cannot become {after}",
                hint=f"from {before} it can become: {options or 'nothing, it has ended'}",
            )

    def ends(self) -> frozenset[str]:
        """The states that nothing leads out of."""
        return frozenset(b for _, b, _ in self.moves) - {a for a, _, _ in self.moves}

    def diagram(self) -> str:
        """The table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        lines += [f"    {a} --> {b}: {through}" for a, b, through in self.moves]
        lines += [f"    {state} --> [*]" for state in sorted(self.ends())]
        return "\n".join(lines)
