"""The paper's data sets as plain arrays: where they are found, how they are read, checked and fetched."""
