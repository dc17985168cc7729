"""Jobs for `pallasc tune run`: the points to measure, and what their results are compared with."""
