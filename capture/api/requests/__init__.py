"""Requests: what a body, a query and their values may be, for every route."""
