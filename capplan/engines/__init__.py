"""Engines: a data file each, and the rules that it names."""
