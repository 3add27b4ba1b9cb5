"""What sinks of table formats share: the changelog's rows, left-out values, and the conversion of columns."""
