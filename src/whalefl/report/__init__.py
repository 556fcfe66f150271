"""From run folders to tables and pictures; needs no torch."""
