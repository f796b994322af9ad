"""TileLang kernels. Nothing here imports TileLang before a kernel is built or compiled."""
