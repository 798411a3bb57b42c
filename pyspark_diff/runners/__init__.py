"""The two places where the same kernels run: Spark's executors, and the driver."""
