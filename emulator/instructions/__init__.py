"""What each opcode does, one module a family; `registry` finds them."""
