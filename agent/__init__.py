"""Glassloop."""
