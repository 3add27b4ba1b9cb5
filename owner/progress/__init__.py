"""Progress: stored facts, units, watermark and barrier."""
