"""Code written as text, for tests: one instruction a line, or a label with a colon."""

from pallasc.analysis.sass import Code, read_listing


def code_of(text: str) -> Code:
    """Return the code of a kernel `k`."""
    lines = ['\t.section\t.text.k,"ax",@progbits']
    address = 0
    for line in filter(None, map(str.strip, text.splitlines())):
        if line.endswith(":"):
            lines.append(line)
        else:
            lines.append(f"        /*{address:04x}*/    {line} ;   // |  1  |   |")
            address += 16
    (code,) = read_listing("\n".join(lines), {"k": bytes(address)}).values()
    return code
