"""Curves in the terminal: charts of braille characters, sparklines of the status line."""
