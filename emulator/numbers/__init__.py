"""What arithmetic, comparisons and conversions of PTX compute, over the lanes of a warp."""
