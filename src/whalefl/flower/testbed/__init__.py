"""A testbed on one Linux machine: a network namespace and a cpu quota for each device, real processes in them."""
