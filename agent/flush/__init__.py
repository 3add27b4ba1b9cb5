"""Flush: plans and runs the Spark job that writes changes from the change log to the sink."""
