"""PTX arithmetic, comparisons and conversions, over the lanes of a warp."""
