"""An allowance that time refills: for frames that cost us work and the peer nothing."""

from strata.wire.frames import ConnectionFault, ErrorCode


class Allowance:
    """Grants `burst` frames at once, and `per_s` more each second up to that number."""

    def __init__(self, burst: int, per_s: int) -> None:
        self._burst = burst
        self._per_s = per_s
        self._left = float(burst)
        self._refilled_at_s: float | None = None

    def spend(self, now_s: float) -> None:
        """Draw one frame; when the allowance seems empty, add what time has refilled."""
        if self._refilled_at_s is None:
            self._refilled_at_s = now_s
        self._left -= 1
        if self._left < 0:
            refill = (now_s - self._refilled_at_s) * self._per_s
            self._left = min(self._left + refill, self._burst)
            self._refilled_at_s = now_s
            if self._left < 0:
                raise ConnectionFault(ErrorCode.ENHANCE_YOUR_CALM, "too many control frames")
