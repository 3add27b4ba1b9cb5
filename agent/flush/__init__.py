"""Flush: plans and runs the Spark job that carries changes from the change log to the sink."""
