"""Life cycles as tables: which state may follow which, and by which event.

A table is the single source for three things: the rules check it before a fact is recorded, the
invariants check it after, and the diagrams in docs/LIFECYCLES.md are drawn from it.

States among which a thing moves freely can form a `group`; the table then names the group, and
moves inside it need no rows.
"""

from msgspec import Struct

from strata.errors import NotAllowedNow


class Lifecycle(Struct, frozen=True):
    """`moves` lists (from, to, by which event), in the order for readers.

    `final` are states in which a thing has ended, although it can begin again.
    """

    name: str
    initial: str
    moves: tuple[tuple[str, str, str], ...]
    group: str = ""
    members: tuple[str, ...] = ()
    final: tuple[str, ...] = ()

    def allows(self, before: str, after: str) -> bool:
        """Whether one move leads from `before` to `after`."""
        if before in self.members and after in self.members:
            return before != after
        return any(self._is(before, a) and self._is(after, b) for a, b, _ in self.moves)

    def require(self, subject: str, before: str, after: str) -> None:
        """Refuse a move that is not in the table."""
        if not self.allows(before, after):
            options = ", ".join(sorted({b for a, b, _ in self.moves if self._is(before, a)}))
            raise NotAllowedNow(
                f"{self.name} {subject} is {before} and cannot become {after}",
                hint=f"from {before} it can become: {options or 'nothing, because it has ended'}",
            )

    def states(self) -> frozenset[str]:
        """All states."""
        named = {state for a, b, _ in self.moves for state in (a, b)}
        return frozenset(named - {self.group}) | frozenset(self.members)

    def ends(self) -> frozenset[str]:
        """The final states."""
        left = {state for state in self.states() for a, _, _ in self.moves if self._is(state, a)}
        return (self.states() - left) | frozenset(self.final)

    def diagram(self) -> str:
        """The table as a Mermaid state diagram."""
        lines = ["stateDiagram-v2", f"    [*] --> {self.initial}"]
        if self.group:
            inside = [f"        {member}" for member in self.members]
            lines += [f"    state {self.group} {{", *inside, "    }"]
        lines += [f"    {a} --> {b}: {through}" for a, b, through in self.moves]
        lines += [f"    {state} --> [*]" for state in sorted(self.ends())]
        return "\n".join(lines)

    def _is(self, state: str, named: str) -> bool:
        return state == named or (named == self.group and state in self.members)
