"""How fast a round is: engines against the ordinary loop and against what the hardware's matrix products allow."""
