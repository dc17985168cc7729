"""The store: content-addressed blobs and the records that name them."""
