"""Subscriptions: positions of readers in a changefeed's log."""
