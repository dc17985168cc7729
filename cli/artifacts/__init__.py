"""An artifact as text: its plan, its resources, the numbers of its launches."""
