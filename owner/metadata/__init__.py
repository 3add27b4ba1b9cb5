"""Metadata: which capture owns which changefeed: the schedule's state machine, and who may write what of it.

The interfaces are those of TiCDC's cdcv2 metadata:

- ``Querier`` (``capture.member.querier``): plain reads, on any capture
- ``Elector`` (``reactor.membership.election``): of one candidate; ``ClusterState.owner`` is the elected capture, and
  ``ClusterState.captures`` are the members
- ``CaptureObservation``, ``ControllerObservation``, ``OwnerObservation`` (``owner.metadata.observations``): what each
  role sees and may write; ``Advance`` is ``owner.progress.shared_progress``
- ``DiffScheduledChangefeeds`` is ``owner.metadata.schedule.differences``
"""
