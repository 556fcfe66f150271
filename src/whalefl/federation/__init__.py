"""The round: orders out, local training, sums back, a new global model, and the clock that moves with it."""
