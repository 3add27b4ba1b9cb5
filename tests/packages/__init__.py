"""Packages that tests install: Weir's examples, and plugins of other packages."""
