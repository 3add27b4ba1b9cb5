"""Controller: the elected capture's decisions: which capture owns which changefeed."""
