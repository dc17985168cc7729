"""`pallasc bundle export`: kernels of a bundle as sources for C and C++ programs."""

from __future__ import annotations

from pathlib import Path

import click

from pallasc.cli.arguments.command import Command
from pallasc.cli.arguments.options import (
    Selection,
    bundle_selection_options,
    json_option,
    size_option,
)
from pallasc.cli.bundle.options import file_argument
from pallasc.cli.output.text import echo

_CHOSEN_BY = {"row": "row of its key", "bucket": "row of its bucket", "default": "default"}


@click.command("export", cls=Command, short_help="Write kernels as sources for C and C++.")
@file_argument
@click.option("--c", "as_c", is_flag=True, required=True, help="Write C and a CMakeLists.txt.")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FOLDER",
    help="The folder to write; one that an export wrote and nobody changed is replaced.",
)
@click.option(
    "--name",
    metavar="NAME",
    help="What the library is called and its functions begin with; by default the bundle's name.",
)
@size_option(
    "--max-size",
    "most_bytes",
    "Write nothing if the total is larger than this; none for no limit.",
    default="4GiB",
    show_default=True,
)
@bundle_selection_options
@json_option("what was written")
def command(
    file: Path,
    as_c: bool,
    output: Path,
    name: str | None,
    most_bytes: int | None,
    as_json: bool,
    selection: Selection,
) -> int:
    """Write kernels as a folder that CMake builds into a library, without Python or CUDA toolkit.

    The folder holds a flat plan for each variant, a header with one function for each kernel,
    which chooses the variant by the arrays and the GPU, and the sources that launch it. A shared
    library of it is also a module of tvm-ffi. The same variants give the same bytes. It is written
    as a whole, or not at all. Of a tuned kernel it has for each model and set of arrays the variant
    that the rows of the model choose, else the default; it pads no arrays.

    Examples:
      pallasc bundle export --c kernels.pallasc -o kernels/
      pallasc bundle export --c kernels.pallasc -o norms/ --name norms -k "rmsnorm or layernorm"

    --json prints one object:
      schema   1
      file     the bundle
      folder   where they are
      name     the library's name
      kernels  a list; of each: name, function, left_out (how many variants its table does not
               choose), variants, a list: id, arch, file, bytes, chosen_by (of a tuned kernel:
               row, bucket or default)
    """
    from pallasc.cli.arguments.compiled import selected_entries
    from pallasc.cli.output.text import count, json_text
    from pallasc.runtime.native.library import FOLDER
    from pallasc.specs.bundle.bundle import open_bundle
    from pallasc.specs.bundle.c_export import export_c, name_from
    from pallasc.version import installed_version

    library = name_from(file.name) if name is None else name
    with open_bundle(file) as bundle:
        entries = selected_entries(bundle, selection)
        kernels = export_c(
            bundle,
            entries,
            output,
            name=library,
            native=FOLDER,
            version=installed_version(),
            most_bytes=most_bytes,
        )
    if as_json:
        listed = [
            {
                "name": kernel.name,
                "function": kernel.function,
                "left_out": kernel.left_out,
                "variants": [
                    {
                        "id": own.entry.id,
                        "arch": own.entry.arch,
                        "file": own.file,
                        "bytes": own.size,
                        "chosen_by": own.chosen_by,
                    }
                    for own in kernel.variants
                ],
            }
            for kernel in kernels
        ]
        told = {"file": str(file), "folder": str(output), "name": library, "kernels": listed}
        echo(json_text(told))
    for kernel in kernels:
        for own in kernel.variants:
            if own.chosen_by is not None:
                echo(f"{own.entry.id}: by the {_CHOSEN_BY[own.chosen_by]}", err=True)
        if kernel.left_out:
            echo(f"left out {count(kernel.left_out, 'variant')} of {kernel.name}", err=True)
    variants = count(sum(len(kernel.variants) for kernel in kernels), "variant")
    echo(f"wrote {count(len(kernels), 'kernel')} with {variants} to {output}", err=True)
    return 0
