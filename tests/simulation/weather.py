"""Weather: how severe the faults of one run are; drawn once from the seed, and over when the faults are."""

from dataclasses import dataclass, field
from random import Random

from tests.simulation.etcd import Conditions


@dataclass(slots=True)
class Weather:
    """Chances are per call; times are upper bounds in seconds."""

    etcd: Conditions = field(default_factory=Conditions)
    slow_storage: float = 0.0
    slow_flush: float = 0.0
    hang_s: float = 0.0
    dump_s: float = 1.0
    lose_storage_answer: float = 0.0
    break_source: float = 0.0
    break_stream: float = 0.0
    slow_network_s: float = 0.004
    #: probability per second that a table of a sink fails, and for how long
    sicken: float = 0.0
    sick_s: float = 0.0
    #: probability per second that writing a table of a sink begins to kill the process
    poison: float = 0.0

    @classmethod
    def drawn(cls, random: Random) -> "Weather":
        """Draw at random; some runs lack some kinds of faults, since faults that always occur together mask each
        other."""

        def maybe(chance: float) -> float:
            return chance * random.random() if random.random() < 0.5 else 0.0

        conditions = Conditions(
            lose_request=maybe(0.02),
            lose_answer=maybe(0.03),
            land_late=maybe(0.02),
            land_through_cut=maybe(1.0),
            slow=maybe(0.2),
            slow_s=random.choice((0.05, 0.3, 1.5)),
            break_watch=maybe(0.02),
            watch_lag_s=random.choice((0.0, 0.0, 0.02, 0.2, 1.0)),
        )
        return cls(
            etcd=conditions,
            slow_storage=maybe(0.2),
            slow_flush=maybe(0.2),
            hang_s=random.choice((0.5, 3.0, 15.0, 40.0)),
            dump_s=random.choice((1.0, 1.0, 4.0, 10.0)),
            lose_storage_answer=maybe(0.05),
            break_source=maybe(0.05),
            break_stream=maybe(0.01),
            slow_network_s=random.choice((0.002, 0.01, 0.05, 0.3)),
            sicken=maybe(0.6),
            sick_s=random.choice((1.0, 6.0, 20.0)),
            poison=0.1 if random.random() < 0.2 else 0.0,
        )

    def clear_up(self) -> None:
        """End all faults; every holder of this object sees the change."""
        calm = Weather()
        for name in calm.__slots__:
            if name != "etcd":
                setattr(self, name, getattr(calm, name))
        for name in Conditions.__slots__:
            setattr(self.etcd, name, 0.0)

    def flush_s(self, random: Random) -> float:
        """Return the duration of a flush's job."""
        if random.random() < self.slow_flush:
            return random.random() * self.hang_s
        return 0.01 + random.random() * 0.1

    def storage_s(self, random: Random) -> float:
        """Return the duration of a request to the sink or to storage."""
        if random.random() < self.slow_storage:
            return random.random() * self.hang_s
        return 0.002 + random.random() * 0.02

    def breaks(self, random: Random) -> bool:
        return random.random() < self.break_source
