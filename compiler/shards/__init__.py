"""Shards: a build divided between machines that do not talk to each other, and joined again."""
