"""Job formats: which operators' jobs need a newer format of the cluster than it has."""

from owner import jobs
from owner.errors import JobRefusedError
from reactor.errors import FormatError
from reactor.records import formats
from reactor.records.formats import Feature


def refuse_early(job: jobs.FeedJob, number: int) -> None:
    """:raises JobRefusedError: the changefeed would be unreadable to some captures of the cluster."""
    what: tuple[str, int] | None = None
    if isinstance(job, jobs.ResyncTable) and job.rows_per_second is not None:
        what = "a limit of reading", Feature.READ_LIMITS
    elif isinstance(job, jobs.ResyncTable):
        what = "a table that is copied again", Feature.RESYNC
    elif isinstance(job, jobs.Update) and job.copy_limits:
        what = "a limit of reading", Feature.READ_LIMITS
    elif isinstance(job, (jobs.PauseTable, jobs.SkipTable)):
        what = "a table that an operator holds", Feature.TABLE_STEPS
    elif isinstance(job, jobs.Resume) and job.is_resync:
        what = "a new position", Feature.NEW_POSITION
    elif isinstance(job, jobs.Update) and job.joining is not None:
        what = "another table filter", Feature.TABLE_STEPS
    if what is not None:
        try:
            formats.refuse_early(*what, number)
        except FormatError as error:
            raise JobRefusedError(str(error)) from None
    if not isinstance(job, jobs.Update):
        return
    needs = {f"option {name} of the sink": needed for name, needed in job.needs}
    if job.config is not None:
        needs |= {name.replace("_", "-"): needed for name, needed in formats.needed_by(job.config).items()}
    for name, needed in needs.items():
        try:
            formats.refuse_early(name, needed, number)
        except FormatError as error:
            raise JobRefusedError(str(error)) from None
