"""Turns results into text, JSON, JUnit and annotations."""
