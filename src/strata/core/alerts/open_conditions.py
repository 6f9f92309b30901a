"""The conditions that hold now, found by the rules, and what of it has to be recorded.

A rule calls `hold` whenever it finds its condition, and `end` when it has evidence that the
condition ended; the absence of evidence ends nothing, so a restart resolves no alert. A condition
counts as ended when it has not been found for `settle_s`, so that one that comes and goes is one
alert, and one message. The end of a task ends all conditions of the task at once.

What was found again is recorded at most once in `REPEAT_S`, with the number of times.
"""

from collections.abc import Container

from msgspec import Struct, structs

from strata.core.alerts.alert_record import MAX_OPEN, Change, Ending, Finding
from strata.core.metrics.sliding_windows import SECOND_NS
from strata.core.state import Alert

REPEAT_S = 60.0


class Held(Struct):
    """A condition: the newest finding, and when it was found and recorded."""

    finding: Finding
    found_ns: int
    recorded_ns: int = 0
    again: int = 0
    raised: bool = False
    ending: Ending | None = None


class OpenConditions:
    """The conditions by rule and subject; at most `MAX_OPEN`, further ones are not followed."""

    def __init__(self, settle_s: float) -> None:
        self._settle_ns = int(settle_s * SECOND_NS)
        self._held: dict[tuple[str, str], Held] = {}
        self._ended: list[Change] = []

    def adopt(self, alert: Alert, now_ns: int) -> None:
        """Continue with an open alert after a restart."""
        finding = Finding(
            rule=alert.rule,
            subject=alert.subject,
            severity=alert.severity,
            text=alert.text,
            evidence=alert.evidence,
            causes=tuple(alert.causes),
            task=alert.task,
            worker=alert.worker,
        )
        self._held[alert.rule, alert.subject] = Held(
            finding=finding, found_ns=now_ns, recorded_ns=now_ns, raised=True
        )

    def holds(self, rule: str, subject: str) -> bool:
        """Whether a condition was found and has not ended."""
        held = self._held.get((rule, subject))
        return held is not None and held.ending is None

    def hold(self, finding: Finding, now_ns: int) -> None:
        """Note that a condition was found."""
        key = (finding.rule, finding.subject)
        held = self._held.get(key)
        if held is not None:
            held.finding, held.found_ns, held.ending = finding, now_ns, None
            held.again += 1
        elif len(self._held) < MAX_OPEN:
            self._held[key] = Held(finding=finding, found_ns=now_ns)

    def confirm(self, rule: str, subject: str, now_ns: int) -> None:
        """Note that a condition still holds, with nothing new to record."""
        self._held[rule, subject].found_ns = now_ns

    def end(
        self,
        rule: str,
        subject: str,
        reason: str,
        causes: tuple[str, ...] = (),
        *,
        expired: bool = False,
    ) -> None:
        """Note that a condition has ended; it is resolved when it has settled."""
        held = self._held.get((rule, subject))
        if held is not None and held.ending is None:
            held.ending = Ending(
                rule=rule, subject=subject, reason=reason, causes=causes, expired=expired
            )

    def end_task(
        self,
        task: str,
        reason: str,
        causes: tuple[str, ...],
        rules: Container[str] | None = None,
    ) -> None:
        """End all conditions of a task at once, or those of some rules."""
        for rule, subject in [
            key
            for key, held in self._held.items()
            if held.finding.task == task and (rules is None or key[0] in rules)
        ]:
            held = self._held.pop((rule, subject))
            if not held.raised or held.again:
                self._ended.append(structs.replace(held.finding, count=max(held.again, 1)))
            ending = Ending(rule=rule, subject=subject, reason=reason, causes=causes)
            self._ended.append(held.ending or ending)

    def changes(self, now_ns: int) -> list[Change]:
        """What has to be recorded since the last call."""
        found: list[Change] = [*self._ended]
        self._ended.clear()
        for key, held in list(self._held.items()):
            settled = now_ns - held.found_ns >= self._settle_ns
            if not held.raised:
                held.raised, held.recorded_ns = True, now_ns
                held.again = 0
                found.append(held.finding)
            elif held.again and now_ns - held.recorded_ns >= REPEAT_S * SECOND_NS:
                found.append(structs.replace(held.finding, count=held.again))
                held.recorded_ns, held.again = now_ns, 0
            if held.ending is not None and settled:
                if held.again:
                    found.append(structs.replace(held.finding, count=held.again))
                found.append(held.ending)
                del self._held[key]
        return found
