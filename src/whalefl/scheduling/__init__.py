"""How big a part of the model a device trains this round: Fisher information, utility, levels, policies."""
