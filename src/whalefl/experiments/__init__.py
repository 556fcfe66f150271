"""The paper's tables, figures and claims as values, the runs they need, and what those runs say."""
