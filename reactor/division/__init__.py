"""Division: values that are stored in another form than their JSON: packed, or divided into parts."""
