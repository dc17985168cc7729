"""A remote store behind the local one: read through, written behind, never believed unread."""
