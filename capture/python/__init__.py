"""Python interface: clusters, changefeeds and tables for notebooks and scripts. ``import capture`` hands it on."""
