"""Array adapters. Each framework is imported only by its module here, and nowhere else."""
