"""Progress: facts, units, watermark, barrier."""
