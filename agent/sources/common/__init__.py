"""Code that two or more sources share."""
