"""The function itself refuses the shape, from a helper."""

from jax.experimental.pallas import mosaic_gpu as plgpu


def rows_of_a_tile(rows):
    if rows % 128:
        raise ValueError(f"{rows} rows are not a multiple of 128")
    return 128


def scale(x):
    rows = rows_of_a_tile(x.shape[0])

    def body(x_gmem, out_gmem):
        out_gmem[...] = 2.0 * x_gmem[...]

    return plgpu.kernel(body, out_type=x, grid=(x.shape[0] // rows,), grid_names=("tile",))(x)
