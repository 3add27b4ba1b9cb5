"""Policies: pure functions from the picture of spans and captures to tasks. In order of priority:

basic      every span that should be replicated is, and no other
drain      a leaving capture's spans go elsewhere
move       an operator's wish for one span
rebalance  an operator's wish for level counts, at once
balance    level counts, by and by
"""
