"""From a federation on paper to one on several machines: keys, folders, and the processes that keep it going."""
