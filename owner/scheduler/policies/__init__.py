"""Policies: pure functions from the state of spans and captures to tasks. In order of priority:

basic      replicates every wanted span, and removes all others drain      moves a leaving capture's spans to others
move       moves a span as an operator requested rebalance  evens out span counts at once, as an operator requested
balance    evens out span counts gradually
"""
