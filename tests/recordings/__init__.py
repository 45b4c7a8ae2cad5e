"""Figures and their text."""
