"""The engines that read without a GPU."""
