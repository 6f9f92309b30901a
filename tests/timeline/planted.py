"""Simulated runs with one injected fault, so that the cause is known."""

from collections.abc import Callable
from pathlib import Path

from strata.core.record.event_codec import CODEC
from strata.sim.sim_worker import SimWorker
from strata.sim.simulation import Scenario, Simulation
from strata.store.sqlite import SqliteStore
from strata.timeline.queries import TimelineQueries
from strata.timeline.read.run_timeline import Timeline
from strata.timeline.why.investigation import Answer, LogSearch
from strata.timeline.why.questions import ask

AT_S = 400.0

Plant = Callable[[Simulation], None]


class Planted:
    """A finished run and its timeline."""

    def __init__(
        self,
        plant: Plant | None = None,
        at_s: float = AT_S,
        wrong: dict[str, int] | None = None,
        **scenario: object,
    ) -> None:
        wanted = {"seed": 5, "workers": 4, "hours": 0.3, "faults": (), "events": True}
        self.sim = Simulation(Scenario(**(wanted | scenario)))
        self.sim.wrong_clocks.update(wrong or {})
        if plant is not None:
            self.sim.world.after(at_s, plant, self.sim)
        self._read(self.sim.run())

    def _read(self, sim: Simulation) -> None:
        self.sim = sim
        self.timeline = Timeline(sim.coordinator.disk, "planted")
        self.queries = TimelineQueries(self.timeline)

    @classmethod
    def over(cls, sim: Simulation) -> "Planted":
        """A run whose log was changed afterwards."""
        self = cls.__new__(cls)
        self._read(sim)
        return self

    def saved(self, folder: Path) -> Path:
        """Write the run as a data folder."""
        folder.mkdir()
        with SqliteStore(folder / "log.db", CODEC) as store:
            self.sim.coordinator.disk.copy_to(store)
        return folder

    @property
    def search(self) -> LogSearch:
        return LogSearch(self.timeline, self.queries.trust())

    def why(self, question: str, **params: object) -> Answer:
        return ask(self.search, question, {name: str(value) for name, value in params.items()})

    def kinds(self, *kinds: str) -> list:
        return list(self.timeline.records(kinds=kinds))


def worker(sim: Simulation, rank: int = 1) -> SimWorker:
    """The worker that has a rank now."""
    alive = [each for each in sim.workers.values() if each.alive and each.standing is not None]
    return next(each for each in alive if each.standing.rank == rank)
