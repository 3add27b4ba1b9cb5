"""The owner gets SIGKILL: nobody resigns, and all tables flow again soon after its lease is over."""

import pytest

from benchmarks.cluster import failover
from benchmarks.support.metadata import STORES
from tests.patience import patient

pytestmark = pytest.mark.acceptance

_AFTER_THE_LEASE_S = 5.0


@pytest.mark.matrix  # daily below a kill of the owner, in test_faults.py
@pytest.mark.parametrize(
    # daily on a store of another kind than test_faults, which kills the owner of a cluster on etcd
    "store",
    [store if store == "postgres" else pytest.param(store, marks=pytest.mark.matrix) for store in STORES],
)
def test_all_tables_flow_again_soon_after_the_owners_lease_is_over(store: str) -> None:
    figures = failover.run(changefeeds=10, tables=20, store=store)
    promised_s = float(str(figures["lease_ttl_s"])) + _AFTER_THE_LEASE_S
    assert float(str(figures["all_flow_again_s"])) <= patient(promised_s)
