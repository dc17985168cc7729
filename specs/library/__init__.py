"""Ready-made kernels, each with a YAML spec that builds it.

Every kernel is a plain function of JAX arrays. Arrays come first; tile sizes and other
choices made at compile time are keyword-only with defaults, so a spec sets them under
`static`. Next to each kernel is its reference: the same function in plain `jax.numpy`,
in float32. To start your own kernel, copy one of them and its YAML.

Each kernel states its lowering semantics, because the default is Lane in JAX 0.10 and
Warpgroup, in which Mosaic infers layouts, tilings and swizzles, in 0.11 and later.
"""
